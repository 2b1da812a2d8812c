"""What a call takes whose kernel does nothing, launch and barrier, in batches as a search times them: the least."""

from __future__ import annotations

from kforge.core.launch import Launch
from kforge.core.summary import Summary
from kforge.core.trial import Candidate, Failure, NumericsClass, Timing
from kforge.core.workload import Problem, stable_hash
from kforge.harness.timing import Plan, Stopwatch, begin, calls_for

_BATCHES = 15
_LONGEST = 20e-6  # seconds of an empty call, beyond which other load was in the way of its estimate
_SOURCE = """#include <kforge/abi.h>
extern "C" void kforge_kernel(const kf_launch *) {}
"""


_OPENCL = "__kernel void nothing(void) {}\n"


def empty_kernel(problem: Problem, backend: str = "cpp") -> Candidate:
    """Of backend ``cpp`` or ``opencl``."""
    source = _SOURCE if backend == "cpp" else _OPENCL
    launches = () if backend == "cpp" else (Launch("nothing", ("1",), (), ("1",)),)
    return Candidate(problem, backend, "file:empty", stable_hash(source), (), source, NumericsClass.EXACT, (),
                     launches=launches)


def time_empty(stopwatch: Stopwatch, plan: Plan) -> Timing | Failure:
    """The least of some batches, less the hand-over: a floor, to which other load only ever adds."""
    begun = begin(stopwatch, plan)
    if isinstance(begun, Failure):
        return begun
    overhead, calls = begun.overhead, calls_for(plan, min(begun.rough, _LONGEST), begun.overhead)
    found: list[float] = []
    for _ in range(_BATCHES):
        batch = stopwatch.quiet_batch(calls)
        if isinstance(batch, Failure):
            return batch
        found.append(max(batch.seconds - overhead, batch.seconds / 2) / calls)
    summary = Summary.of(found)
    return Timing(min(found), summary.spread, summary.count, calls)
