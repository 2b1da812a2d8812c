"""What needs no OpenCL device: descriptions of devices, kernels as data, PoCL's files, and errors."""

from __future__ import annotations

import struct
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kforge.backends.cpp.elf import Refused
from kforge.backends.header import TemplateError
from kforge.backends.opencl import devices, poclbin
from kforge.backends.opencl.image import ImageError, OpenClImage, Signature, parse
from kforge.backends.templates import load
from kforge.core.errors import KforgeError
from kforge.core.launch import Argument, ArgumentKind, Launch, evaluate
from kforge.core.target import Peak, Target
from kforge.core.workload import Problem

LINE = ("pthread-cpu\tAuthenticAMD\tOpenCL 3.0 PoCL\t3.1\tcl_khr_fp64 cl_khr_spir\t2\t4\t4096\t33554432\t23129018368\t"
        "1048576\t1\t191\tPortable Computing Language\t\n")
HOST = Target("host", "cpu", "amd", "EPYC", "x86_64", ("avx2",), 2, (), 1 << 34, ((2, Peak(1e10)),), ())
LAUNCH = Launch("scale", ("cdiv(T, group) + 1", "H // 16"),
                (Argument(ArgumentKind.TENSOR, "x"), Argument(ArgumentKind.STRIDE, "x", 0),
                 Argument(ArgumentKind.AXIS, "T"), Argument(ArgumentKind.SCALAR, "eps"),
                 Argument(ArgumentKind.SCRATCH, "scratch")), ("group",), "4 * T * H", (("H", 64), ("group", 4)))
SIGNATURE = Signature(("x", "out"), ("R", "T"), ("eps",))


def test_a_device_is_read_as_its_driver_describes_it():
    (device,) = devices.parsed(LINE)
    assert (device.kind, device.units, device.driver, device.shares_memory) == ("cpu", 4, "3.1", True)
    assert set(device.fp) == {"cl_denorm", "cl_fma", "cl_exact_divide_sqrt"}
    target = devices.target_of(device, HOST)
    assert target.backends == ("opencl",) and target.has("cl_fma", "cl_khr_fp64") and not target.has("cl_khr_spir")
    assert target.bandwidth == HOST.bandwidth and target.identity != HOST.identity


def test_another_driver_version_is_the_same_target_with_another_compiler():
    """The version is a validator of stored kernels, not part of what they are for."""
    old, new = (devices.target_of(devices.parsed(LINE.replace("\t3.1\t", f"\t{v}\t"))[0], HOST) for v in ("3.1", "4.0"))
    assert old.identity == new.identity and old.compilers != new.compilers


def test_a_description_that_is_none_is_told():
    with pytest.raises(KforgeError, match="OpenCL device 0 is not described"):
        devices.parsed("what is this\n")


@pytest.mark.parametrize(("lines", "name", "says"), [
    ("", "opencl", "no OpenCL device; install a driver"),
    (LINE, "opencl-other", "no OpenCL device of that name here; there are opencl-pthread-cpu"),
    (LINE + LINE.replace("pthread-cpu", "big-gpu"), "opencl", "several OpenCL devices: .*opencl-big-gpu"),
])
def test_a_target_that_is_not_at_hand_says_what_is(monkeypatch, lines, name, says):
    monkeypatch.setattr(devices, "devices", lambda: devices.parsed(lines))
    with pytest.raises(KforgeError, match=says):
        devices.target_named(name, HOST)


def test_a_kernel_as_data_comes_back_as_it_went():
    image = OpenClImage((LAUNCH,), SIGNATURE, b"binary\n{}")
    assert parse(image.data()) == image


@pytest.mark.parametrize("data", [b"", b"kforge-opencl 1\n", b"kforge-opencl 1\n{}\nx", b"\x7fELF",
                                  b'kforge-opencl 1\n{"launches": [{}], "signature": {}}\nx'])
def test_bytes_that_are_no_kernel_are_refused(data):
    with pytest.raises(ImageError):
        parse(data)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_runner_reads_the_sizes_that_the_header_says(rows, tokens):
    words = array("q", OpenClImage((LAUNCH,), SIGNATURE, b"binary").blob()[:-6]).tolist()
    assert words[1:4] == [0, 8 * len(words), 6]
    at = 5 + 2  # behind the head, the count and the name, which takes one word
    assert words[at : at + 3] == [4, 1, 1]
    at += 3
    values = {**dict(LAUNCH.constants), "R": rows, "T": tokens}
    for text in (*LAUNCH.grid, "1", LAUNCH.scratch):
        count, at = words[at], at + 1
        assert _run(words[at : at + 2 * count], [rows, tokens]) == evaluate(text, values)
        at += 2 * count
    assert words[at:] == [5, 0, 0, 0, 1, 0, 0, 2, 1, 0, 3, 0, 0, 4, 0, 0]


def _run(words: list[int], axes: list[int]) -> int:
    stack: list[int] = []
    for what, value in zip(words[::2], words[1::2], strict=True):
        if what < 2:
            stack.append(axes[value] if what else value)
            continue
        b = stack.pop()
        stack.append({2: lambda a, b: a + b, 4: lambda a, b: a * b, 5: lambda a, b: a // b,
                      9: lambda a, b: -(-a // b)}[what](stack.pop(), b))
    assert len(stack) == 1
    return stack[0]


def test_an_argument_that_the_operator_lacks_is_refused():
    image = OpenClImage((LAUNCH,), Signature(("y",), ("R", "T"), ("eps",)), b"binary")
    with pytest.raises(ImageError, match="no tensor x"):
        image.blob()


def files(*named: tuple[str, bytes]) -> bytes:
    """A poclbin of one kernel with these files."""
    packed = b"".join(struct.pack("<I", len(p)) + p.encode() + struct.pack("<I", len(d)) + d for p, d in named)
    head = struct.pack("<8sQIIQI", poclbin.MAGIC, 1, poclbin.VERSION, 1, 0, 0) + bytes(41)
    return head + struct.pack("<QQI", 24 + len(packed), len(packed), 0) + b"kern" + packed


OBJECT = "/scale/0-0-0/scale.so"


@pytest.mark.parametrize(("binary", "says"), [
    (files((OBJECT, b"x"), ("/../../etc/cron.d/job", b"x")), "belongs to no launch"),
    (files((OBJECT, b"x"), (OBJECT, b"y")), "twice"),
    (files(("/program.bc", b"x")), "lacks /scale/0-0-0"),
    (files((OBJECT, b"no code")), "malformed ELF"),
    (files((OBJECT, b"x"))[:-1], "damaged"),
    (files((OBJECT, b"x")) + b"!", "behind its end"),
    (files((OBJECT, b"x")).replace(struct.pack("<I", poclbin.VERSION), struct.pack("<I", 99), 1), "format that is not"),
])
def test_a_binary_holds_what_its_launches_need_and_nothing_else(binary, says):
    with pytest.raises(Refused, match=says):
        poclbin.admit(binary, (LAUNCH,))


def test_shipped_opencl_templates_render_over_their_spaces():
    """Where a problem of the model families fits: no corner of a space may fail to render or to bind its launches."""
    target = devices.target_of(devices.parsed(LINE)[0], HOST)
    linear = {"K": 576, "N": 192, "bias": 0, "rows": 32, "act": "a8"}
    problems = [Problem.of("rms_norm", H=H, residual=r) for H, r in ((576, 0), (100, 1))]
    problems += [Problem.of("linear", weight=w, epilogue=e, **linear) for w in ("q4_0", "q4_1", "q8_0")
                 for e in ("none", "residual", "silu_gate")]
    problems += [Problem.of("paged_attention", Hq=9, Hkv=3, D=64, P=64, kv=kv) for kv in ("f16", "bf16", "f32")]
    for problem in problems:
        (template,) = [t for t in load(problem.operator) if t.backend == "opencl"]
        assert template.applies(problem, target) is None
        points = template.space(problem, target)
        for params in (*points[:: max(len(points) // 5, 1)], points[-1]):
            candidate = template.render(problem, target, params)
            assert candidate.launches and all(launch.threads({})[0] >= 1 for launch in candidate.launches)


def test_opencl_templates_are_not_for_the_processor():
    """One run searches one language's space."""
    problem = Problem.of("rms_norm", H=576, residual=0)
    assert all(t.applies(problem, HOST) for t in load("rms_norm") if t.backend == "opencl")
    with pytest.raises(TemplateError):
        next(t for t in load("rms_norm") if t.backend == "opencl").render(problem, HOST, {})
