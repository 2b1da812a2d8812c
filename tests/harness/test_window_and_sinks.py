"""Windows and sinks of attention through the whole check: default kernels are exact, kernels with one mistake fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kforge.backends.defaults import default_kernel
from kforge.core.target import Target
from kforge.core.trial import Candidate, Failure, FailureClass, NumericsClass
from kforge.core.workload import Problem, Workload
from kforge.harness import Harness

PLAIN = (Path(__file__).parents[1] / "zoo" / "honest" / "window_and_sinks.cc").read_text()
# One query each and chunks of prompts; contexts on both sides of the window and of a chunk's end.
AXES = [{"T": 3, "S": 3, "B": 20, "pages": 60, "max_context": 300},
        {"T": 24, "S": 2, "B": 20, "pages": 40, "max_context": 300}]


def workload(window: int, sinks: int, **axes: int) -> Workload:
    static = {"Hq": 4, "Hkv": 2, "D": 32, "P": 16, "kv": "f32", "window": window, "sinks": sinks}
    return Workload.of(Problem.of("paged_attention", **static), **axes)


def plain(target: Target, numerics: NumericsClass, *changes: tuple[str, str]) -> Candidate:
    """The plain kernel for a window of 100 and sinks, with these changes."""
    source = PLAIN
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    default = default_kernel(workload(100, 1, **AXES[0]).problem, target)
    return replace(default, source=source, template="test", params=(), numerics=numerics)


SINK = ("M = m > sinks[h] ? m : sinks[h]", "sum = kf::fma(sum, a, kf::exp(sinks[h] - M));")
MISTAKES = {
    "a window one too long": (("WINDOW = 100", "WINDOW = 101"),),
    "no window": (("low = seen > WINDOW ? seen - WINDOW : 0", "low = 0"),),
    "a window one too short": (("WINDOW = 100", "WINDOW = 99"),),
    "a window that begins with its chunk": (("from = c < low ? low - c : 0", "from = 0"),),
    "no sinks": ((SINK[0], "M = m"), (SINK[1], "")),
    "sinks in the maximum only": ((SINK[1], "sum *= a;"),),
    "the sink of the first head": ((SINK[0], "M = m > sinks[0] ? m : sinks[0]"),
                                   (SINK[1], SINK[1].replace("sinks[h]", "sinks[0]"))),
    "scaled sinks": ((SINK[0], "sink = scale * sinks[h], M = m > sink ? m : sink"),
                     (SINK[1], SINK[1].replace("sinks[h]", "sink"))),
    "values that sinks do not scale": (("= o[d] * a / sum", "= o[d] / sum"),),
}


@pytest.mark.parametrize("axes", AXES, ids=["decode", "prefill"])
def test_the_plain_kernel_is_exact(harness: Harness, target: Target, axes: dict[str, int]) -> None:
    found = harness.check(plain(target, NumericsClass.EXACT), workload(100, 1, **axes))
    assert not isinstance(found, Failure), found


@pytest.mark.parametrize("mistake", [pytest.param(name, marks=pytest.mark.slow if i % 2 else ())
                                     for i, name in enumerate(MISTAKES)])
def test_a_mistake_is_beyond_the_bound(harness: Harness, target: Target, mistake: str) -> None:
    found = harness.check(plain(target, NumericsClass.RELAXED, *MISTAKES[mistake]), workload(100, 1, **AXES[0]))
    assert isinstance(found, Failure) and found.kind in (FailureClass.INCORRECT, FailureClass.CRASH), found


@pytest.mark.slow
@pytest.mark.parametrize("axes", AXES, ids=["decode", "prefill"])
@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (0, 1), (1, 0), (16, 1), (100, 1), (300, 0)])
def test_default_kernels_are_exact(harness: Harness, target: Target, window: int, sinks: int,
                                   axes: dict[str, int]) -> None:
    asked = workload(window, sinks, **axes)
    found = harness.check(default_kernel(asked.problem, target), asked)
    assert not isinstance(found, Failure), found
