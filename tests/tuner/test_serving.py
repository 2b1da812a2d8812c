"""What serves after a run is said so that the shipped defaults are never taken for tuned kernels."""

from __future__ import annotations

import dataclasses

from kforge.core.kernel import KernelRecord, KernelState, Settled
from kforge.core.target import Target
from kforge.core.trial import NumericsClass
from kforge.core.workload import Problem, Workload
from kforge.registry.ask import ABI_VERSION
from kforge.registry.snapshot import EMPTY, Snapshot
from kforge.tuner.serving import Serving, serving

HERE = Target("here", "cpu", "none", "none", "x86_64", (), 2, (), 1 << 34, (), ())
NORM, LINEAR = Problem.of("rms_norm", H=576, residual=0), Problem.of(
    "linear", K=576, N=960, weight="q4_1", act="a8", epilogue="none", bias=0, rows=32)
CALLS = [Workload.of(NORM, T=1), Workload.of(NORM, T=512), Workload.of(LINEAR, M=1)]


def kernel(number: int, t: int, run: str, state: KernelState = KernelState.PROMOTED) -> KernelRecord:
    return KernelRecord(
        f"c{number}", NORM, (("T", t),), HERE.identity, "here", 1, ABI_VERSION, NumericsClass.EXACT, (), "cpp", "t",
        "h", (), "s", "a", "", 1e-5, 2e-5, 0.1, 0.05, run, state=state, id=number)


def after(before: Snapshot, *kernels: KernelRecord, **settled: int) -> Serving:
    settlements = [(HERE.identity, Settled(LINEAR.without_layout.key, rows, (), "t")) for rows in settled.values()]
    return serving(before, Snapshot.of(kernels, settlements), "now", CALLS, HERE)


def test_where_nothing_is_promoted_the_defaults_serve_and_two_rows_of_the_table_are_the_same_kernels():
    accepted = kernel(1, 1, "now", KernelState.ACCEPTED)
    found = after(EMPTY, accepted)
    assert found == Serving(0, 0, 0) and found.defaults_only
    assert found.text == "None was promoted: the shipped defaults serve, so default and tuned are the same kernels."


def test_another_layout_of_a_weight_is_not_the_same_kernels():
    found = after(EMPTY, rows=64)
    assert found == Serving(0, 0, 1) and not found.defaults_only
    assert "1 weight in a layout" in found.text and "the same kernels" not in found.text


def test_kernels_of_this_run_and_of_earlier_ones_are_told_apart():
    old = kernel(1, 1, "before")
    assert after(Snapshot.of([old]), old).text == "None was promoted by this run; 1 serves in all."
    new = kernel(2, 512, "now")
    assert after(Snapshot.of([old]), old, new).text == "1 kernel promoted by this run; 2 serve in all."


def test_an_earlier_kernel_that_this_run_promoted_counts_and_so_does_what_it_had_promoted_before_it_was_resumed():
    waiting = kernel(1, 1, "before", KernelState.ACCEPTED)
    promoted = dataclasses.replace(waiting, state=KernelState.PROMOTED)
    assert after(Snapshot.of([waiting]), promoted).promoted == 1
    own = kernel(2, 512, "now")
    assert after(Snapshot.of([own]), own).promoted == 1
