"""What a check is made of, and the wrong kernels that each part of it is there for."""

from __future__ import annotations

import dataclasses
import json
import secrets
from pathlib import Path
from typing import ClassVar

import pytest
from harness_kernels import PROBLEM, WORKLOAD, after, candidate, changed, with_scratch

from kforge.core.target import Target
from kforge.core.trial import Decision, Failure, FailureClass, NumericsClass, RejectReason, Verdict
from kforge.core.workload import Workload
from kforge.harness import Harness, held_out
from kforge.harness import harness as harness_module
from kforge.harness.cases import plan_cases
from kforge.harness.check import CheckResult
from kforge.harness.held_out import HeldOut
from kforge.harness.repeats import REPEATS
from kforge.operators import Distribution, get
from kforge.tuner.journal import Event, RunFolder

SEED = 20
MANY = Workload.of(PROBLEM, M=64)  # a bucket with room inside
LINEAR = get("linear")


def plan(workload: Workload, seed: int) -> set[int]:
    return {case.workload.axes["M"] for case in plan_cases(LINEAR, workload, seed)}


def test_every_distribution_is_in_every_check() -> None:
    apart = {case.distribution for case in plan_cases(LINEAR, WORKLOAD, SEED)}
    assert apart == set(Distribution)
    together = {case.distribution for case in plan_cases(LINEAR, MANY, SEED)}
    assert {Distribution.NORMAL, Distribution.ONE_HOT, Distribution.ROWS} <= together


def test_inner_shapes_are_odd_and_even_and_depend_on_the_seed() -> None:
    inner = [plan(MANY, seed) - {33, 64} for seed in range(40)]
    assert all({m % 2 for m in shapes} == {0, 1} for shapes in inner)
    assert len(set.union(*inner)) > 25


def reading(x: str) -> str:
    """The right kernel, every x replaced by this expression of it."""
    return candidate().source.replace("x[m * xs + k]", f"({x})").replace("X", "x[m * xs + k]")


WRONG_VALUES = {
    "NaN hidden": "X != X ? 0.0f : X",
    "infinity clamped": "X > 3e38f ? 3e38f : X < -3e38f ? -3e38f : X",
    "denormals flushed": "__builtin_fabsf(X) < 0x1p-126f ? 0.0f : X",
    "right for positive inputs": "__builtin_fabsf(X)",
    "right for negative inputs": "X > 0 ? -X : X",
    "right for small inputs": "X > 1000 ? 1000.0f : X",
    "right for large inputs": "__builtin_fabsf(X) < 1e-3f ? 0.0f : X",
}


@pytest.mark.parametrize("m", [1, 4, 64])
@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_relaxed_kernel_that_is_right_for_some_inputs_only_is_refused(harness: Harness, name: str, m: int) -> None:
    wrong = candidate(reading(WRONG_VALUES[name]), NumericsClass.RELAXED)
    found = harness.check(wrong, Workload.of(PROBLEM, M=m))
    assert isinstance(found, Failure) and found.kind is FailureClass.INCORRECT, found


def test_a_right_kernel_passes_the_held_out_check_with_thousands_of_calls(harness: Harness, threads: int) -> None:
    found = harness.check_held_out(candidate(), WORKLOAD)
    assert isinstance(found, HeldOut), found
    assert found.cases > 2 * len(Distribution)
    assert found.calls >= min(REPEATS, 1000) or threads == 1  # as many as the time allows


def test_a_result_that_differs_in_one_of_a_thousand_calls_is_found(harness: Harness, threads: int) -> None:
    if threads == 1:
        pytest.skip("one thread races with nobody")
    # Outputs of repeated calls lie apart: the address stands for chance.
    seldom = after("if (l->thread == 0 && (unsigned long)out / 64 % 997 == 5) out[1] += 1e-3f;")
    found = harness.check_held_out(seldom, WORKLOAD)
    assert isinstance(found, Failure) and found.kind is FailureClass.NONDETERMINISTIC, found


def test_a_thread_that_waits_for_another_by_luck_is_found(harness: Harness, threads: int) -> None:
    if threads == 1:
        pytest.skip("one thread waits for nobody")
    lucky = with_scratch("64", """
        volatile int *sign = (volatile int *)l->scratch;
        if (l->thread == 0) *sign = 12345;
        if (l->thread == 1) {
            for (volatile int i = 0; i < 3000; ++i) {}
            if (*sign != 12345) out[0] = 7;
        }
    """)
    found = harness.check_held_out(lucky, WORKLOAD)
    assert isinstance(found, Failure), found


def right_at(shapes: set[int]) -> str:
    known = " || ".join(f"M == {m}" for m in sorted(shapes))
    return candidate().source.replace("= acc;", f"= {known} ? acc : acc * 1.01f;")


def test_a_kernel_that_is_right_at_the_checked_shapes_only_fails_the_held_out_check(target: Target,
                                                                                    threads: int) -> None:
    fitted = candidate(right_at(plan(MANY, SEED)))
    with Harness(target, threads, seed=SEED) as harness:
        assert isinstance(harness.check(fitted, MANY), CheckResult)
        found = harness.check_held_out(fitted, MANY)
    assert isinstance(found, Failure) and found.kind in (FailureClass.INCORRECT, FailureClass.INEXACT)


class Accepting:
    """A judge that would accept anything."""

    verdict_of: ClassVar[Verdict] = Verdict(Decision.ACCEPTED, "c", "i", 0.1, 0.05, 0.15, 10, 5, 0.01)

    def __init__(self, *_: object) -> None: ...

    def verdict(self) -> Verdict:
        return self.verdict_of


def test_nothing_that_is_written_tells_what_was_held_out(
    target: Target, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    drawn: list[str] = []

    def watched(operator: object, workload: Workload) -> list[object]:
        cases = made(LINEAR, workload)
        for case in cases:
            drawn.extend([str(case.seed), str(case), f"M={case.workload.axes['M']} "])
        return list(cases)

    made = held_out.held_out_cases
    monkeypatch.setattr(held_out, "held_out_cases", watched)
    monkeypatch.setattr(harness_module, "Judging", Accepting)
    fitted = candidate(right_at(plan(MANY, SEED)))
    with Harness(target, threads, seed=SEED) as harness:
        verdict = harness.judge(fitted, candidate(), [MANY])
    assert verdict.decision is Decision.REJECTED and verdict.reason is RejectReason.FAILED
    assert "held-out" in verdict.text and "linear" in verdict.text
    folder = RunFolder.create(tmp_path, "model")
    folder.write(Event.VERDICT, {"verdict": dataclasses.asdict(verdict)})
    written = "".join(file.read_text() for file in folder.path.rglob("*") if file.is_file())
    shown = capfd.readouterr()
    seen = written + shown.out + shown.err + caplog.text + json.dumps(dataclasses.asdict(verdict))
    assert verdict.text in written
    assert len(drawn) > 40 and not [text for text in drawn if text in seen]


def test_held_out_seeds_are_never_the_same() -> None:
    first, second = ({c.seed for c in held_out.held_out_cases(LINEAR, WORKLOAD)} for _ in range(2))
    assert first.isdisjoint(second)
    assert secrets.randbits is held_out.secrets.randbits  # the operating system's, not a generator with a state


def test_a_row_that_is_wrong_beside_others_only_is_no_exact_kernel(harness: Harness) -> None:
    beside = changed("= acc;", "= M > 2 && m == 1 && n == 3 ? acc * 1.0000002f : acc;")
    found = harness.check(beside, WORKLOAD)
    assert isinstance(found, Failure) and found.kind is FailureClass.INEXACT
