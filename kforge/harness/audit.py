"""The audit: calls on inputs that nobody has seen, before a gain is believed.

In a batch a kernel makes the next call without the parent, so it might remember something from the one before, or end
early; what it runs in is its own address space. Here, before every command and outside the timed interval, the parent
poisons outputs and scratch, gives the hot inputs values that it has just drawn (the same for both sides), and picks
where the copies of the streamed ones begin. A command is a single call. Where that is too short to be told from the
hand-over it is a few, their number unknown to the kernel, each with inputs and outputs of its own. So nothing that a
kernel could remember helps it, a call that was not made leaves poison, and one that was made ahead leaves its traces
where nothing may be written.

Hot tensors are in the caches again when a command begins, and the processors stay awake between two commands
(``awake``): what is left of a call's time is then the call's.

What says that a command is over lies in memory of the kernel's own process, too, so that the clock can be stopped
before the work is done. The operating system's account of what the process ran cannot: whatever it did from one command
to its next is charged to the first, in the thread that ran most. A saving counts as far as both show it.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from kforge.core.trial import Failure, NumericsClass
from kforge.core.workload import Workload
from kforge.harness.audit_side import Command, Side
from kforge.harness.cases import Answer, solve
from kforge.harness.check import judge_outputs
from kforge.harness.judge import hodges_lehmann
from kforge.harness.pairs import Contestant, ContestantFailure
from kforge.harness.session import GAP_LINES, NUMBERS, Session, TimedInputs, redrawn
from kforge.operators.base import Operator, Residency, Role

AUDIT_ZYGOTES = 3
_SECONDS = 0.4  # of one zygote, without what verifying takes
_PAIRS = (24, 2000)  # of one zygote, least and most
_BLOCKS = 8  # of a zygote's pairs, each summarised by a robust location
_WARM_PAIRS = 3
_EMPTY_EVERY = 8  # pairs between two empty commands
_COMMAND_SECONDS = 150e-6  # several hand-overs
_MOST_CALLS = 256
_HOT_BYTES = 3 << 20  # of all calls of a command together: what caches of a core or two hold
_WAITED_SECONDS, _LEAST_KEPT = 40e-6, 0.3  # of a pair; at least this share of the pairs counts
_VERIFIED_SHARE = 0.1
_THOROUGH_SHARE = 0.5
_VERIFYING_SHARE = 0.4  # of the time, at most, once the least were verified
_LEAST_VERIFIED = 2


@dataclass(frozen=True)
class AuditSample:
    """Audited calls of candidate and incumbent at one workload.

    ``saved``: seconds that a call of the candidate takes less than one of the incumbent, a robust location for each
    block of pairs; ``spared``: seconds that it runs less, as the system counts. ``seconds``: median of a candidate's
    call, hand-over taken off; ``ran``: of what it runs. ``verified``: pairs of which an output was held against the
    operator's reference.
    """

    workload: str
    saved: tuple[float, ...]
    spared: tuple[float, ...]
    seconds: float
    ran: float
    pairs: int
    verified: int


def audit(candidate: Contestant, incumbent: Contestant, timed: TimedInputs, cpus: Sequence[int], *, seconds: float,
          zygote: int = 0, thorough: bool = False) -> AuditSample | ContestantFailure:
    """Audits in one fresh zygote. Which side is forked first alternates with its number.

    ``seconds``: about what a call takes. ``thorough``: five times as many outputs are verified.
    """
    calls = calls_per_command(timed.operator, timed.workload, seconds)
    with ExitStack() as stack:
        session = stack.enter_context(Session(timed, (), cpus, copies=_most(calls)))
        sides: dict[bool, Side] = {}
        for first in (True, False):
            is_candidate = first == (zygote % 2 == 0)
            contestant = candidate if is_candidate else incumbent
            process = session.start(contestant.image)
            if isinstance(process, Failure):
                return ContestantFailure(contestant.hash, process)
            stack.callback(process.close)
            sides[is_candidate] = Side(contestant, session, process, len(cpus))
        return _Audit(session, sides[True], sides[False], calls, thorough).run()


def joined_audits(samples: Sequence[AuditSample]) -> AuditSample:
    """Audits of the same two kernels at the same workload, put together."""
    pairs = sum(sample.pairs for sample in samples)
    seconds = sum(sample.seconds * sample.pairs for sample in samples) / pairs
    ran = sum(sample.ran * sample.pairs for sample in samples) / pairs
    saved = tuple(value for sample in samples for value in sample.saved)
    spared = tuple(value for sample in samples for value in sample.spared)
    verified = sum(sample.verified for sample in samples)
    return AuditSample(samples[0].workload, saved, spared, seconds, ran, pairs, verified)


def calls_per_command(operator: Operator, workload: Workload, seconds: float) -> int:
    """So many that a command can be told from its hand-over, as far as their inputs and outputs stay in cache."""
    hot = sum(s.bytes for s in operator.tensors(workload) if s.residency is Residency.HOT)
    return max(1, min(round(_COMMAND_SECONDS / max(seconds, 1e-9)), _MOST_CALLS, _HOT_BYTES // max(hot, 1)))


def _most(calls: int) -> int:
    """Largest number that a command of about ``calls`` may have."""
    return calls + calls // 4


@dataclass
class _Clocked:
    calls: list[float] = field(default_factory=list)  # seconds per call, hand-over included
    ran: list[float] = field(default_factory=list)  # of the busiest thread until the next command, per call
    waited: list[float] = field(default_factory=list)  # of each command, for a processor
    empty: list[float] = field(default_factory=list)  # seconds of an empty command


class _Audit:
    """One zygote's audit: pairs of commands until its time is up."""

    def __init__(self, session: Session, mine: Side, theirs: Side, calls: int, thorough: bool) -> None:
        self._session = session
        self._sides = (mine, theirs)
        self._calls = calls
        self._share = _THOROUGH_SHARE if thorough else _VERIFIED_SHARE
        self._rng = np.random.Generator(np.random.SFC64(secrets.randbits(128)))
        self._specs = session.operator.tensors(session.workload)
        self._streamed = any(s.role is Role.IN and s.residency is Residency.STREAMED for s in self._specs)
        self._period = session.timed.period
        self._exact = {side.contestant.numerics for side in self._sides} == {NumericsClass.EXACT}
        self._verified, self._verifying = 0, 0.0

    def run(self) -> AuditSample | ContestantFailure:
        for side in self._sides:
            if (failure := side.prepare()) is not None:
                return side.failed(failure)
        clocked = (_Clocked(), _Clocked())
        started = time.monotonic()
        pair = -_WARM_PAIRS
        while pair < _PAIRS[1] and (pair < _PAIRS[0] or time.monotonic() - started < _SECONDS + self._verifying):
            command = self._draw()
            due = self._verified < _LEAST_VERIFIED and pair >= _PAIRS[0] - _LEAST_VERIFIED + self._verified
            affordable = self._verifying < _VERIFYING_SHARE * (time.monotonic() - started)
            verify = due or (affordable and self._rng.random() < self._share)
            if (failed := self._pair(pair, command, clocked, verify)) is not None:
                return failed
            if pair % _EMPTY_EVERY == 0:
                for side, times in zip(self._sides, clocked, strict=True):
                    empty = side.run(command, calls=0)
                    if isinstance(empty, Failure):
                        return side.failed(empty)
                    times.empty.append(empty)
            pair += 1
        for side, times in zip(self._sides, clocked, strict=True):
            times.ran.extend(side.charges()[-len(times.calls):])
        return self._sample(*clocked)

    def _pair(self, pair: int, command: Command, clocked: tuple[_Clocked, _Clocked],
              verify: bool) -> ContestantFailure | None:
        """Both sides do the command, in alternating order, and are held against each other or against what is right."""
        left: list[dict[str, np.ndarray]] = [{}, {}]
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            side = self._sides[which]
            before = side.waited()
            seconds = side.run(command, command.calls)
            if isinstance(seconds, Failure):
                return side.failed(seconds)
            waited = side.waited() - before
            if verify or self._exact:
                left[which] = side.outputs(command)
            if verify and (failure := side.trespass(command)) is not None:
                return side.failed(failure)
            if pair >= 0:
                clocked[which].calls.append(seconds / command.calls)
                clocked[which].waited.append(waited)
        # Two exact kernels that disagree: one of them is wrong, and it will be said which.
        odd = self._exact and any(_differ(left[0][name], left[1][name]) for name in left[0])
        if not verify and not odd:
            return None
        before = time.monotonic()
        for row in range(command.calls) if odd else (self._row(command),):
            if (failed := self._verify(command, row, left)) is not None:
                return failed
        self._verified += 1
        self._verifying += time.monotonic() - before
        return None

    def _verify(self, command: Command, row: int, left: Sequence[Mapping[str, np.ndarray]]) -> ContestantFailure | None:
        """Holds both sides' outputs of one call against the operator's reference."""
        written = [s for s in self._specs if s.role is not Role.IN]
        answers: dict[NumericsClass, Answer] = {}
        for side, outputs in zip(self._sides, left, strict=True):
            numerics = side.contestant.numerics
            if numerics not in answers:
                operator, workload = self._session.operator, self._session.workload
                answers[numerics] = solve(operator, workload, command.inputs(row), numerics)
            result = judge_outputs(written, {s.name: outputs[s.name][row] for s in written}, answers[numerics])
            if isinstance(result, Failure):
                return side.failed(Failure(result.kind, f"in an audited call {result.reason}", result.detail))
        return None

    def _row(self, command: Command) -> int:
        """One to verify, at random; where all calls write to one tensor, the last."""
        shared = any(s.role is Role.INOUT and s.residency is Residency.STREAMED for s in self._specs)
        return command.last if shared else int(self._rng.integers(command.calls))

    def _draw(self) -> Command:
        """The next command, which both sides will do. Streamed inputs and indices are known, all other values new."""
        calls = int(self._rng.integers(self._calls, _most(self._calls) + 1))
        first = int(self._rng.integers(self._period * calls))
        timed = self._session.timed
        fixed = tuple(timed.inputs(first + (row - first) % calls if self._streamed else first) for row in range(calls))
        hot = [s for s in self._specs if s.residency is Residency.HOT and s.role is not Role.OUT]
        given = {s.name: redrawn(timed.draws[0][s.name], calls, self._rng) if s.dtype in NUMBERS
                 else np.stack([inputs[s.name] for inputs in fixed]) for s in hot}
        return Command(calls, first, int(self._rng.integers(1, GAP_LINES + 1)), given, fixed)

    def _sample(self, mine: _Clocked, theirs: _Clocked) -> AuditSample:
        handover = statistics.median([*mine.empty, *theirs.empty])
        # Where others had the processor, the pairs that they disturbed least: how fast a pair was does not count.
        waited = np.add(mine.waited, theirs.waited)
        kept = waited <= max(_WAITED_SECONDS, float(np.quantile(waited, _LEAST_KEPT)))
        saved = _by_blocks(np.subtract(theirs.calls, mine.calls)[kept])
        spared = _by_blocks(np.subtract(theirs.ran, mine.ran)[kept])
        seconds = statistics.median(mine.calls) - handover / (self._calls + _most(self._calls)) * 2
        return AuditSample(self._session.workload.key, saved, spared, max(seconds, 1e-9),
                           max(statistics.median(mine.ran), 1e-9), len(mine.calls), self._verified)


def _by_blocks(values: np.ndarray) -> tuple[float, ...]:
    return tuple(hodges_lehmann(block.tolist()) for block in np.array_split(values, min(_BLOCKS, len(values))))


def _differ(a: np.ndarray, b: np.ndarray) -> bool:
    bits = np.dtype(f"u{a.dtype.itemsize}")
    return not np.array_equal(a.view(bits), b.view(bits))
