"""What a call takes whose kernel does nothing: the least of all."""

from __future__ import annotations

from kforge.backends.defaults import default_kernel
from kforge.core.target import Target
from kforge.core.trial import Timing
from kforge.core.workload import Problem, Workload
from kforge.harness import Harness


def test_an_empty_call_takes_some_time_and_less_than_one_that_computes(target: Target) -> None:
    problem = Problem.of("rms_norm", H=576, residual=1)
    with Harness(target, 1) as harness:  # alone: no other thread is waited for
        empty = harness.empty_call(Workload.of(problem, T=1))
        working = harness.evaluate(default_kernel(problem, target), Workload.of(problem, T=512), check=False)
    assert isinstance(empty, Timing) and working.timing is not None, working.failure
    assert 0 < empty.seconds < working.timing.seconds and empty.batches > 1
