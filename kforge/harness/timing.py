"""Timing one candidate: batches of calls on the parent's clock. It ranks a search; ``pairs`` and ``judge`` decide."""

from __future__ import annotations

import random
import secrets
import time
from dataclasses import dataclass

import numpy as np

from kforge.core.summary import Summary
from kforge.core.trial import Failure, FailureClass, Timing
from kforge.harness.expected import Expected
from kforge.harness.process import POISONS, Process, Scratch, TensorArgument
from kforge.harness.session import DRAWS, Session
from kforge.harness.slots import Place
from kforge.operators.base import Role
from kforge.operators.numerics import numpy_dtype

_MAX_CALLS = 1 << 20
_TRIES = 4
_QUIET_SHARE = 0.003
_IDLE_LATE, _IDLE_SHARE = 0.004, 0.02  # seconds, and share of idle time, that an idle process may seem to run
_WATCHES = (0.02, 0.1, 0.5)  # seconds of idleness ahead of each second look at a process that seemed to
_WATCHED_BATCHES, _WATCHED_GAP = 8, 0.003  # of a second look, and seconds of idleness behind each of them
_LEAST_SECONDS, _PATIENCE = 2.0, 10.0  # a batch may take that long, plus so often what it took before


@dataclass(frozen=True)
class Plan:
    """How long and how often. ``batch_seconds`` is a least length; a batch is also ``handovers`` hand-overs long."""

    batch_seconds: float
    batches: int
    handovers: int


SEARCH = Plan(batch_seconds=0.004, batches=5, handovers=60)
PAIRS = Plan(batch_seconds=0.002, batches=30, handovers=40)


@dataclass(frozen=True)
class QuietBatch:
    """Seconds of a batch, and how long its threads waited for a processor as a share of it."""

    seconds: float
    waited_share: float

    @property
    def disturbed(self) -> bool:
        return self.waited_share > _QUIET_SHARE


@dataclass(frozen=True)
class _Since:
    """What a process had run, in seconds, at a time of the parent's clock."""

    ran: float
    at: float


class Stopwatch:
    """A process at its session's workload, ready for batches.

    Every batch starts from poisoned outputs and scratch and restored in/out tensors, so nothing that another process
    (or an earlier batch) left behind is worth reading. Calls read the draws of the inputs in turn (``session``).
    """

    def __init__(self, session: Session, process: Process, threads: int) -> None:
        self._session = session
        self._process = process
        self._threads = threads
        self._arguments: list[TensorArgument] = session.timed_arguments(process)
        self._scratch: Scratch | None = None
        self._pattern = 1 + secrets.randbelow(255)
        self._first = 0
        self._last = 0  # number of the call that wrote the outputs
        self._kept: dict[str, np.ndarray] | None = None
        self._idle: _Since | None = None  # when the last quiet batch was over
        self._idle_ran = self._idle_seconds = 0.0
        self._calls = 1  # of the last batch that had any
        self._slowest = 0.0  # seconds per call of any batch so far
        self._specs = [s for s in session.operator.tensors(session.workload) if s.role is not Role.IN]
        self._places = {s.name: session.slots.place_at_page(s.name, s.bytes) for s in self._specs}

    @property
    def idempotent(self) -> bool:
        """Whether n calls leave what one call leaves. Unknown of in/out tensors: single calls check those."""
        return all(spec.role is Role.OUT for spec in self._specs)

    def prepare(self) -> Failure | None:
        """Asks for the scratch and makes one call, which touches every page."""
        scratch = self._process.timed_scratch(
            self._session.workload, self._threads, self._session.seconds_allowed()
        )
        if isinstance(scratch, Failure):
            return scratch
        self._scratch = scratch
        first = self.batch(1)
        return first if isinstance(first, Failure) else None

    def batch(self, calls: int, draw: int = 0, keep: bool = False) -> float | Failure:
        """Seconds for ``calls`` calls, hand-over included; the first reads inputs of ``draw``.

        With ``keep`` the outputs are copied at once, for ``verify``: what is written after completion was signalled
        comes too late. Then the last call reads the copies that references are kept for: those at a random place that
        go with ``draw``.
        """
        timed = self._session.timed
        step = self._session.step
        if keep:
            self._first += timed.checked[draw] - (self._first + (calls - 1) * step)
        elif (draw - self._first) % DRAWS:
            self._first += step
        self._first %= timed.period
        self._idle = None
        self._reset()
        seconds = self._process.run(self._session.workload, self._arguments, self._scratch, self._threads, calls,
                                    self._first, self._seconds_allowed(calls), step=step)
        self._kept = self.outputs() if keep and not isinstance(seconds, Failure) else None
        self._last = (self._first + (calls - 1) * step) % timed.period
        self._first += calls * step
        if calls and not isinstance(seconds, Failure):
            self._calls = calls
            self._slowest = max(self._slowest, seconds / calls)
        return seconds

    @property
    def position(self) -> int:
        """Number of the next call, which says which copies it reads. Numbers go up by the session's step."""
        return self._first

    @position.setter
    def position(self, number: int) -> None:
        self._first = number

    def watched_batch(self, calls: int, draw: int = 0, keep: bool = False) -> QuietBatch | Failure:
        """A batch, and how long its threads waited for a processor."""
        if (busy := self.background()) is not None:
            return busy
        before = self._process.child.usage()
        seconds = self.batch(calls, draw, keep)
        if isinstance(seconds, Failure):
            return seconds
        batch = QuietBatch(seconds, (self._process.child.usage().waited - before.waited) / seconds)
        # Read anew: a thread that was still on its way to sleep had not been charged with its last stretch.
        self._idle = self._now()
        return batch

    def quiet_batch(self, calls: int, draw: int = 0, keep: bool = False) -> QuietBatch | Failure:
        """A batch in which nobody else had the processor; after a few tries the least disturbed of them.

        Which batches count does not depend on how fast they were, so nothing is favoured.
        """
        tried: list[QuietBatch] = []
        while not tried or (tried[-1].disturbed and len(tried) < _TRIES):
            batch = self.watched_batch(calls, draw, keep)
            if isinstance(batch, Failure):
                return batch
            tried.append(batch)
        return min(tried, key=lambda batch: batch.waited_share)

    def background(self) -> Failure | None:
        """Whether the process runs although it has nothing to do, counted over all times between its quiet batches.

        A thread that the host of a virtual machine held up on its way to sleep is charged late, for milliseconds and
        several times within some tens of them. So what seems to run is looked at again, and fails when it does so in
        every one of those looks: what a kernel gains by computing between batches it gains in most of them or hardly
        at all.
        """
        self._count_idle()
        if not self._runs_idle:
            return None
        if (failure := self._watch()) is not None:
            return failure
        self._idle_ran = self._idle_seconds = 0.0
        return None

    @property
    def _runs_idle(self) -> bool:
        return self._idle_ran > _IDLE_LATE + _IDLE_SHARE * self._idle_seconds

    def _count_idle(self) -> None:
        if self._idle is not None:
            now = self._now()
            self._idle_ran += now.ran - self._idle.ran
            self._idle_seconds += now.at - self._idle.at
            self._idle = now

    def _now(self) -> _Since:
        return _Since(self._process.child.usage().ran, time.monotonic())

    def _watch(self) -> Failure | None:
        """The second looks: None as soon as one sees nothing. What the last batch left stays to be verified."""
        first, last, kept = self._first, self._last, self._kept
        try:
            for idleness in _WATCHES:
                self._idle_ran = self._idle_seconds = 0.0
                for gap in (idleness, *(_WATCHED_GAP,) * _WATCHED_BATCHES):
                    self._idle = self._now()
                    time.sleep(gap)
                    self._count_idle()
                    if isinstance(seconds := self.batch(self._calls), Failure):
                        return seconds
                if not self._runs_idle:
                    return None
        finally:
            self._first, self._last, self._kept = first, last, kept
        detail = f"{self._idle_ran * 1e3:.1f} ms in {self._idle_seconds * 1e3:.1f} ms without work"
        return Failure(FailureClass.BACKGROUND, "the kernel went on computing when its calls were over", detail)

    def _seconds_allowed(self, calls: int) -> float:
        """Before the first call nothing is known but the operator; afterwards a hang shows much sooner."""
        if not self._slowest:
            return self._session.seconds_allowed()
        return _LEAST_SECONDS + _PATIENCE * calls * self._slowest

    def overhead(self, repeats: int = 7) -> float | Failure:
        """Least seconds of a batch of no calls: hand-over to the team and back, undisturbed."""
        found = []
        for _ in range(repeats):
            seconds = self.batch(0)
            if isinstance(seconds, Failure):
                return seconds
            found.append(seconds)
        return min(found)

    def outputs(self) -> dict[str, np.ndarray]:
        """Copies of what stands in the outputs."""
        slots = self._session.slots
        return {
            s.name: slots.view(self._places[s.name]).view(numpy_dtype(s.dtype)).reshape(s.shape).copy()
            for s in self._specs
        }

    def verify(self, expected: Expected) -> Failure | None:
        """Holds what the last batch left in the outputs against what is right; an extra single call where that is
        unknowable.
        """
        if not self.idempotent and isinstance(single := self.batch(1, keep=True), Failure):
            return single
        outputs = self._kept if self._kept is not None and self.idempotent else self.outputs()
        return self._trespass() or expected.verify(outputs, self._last)

    def _trespass(self) -> Failure | None:
        """What the last batch wrote around its outputs and scratch: the rest of their pages, and the page in front."""
        for place in self._written():
            if (offset := self._session.slots.broken_fence(place, self._pattern)) is not None:
                where = f"byte {offset} from the start of {place.slot.name}, which has {place.size}"
                return Failure(FailureClass.FENCE, f"in timed calls the kernel wrote outside {place.slot.name}", where)
        return None

    def _written(self) -> list[Place]:
        return [*self._places.values(), *(self._scratch.places if self._scratch is not None else ())]

    def _reset(self) -> None:
        slots = self._session.slots
        for place in self._written():
            slots.fence(place, self._pattern)
        for spec in self._specs:
            view = slots.view(self._places[spec.name])
            if spec.role is Role.OUT:
                view[:] = POISONS[0]
            else:
                given = self._session.timed.draws[self._first % DRAWS][spec.name]
                view[:] = np.ascontiguousarray(given).reshape(-1).view(np.uint8)
        for place in self._scratch.places if self._scratch is not None else ():
            slots.view(place)[:] = POISONS[0]


def calls_for(plan: Plan, seconds_per_call: float, overhead: float) -> int:
    """Calls per batch. A hand-over measured on a busy machine may be milliseconds: it lengthens a batch fourfold at
    most.
    """
    wanted = min(max(plan.batch_seconds, plan.handovers * overhead), 4 * plan.batch_seconds)
    return max(1, min(_MAX_CALLS, round(wanted / max(seconds_per_call, 1e-9))))


def jittered(calls: int, lucky: random.Random) -> int:
    """``calls`` or up to an eighth more: which call of a batch is the last, whose outputs are looked at, is not to be
    known from the batches before. (One more when there is one: calls that follow each other differ in their inputs.)
    """
    return calls + lucky.randrange(max(calls // 8, 1) + 1)


def estimate(stopwatch: Stopwatch, plan: Plan) -> float | Failure:
    """Rough seconds per call, hand-over included: batches grow to a quarter of the plan's; of that size the best of
    three.
    """
    calls = 1
    found: list[float] = []
    while len(found) < 3:
        seconds = stopwatch.batch(calls)
        if isinstance(seconds, Failure):
            return seconds
        if seconds >= plan.batch_seconds / 4 or calls >= _MAX_CALLS:
            found.append(seconds)
        elif not found:
            calls *= 4
        else:  # the longer one before was an interruption
            found = []
            calls *= 4
    return min(found) / calls


@dataclass(frozen=True)
class Begun:
    """Seconds of a hand-over, and of a call as far as the first batches tell."""

    overhead: float
    rough: float


def begin(stopwatch: Stopwatch, plan: Plan) -> Begun | Failure:
    """What must be known before batches can be planned."""
    if (failure := stopwatch.prepare()) is not None:
        return failure
    overhead = stopwatch.overhead()
    if isinstance(overhead, Failure):
        return overhead
    rough = estimate(stopwatch, plan)
    return rough if isinstance(rough, Failure) else Begun(overhead, rough)


def time_candidate(stopwatch: Stopwatch, expected: Expected, plan: Plan, cut_above: float | None) -> Timing | Failure:
    """Median of batches less the hand-over. One batch is enough when it takes more than ``cut_above`` seconds a call.

    Outputs of two batches, picked at random, are verified.
    """
    begun = begin(stopwatch, plan)
    if isinstance(begun, Failure):
        return begun
    overhead, calls = begun.overhead, calls_for(plan, begun.rough, begun.overhead)
    lucky = random.SystemRandom()
    verified = set(lucky.sample(range(plan.batches), min(2, plan.batches)))
    found: list[float] = []
    for i in range(plan.batches):
        count = jittered(calls, lucky)
        batch = stopwatch.quiet_batch(count, lucky.randrange(DRAWS), keep=i in verified)
        if isinstance(batch, Failure):
            return batch
        # A hand-over that was measured on a disturbed machine may be longer than a batch.
        found.append(max(batch.seconds - overhead, batch.seconds / 2) / count)
        if i in verified and (failure := stopwatch.verify(expected)) is not None:
            return failure
        if cut_above is not None and found[0] > cut_above:
            if not verified & set(range(i + 1)) and (failure := stopwatch.verify(expected)) is not None:
                return failure
            break
    if (failure := stopwatch.background()) is not None:
        return failure
    summary = Summary.of(found)
    return Timing(summary.median, summary.spread, summary.count, calls)
