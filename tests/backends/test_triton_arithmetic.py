"""Arithmetic in the child that interprets Triton kernels: as the hardware rounds, where the interpreter is wrong.

Kernels run as candidates' do, in the sandbox; what must come out is computed by torch, whose bfloat16 and 8-bit
conversions round to nearest even.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from kforge.backends.triton.installed import command, package_folder, readable, triton
from kforge.harness.control import SharedMemory
from kforge.harness.sandbox import Limits, Served

N = 512
_KERNELS = """
import triton
import triton.language as tl

N = tl.constexpr(512)


@triton.jit
def arithmetic(a, b, out):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(out + i, x + y)
    tl.store(out + N + i, x - y)
    tl.store(out + 2 * N + i, x * y)
    tl.store(out + 3 * N + i, -x)
    tl.store(out + 4 * N + i, tl.where(x < y, x, y))
    tl.store(out + 5 * N + i, tl.maximum(x, y))
    tl.store(out + 6 * N + i, tl.abs(x))
    tl.store(out + 7 * N + i, tl.full((N,), 0.3, tl.bfloat16))


@triton.jit
def narrowing(a, out, eight, five):
    i = tl.arange(0, N)
    x = tl.load(a + i)
    tl.store(out + i, x.to(tl.bfloat16))
    tl.store(out + N + i, x.to(tl.int32).to(tl.bfloat16))
    tl.store(eight + i, x.to(tl.float8e4nv).to(tl.uint8, bitcast=True))
    tl.store(five + i, x.to(tl.float8e5).to(tl.uint8, bitcast=True))


@triton.jit
def widening(codes, out):
    i = tl.arange(0, 256)
    c = tl.load(codes + i)
    tl.store(out + i, c.to(tl.float8e4nv, bitcast=True).to(tl.float32))
    tl.store(out + 256 + i, c.to(tl.float8e5, bitcast=True).to(tl.float32))


@triton.jit
def sums(a, out):
    i, j = tl.arange(0, 16), tl.arange(0, 32)
    x = tl.load(a + i[:, None] * 32 + j[None, :])
    tl.store(out + i, tl.sum(x.to(tl.float32), axis=1).to(tl.bfloat16))
    tl.store(out + 16 + i, tl.max(x, axis=1))


@triton.jit
def products(a, b, out, brain_a, brain_b):
    i, j = tl.arange(0, 16), tl.arange(0, 32)
    x = tl.load(a + i[:, None] * 32 + j[None, :])
    y = tl.load(b + j[:, None] * 16 + i[None, :])
    at = i[:, None] * 16 + i[None, :]
    tl.store(out + at, tl.dot(x, y, input_precision="ieee"))
    tl.store(out + 256 + at, tl.dot(x, y))
    tl.store(out + 512 + at, tl.dot(x, y, input_precision="tf32x3"))
    u = tl.load(brain_a + i[:, None] * 32 + j[None, :])
    v = tl.load(brain_b + j[:, None] * 16 + i[None, :])
    tl.store(out + 768 + at, tl.dot(u, v))


@triton.jit
def fused(a, b, c, out):
    i = tl.arange(0, N)
    tl.store(out + i, tl.fma(tl.load(a + i), tl.load(b + i), tl.load(c + i)))
"""


class Child:
    """The interpreter in the sandbox, called with arrays."""

    def __init__(self, work: Path) -> None:
        self.memory = SharedMemory("test", 1 << 20)
        found = triton()
        (work / "kernel.py").write_text(_KERNELS)
        job = {"triton": str(found.folder), "numpy": str(package_folder("numpy")), "file": self.memory.fd,
               "precision": "tf32", "precisions": ["tf32", "tf32x3", "ieee"]}
        (work / "job.json").write_text(json.dumps(job))
        self.served = Served(command("interpret.py"), work, Limits(300, 24 << 30, 1 << 20), readable(found, "numpy"),
                             fds=(self.memory.fd,))

    def __call__(self, entry: str, *arrays: tuple[str, np.ndarray]) -> None:
        """Outputs are written into the arrays."""
        tensors, at = [], 0
        view = np.frombuffer(self.memory.map, np.uint8)
        for number, (_, array) in enumerate(arrays):
            tensors.append({"name": str(number), "at": at, "bytes": array.nbytes, "writable": True})
            view[at:at + array.nbytes] = array.reshape(-1).view(np.uint8)
            at += -(-array.nbytes // 64) * 64
        launch = {"entry": entry, "grid": [1, 1, 1],
                  "arguments": [[kind, t["at"]] for (kind, _), t in zip(arrays, tensors, strict=True)]}
        call = {"reserve": 1 << 20, "order": 0, "slots": [[0, 0, 1 << 20]], "tensors": tensors, "launches": [launch]}
        answer = self.served.ask(json.dumps(call).encode(), 120)
        assert answer is not None, self.served.end().text
        assert json.loads(answer) == {"ok": True}
        for (_, array), tensor in zip(arrays, tensors, strict=True):
            array.reshape(-1).view(np.uint8)[:] = view[tensor["at"]:tensor["at"] + array.nbytes]


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Child:
    made = Child(tmp_path_factory.mktemp("interpreter"))
    yield made
    made.served.close()


def values(seed: int, count: int = N) -> np.ndarray:
    """Of all magnitudes, with what is special first."""
    rng = np.random.default_rng(seed)
    drawn = (rng.standard_normal(count) * 2.0 ** rng.integers(-20, 20, count)).astype(np.float32)
    special = [0.0, -0.0, 1.0, 1e-40, np.inf, -np.inf, np.nan, 3.39e38, 65504.0, 448.0, 449.0, 464.0, 57344.0,
               0.001953125]
    drawn[: len(special)] = special
    return drawn


def bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(torch.int16).numpy().view(np.uint16)


def same(found: np.ndarray, wanted: torch.Tensor) -> None:
    """To the bit, all NaNs being one."""
    got = torch.from_numpy(found.view(np.int16).copy()).view(torch.bfloat16)
    both = torch.isnan(got) & torch.isnan(wanted)
    assert torch.equal(bits_of(got)[~both], bits_of(wanted)[~both])


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16)


def test_bfloat16_arithmetic_rounds_each_operation_to_nearest_even(child: Child) -> None:
    x, y = (torch.from_numpy(values(seed)).to(torch.bfloat16) for seed in (1, 2))
    out = np.zeros(8 * N, np.uint16)
    child("arithmetic", ("*bf16", bits(x).copy()), ("*bf16", bits(y).copy()), ("*bf16", out))
    constant = torch.full((N,), 0.3).to(torch.bfloat16)
    wanted = (x + y, x - y, x * y, None, torch.where(x < y, x, y), None, x.abs(), constant)
    for i, one in enumerate(wanted):
        if one is not None:
            same(out[i * N:(i + 1) * N], one)
    some = (x != 0).numpy()  # Triton 3.6 negates by subtracting from zero, which is zero of zero
    same(out[3 * N:4 * N][some], -x[some])
    finite = ~(torch.isnan(x) | torch.isnan(y))
    largest = torch.from_numpy(out[5 * N:6 * N].view(np.int16).copy()).view(torch.bfloat16)
    assert torch.equal(largest[finite], torch.maximum(x, y)[finite])


def test_conversions_round_to_nearest_even_and_carry(child: Child) -> None:
    x = values(3)
    x[20:40] = np.linspace(1.99, 2.01, 20, dtype=np.float32)  # where a rounding carries into the exponent
    x[40:60] = 1.0 + np.arange(20, dtype=np.float32) / 256  # ties of bfloat16
    x[60:80] = (1 + np.arange(20) / 16).astype(np.float32)  # ties of 8 bits
    out, eight, five = np.zeros(2 * N, np.uint16), np.zeros(N, np.uint8), np.zeros(N, np.uint8)
    child("narrowing", ("*fp32", x), ("*bf16", out), ("*u8", eight), ("*u8", five))
    source = torch.from_numpy(x)
    same(out[:N], source.to(torch.bfloat16))
    whole = np.abs(x) < 1e6
    same(out[N:][whole], torch.from_numpy(x[whole].astype(np.int32).astype(np.float32)).to(torch.bfloat16))
    for found, dtype, most in ((eight, torch.float8_e4m3fn, 448.0), (five, torch.float8_e5m2, 57344.0)):
        inside = np.abs(x) <= most
        wanted = source.to(dtype).view(torch.uint8).numpy()
        assert np.array_equal(found[inside], wanted[inside])
        beyond = torch.from_numpy(found[np.abs(x) > most]).view(dtype).to(torch.float32)
        assert torch.equal(beyond.abs(), torch.full_like(beyond, most))  # the largest, as cvt.satfinite has it


def test_all_codes_of_8_bits_widen(child: Child) -> None:
    codes, out = np.arange(256, dtype=np.uint8), np.zeros(512, np.float32)
    child("widening", ("*u8", codes), ("*fp32", out))
    for found, dtype in ((out[:256], torch.float8_e4m3fn), (out[256:], torch.float8_e5m2)):
        assert np.array_equal(found, torch.from_numpy(codes).view(dtype).to(torch.float32).numpy(), equal_nan=True)


def test_reductions_of_bfloat16_are_of_its_values(child: Child) -> None:
    x = torch.from_numpy(np.random.default_rng(4).standard_normal((16, 32)).astype(np.float32)).to(torch.bfloat16)
    out = np.zeros(32, np.uint16)
    child("sums", ("*bf16", bits(x).copy()), ("*bf16", out))
    found = torch.from_numpy(out.view(np.int16).copy()).view(torch.bfloat16).to(torch.float32)
    assert torch.allclose(found[:16], x.to(torch.float64).sum(1).to(torch.float32), rtol=2 ** -8, atol=1e-2)
    assert torch.equal(found[16:], x.max(1).values.to(torch.float32))


def test_products_have_the_precision_of_their_inputs(child: Child) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 32), (32, 16)))
    brain = [torch.from_numpy(m).to(torch.bfloat16) for m in (a, b)]
    out = np.zeros(1024, np.float32)
    child("products", ("*fp32", a), ("*fp32", b), ("*fp32", out), *(("*bf16", bits(m).copy()) for m in brain))
    exact, scale = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)
    ieee, tf32, three, bf16 = ((part.reshape(16, 16) - exact) / scale for part in np.split(out, 4))
    assert np.abs(ieee).max() < 32 * 2 ** -24
    assert 2 ** -13 < np.abs(tf32).max() < 2 ** -9  # two operands cut off behind 10 bits
    assert np.abs(three).max() < 2 ** -19
    brained = brain[0].to(torch.float64).numpy() @ brain[1].to(torch.float64).numpy()
    assert np.abs(out[768:].reshape(16, 16) - brained).max() < 32 * 2 ** -24 * scale.max()
    assert np.abs(bf16).max() > 2 ** -12


def test_a_multiply_add_rounds_once(child: Child) -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(N).astype(np.float32) for _ in range(2))
    c = -(a * b)  # what is left is the product's rounding
    out = np.zeros(N, np.float32)
    child("fused", ("*fp32", a), ("*fp32", b), ("*fp32", c), ("*fp32", out))
    assert np.array_equal(out, (a.astype(np.float64) * b + c).astype(np.float32))
    assert np.count_nonzero(out) > N // 2
