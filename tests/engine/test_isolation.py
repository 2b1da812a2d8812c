"""Isolated kernels: the same bits, nothing that they can do to the engine, and one sentence when they try."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from toy_model import ToyModel

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelState
from kforge.engine.engine import Engine
from kforge.engine.isolation import executor
from kforge.engine.isolation.page import Command
from kforge.engine.isolation.plan import Plan
from kforge.engine.isolation.process import IsolatedProcess
from kforge.engine.kernel_set import Overlay, TunedKernels
from kforge.engine.request import SamplingParams
from kforge.engine.weights import Weights
from kforge.harness.proof import Layer, proven
from kforge.registry.snapshot import EMPTY, Snapshot
from tests.native.native_kernels import image_of

TOKENS = list(range(40))
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def toy() -> ToyModel:
    return ToyModel(rest=WeightFormat.Q8_0)


def engine_of(toy: ToyModel, kernels, isolate: bool | None = True) -> Engine:
    return Engine(toy, kernels, act="f32", kv_tokens=512, max_sequences=8, text=False, isolate=isolate)


@pytest.fixture(scope="module")
def isolated(toy, kernels) -> Iterator[Engine]:
    engine = engine_of(toy, kernels)
    yield engine
    engine.close()


class WithOne:
    """The default kernels, but for one problem's: a kernel from elsewhere, not even admitted."""

    name = "with one"
    from_elsewhere = True

    def __init__(self, kernels, operator: str, body: str) -> None:
        self.target, self._kernels, self._operator = kernels.target, kernels, operator
        self._image = image_of(f"KERNEL void kforge_kernel(const kf_launch *l) {{ {body} }}")

    def rows(self, weight):
        return self._kernels.rows(weight)

    def choose(self, problem, dynamic):
        chosen = self._kernels.choose(problem, dynamic)
        if problem.operator != self._operator:
            return chosen
        return dataclasses.replace(chosen, image=self._image, candidate_hash="0123456789abcdef", template="file:evil")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int) -> bool:
    """At once in general; on a machine that is paused or overloaded, soon."""
    until = time.monotonic() + 10
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


def executor_of(engine: Engine) -> int:
    warden = engine._runner.executor.started().pid
    return int(Path(f"/proc/{warden}/task/{warden}/children").read_text().split()[0])


def test_logits_and_tokens_are_the_same_bits_as_in_the_engine_s_own_process(toy, kernels, isolated):
    own = engine_of(toy, kernels, False)
    assert (own.isolated, isolated.isolated) == (False, True)
    for chunk in (1, 3, 8):
        np.testing.assert_array_equal(own.logits(TOKENS, chunk).view(np.int32),
                                      isolated.logits(TOKENS, chunk).view(np.int32))
    prompts = [TOKENS[i : i + 9] for i in range(5)]
    assert [c.tokens for c in own.generate(prompts, PARAMS)] == [c.tokens for c in isolated.generate(prompts, PARAMS)]


def test_a_real_model_says_the_same_and_names_the_same_kernels_and_calls(model, kernels, native, prompts):
    with_calls = Engine(model, kernels, kv_tokens=4096, max_sequences=16, isolate=True)
    plain = Engine(model, kernels, kv_tokens=4096, max_sequences=16)
    ours, theirs = with_calls.generate(prompts[:3], PARAMS), plain.generate(prompts[:3], PARAMS)
    assert [c.text for c in ours] == [c.text for c in theirs]
    assert with_calls.kernels_used() == plain.kernels_used()
    times = with_calls._runner.profile(3)
    assert len(times) == len(plain._runner.profile(3)) and all(t.seconds > 0 for t in times)
    with_calls.close()
    plain.close()


def test_its_process_has_no_files_no_privileges_and_a_filter_on_every_thread(isolated):
    isolated.generate([TOKENS], PARAMS)
    pid = executor_of(isolated)
    for task in Path(f"/proc/{pid}/task").iterdir():
        seen = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        assert (seen["Seccomp"], seen["NoNewPrivs"], int(seen["CapPrm"], 16)) == ("2", "1", 0)
        if os.geteuid() == 0:
            assert set(seen["Uid"].split()) == {"65534"}
    if os.geteuid() == 0:
        assert not list(Path(f"/proc/{pid}/fd").iterdir())
        maps = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        shared = [line[1] for line in maps if "kforge-arena" in line[-2] + line[-1]]
        assert shared.count("r--s") >= 2 and shared.count("rw-s") == 2  # weights, inputs; activations, cache


@pytest.mark.parametrize(("operator", "body", "says"), [
    ("argmax", "*(volatile int *)8 = 1;", "SIGSEGV at address 0x8"),
    ("argmax", 'asm volatile("syscall" : : "a"(39L) : "rcx", "r11", "memory");', "SIGSYS: it made a system call"),
    ("argmax", 'asm volatile("ud2");', "SIGILL"),
    ("argmax", "for (;;) asm volatile(\"\");", "did not come back within 1 s"),
    ("rms_norm", "((float *)l->tensors[1].data)[l->thread] = 0;", "SIGSEGV"),  # a weight
    ("embedding", "((int *)l->tensors[0].data)[l->thread] = 0;", "SIGSEGV"),  # the step's token ids
    ("argmax", "((volatile int64_t *)l->axes)[0] = 1000;", "SIGSEGV"),
])
def test_a_kernel_that_does_what_it_must_not_is_named_and_the_engine_lives(toy, kernels, monkeypatch, operator, body,
                                                                           says):
    monkeypatch.setattr(executor, "HANG_SECONDS", 1.0 if says.endswith("within 1 s") else 600.0)
    engine = engine_of(toy, WithOne(kernels, operator, body))
    pid = executor_of(engine)
    engine.add(TOKENS, PARAMS)
    for _ in range(2):  # and again, once it is dead
        with pytest.raises(KforgeError) as raised:
            engine.step()
            engine.step()
        assert says in str(raised.value)
        assert "kernel 0123456789abcdef (file:evil) called for" in str(raised.value)
    assert gone(pid)
    engine.close()


def test_a_token_that_is_none_is_not_used(toy, kernels):
    engine = engine_of(toy, WithOne(kernels, "argmax", "if (!l->thread) *(int *)l->tensors[1].data = -7;"))
    with pytest.raises(KforgeError, match=r"gave token \[-7\], outside 0 \.\. 319"):
        engine.generate([TOKENS], PARAMS)
    engine.close()


def test_scratch_beyond_what_there_is_is_an_error_that_names_the_kernel(toy, kernels, monkeypatch):
    monkeypatch.setattr(executor, "SCRATCH_LIMIT", 1 << 20)
    kernel_set = WithOne(kernels, "argmax", "")
    kernel_set._image = image_of("KERNEL void kforge_kernel(const kf_launch *) {}\n"
                                 "KERNEL int64_t kforge_scratch_bytes(const int64_t *, int32_t) { return 2 << 20; }")
    engine = engine_of(toy, kernel_set)
    with pytest.raises(KforgeError, match=r"kernel 0123456789abcdef .* wants more scratch"):
        engine.generate([TOKENS], PARAMS)
    engine.close()


def test_a_warden_that_is_killed_from_outside_is_noticed_soon():
    process = IsolatedProcess(Plan(1, 1 << 20, (), (), ((),)), [], 0)
    try:
        assert process.call(Command.RUN, 0, 60.0) is None
        os.kill(process.pid, signal.SIGKILL)
        began = time.monotonic()
        death = None
        while death is None and time.monotonic() - began < 30:  # the executor may outrun the signal many times
            death = process.call(Command.RUN, 0, 600.0)
        assert death is not None and death.reason == "SIGKILL ended its process"
        assert time.monotonic() - began < 30, "nobody is left who would end its ten minutes"
    finally:
        process.close()


def test_nothing_is_left_when_the_engine_is_closed_or_killed():
    code = f"""if True:
        import sys, time
        sys.path[:0] = [{str(Path(__file__).parent)!r}]
        from toy_model import ToyModel
        from kforge.core.dtypes import WeightFormat
        from kforge.engine.engine import Engine
        e = Engine(ToyModel(rest=WeightFormat.Q8_0), "default", act="f32", kv_tokens=256, text=False, isolate=True)
        e.generate([[1, 2, 3]])
        warden = e._runner.executor.started().pid
        print(warden, open(f"/proc/{{warden}}/task/{{warden}}/children").read(), flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2 and all(alive(pid) for pid in pids)
        process.send_signal(signal.SIGKILL)
    assert all(gone(pid) for pid in pids)


def test_closing_ends_the_process_and_gives_its_files_back(toy, kernels):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    engine = engine_of(toy, kernels)
    pid = executor_of(engine)
    engine.close()
    assert gone(pid)
    del engine
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_weights_are_packed_once_for_all_isolated_engines(toy, kernels):
    weights = Weights(toy)
    engines = [Engine(toy, kernels, act="f32", kv_tokens=256, text=False, weights=weights, isolate=i)
               for i in (True, False, True)]
    twin = weights.for_executor(True)
    assert twin is weights.for_executor(True) and twin.bytes == weights.bytes > 0
    assert len({e.generate([TOKENS], PARAMS)[0].tokens for e in engines}) == 1
    for engine in engines:
        engine.close()


def test_kernels_from_elsewhere_are_isolated_unless_one_says_no(toy, kernels, record):
    def tuned(proposer: str, state: KernelState = KernelState.PROMOTED) -> TunedKernels:
        return TunedKernels(Snapshot.of([dataclasses.replace(record, proposer=proposer, state=state)]), None, kernels)

    assert [tuned(p).from_elsewhere for p in ("builtin", "default", "hand", "anthropic", "imported")] == \
        [False, False, True, True, True]
    assert not tuned("hand", KernelState.ACCEPTED).from_elsewhere  # it is not served
    assert Overlay(kernels, {"x": tuned("hand")}).from_elsewhere
    assert not TunedKernels(EMPTY, None, kernels).from_elsewhere
    harmless = WithOne(kernels, "none", "")
    for isolate, is_ in ((None, True), (False, False)):
        engine = engine_of(toy, harmless, isolate)
        assert engine.isolated is is_
        engine.close()


@pytest.fixture
def record(kernels):
    from kforge.core.kernel import KernelRecord
    from kforge.core.trial import NumericsClass
    from kforge.core.workload import Problem

    return KernelRecord("h", Problem.of("argmax", V=320), (("R", 1),), kernels.target.identity, "t", 1, 1,
                        NumericsClass.EXACT, (), "cpp", "t", "t", (), "s", "a", "g++", 1e-6, 2e-6, 1.0, 0.9, "r")


def test_where_it_cannot_be_locked_down_it_does_not_run(toy, kernels, monkeypatch):
    real = proven()
    run = dataclasses.replace(real.run, layers=real.run.layers & ~Layer.FILTER)
    monkeypatch.setattr(executor, "proven", lambda: dataclasses.replace(real, run=run))
    with pytest.raises(KforgeError, match=r"cannot be isolated here: FILTER does not hold.*--no-isolate"):
        engine_of(toy, kernels)


def test_the_command_isolates_and_says_so(model):
    def generate(option: str) -> dict:
        command = [sys.executable, "-m", "kforge.cli.main", "generate", str(model.path), "-p", "Water boils at",
                   "--max-tokens", "6", "--kernels", "default", "--json", option]
        return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout)

    ours, theirs = generate("--isolate"), generate("--no-isolate")
    assert (ours["isolated"], theirs["isolated"]) == (True, False)
    assert ours["tokens"] == theirs["tokens"] and ours["kernels"] == theirs["kernels"]
