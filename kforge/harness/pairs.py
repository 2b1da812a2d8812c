"""Candidate and incumbent in two forks of one zygote, taking turns: the only timings that decide anything.

Both read the same physical input pages at the same addresses on the same pinned cores, and write to the same output
pages; while one runs the other sleeps. The order alternates (ABBA or BAAB, by lot), so that a drift of the machine
cancels. Batches are short: a shared machine's noise is slow, so that two batches of 2 ms side by side differ no more
than two of 15 ms, and there are more of them.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from kforge.core.image import Loadable
from kforge.core.trial import Failure, NumericsClass
from kforge.harness.expected import Expected
from kforge.harness.session import DRAWS, Session, TimedInputs
from kforge.harness.timing import PAIRS, Plan, Stopwatch, calls_for, estimate, jittered

MOST_PAIRS = 64  # per zygote
_ZYGOTE_SECONDS = 0.12  # of pairs in one zygote; making it costs about a third of that
_VERIFIED_SHARE = 0.15  # of the pairs, picked at random: outputs of both sides are held against what is right


@dataclass(frozen=True)
class Contestant:
    """One side of a comparison. A failure of its own is told apart from one of the other's by ``hash``."""

    hash: str
    image: Loadable
    numerics: NumericsClass


@dataclass(frozen=True)
class PairedSample:
    """Pairs of batches of candidate and incumbent at one workload.

    ``log_ratios``: log(incumbent's seconds / candidate's) per pair, so that positive means that the candidate is
    faster. ``zygotes``: which zygote each pair is from. ``overheads``: median hand-over per zygote, as a share of a
    batch. ``disturbed``: share of a zygote's batches in which a thread waited for a processor: they count too.
    ``seconds``: median seconds of a candidate's call; ``incumbent_seconds`` of an incumbent's.
    """

    workload: str
    log_ratios: tuple[float, ...]
    zygotes: tuple[int, ...]
    overheads: tuple[float, ...]
    disturbed: tuple[float, ...]
    seconds: float
    incumbent_seconds: float


@dataclass(frozen=True)
class ContestantFailure:
    """A side that failed while it was timed."""

    hash: str
    failure: Failure


def compare(candidate: Contestant, incumbent: Contestant, timed: TimedInputs, cpus: Sequence[int], *,
            pairs: int = MOST_PAIRS, zygotes: int = 1, first_zygote: int = 0,
            plan: Plan = PAIRS) -> PairedSample | ContestantFailure:
    """At most ``pairs`` pairs, and about a tenth of a second of them, in each of ``zygotes`` fresh zygotes, numbered
    from ``first_zygote`` on.

    Which side is forked first alternates from zygote to zygote.
    """
    logs: list[float] = []
    where: list[int] = []
    shares: list[float] = []
    disturbed: list[float] = []
    mine: list[float] = []
    theirs: list[float] = []
    for zygote in range(first_zygote, first_zygote + zygotes):
        with ExitStack() as stack:
            session = stack.enter_context(Session(timed, (), cpus))
            sides: dict[bool, _Side] = {}
            for first in (True, False):
                is_candidate = first == (zygote % 2 == 0)
                contestant = candidate if is_candidate else incumbent
                process = session.start(contestant.image)
                if isinstance(process, Failure):
                    return ContestantFailure(contestant.hash, process)
                stack.callback(process.close)
                stopwatch = Stopwatch(session, process, len(cpus))
                sides[is_candidate] = _Side(contestant, stopwatch, timed.expected(contestant.numerics), [])
            result = _alternate(sides[True], sides[False], pairs, plan)
        if isinstance(result, ContestantFailure):
            return result
        logs += [math.log(y / x) for x, y in zip(sides[True].seconds, sides[False].seconds, strict=True)]
        where += [zygote] * len(sides[True].seconds)
        shares.append(result.overhead)
        disturbed.append(result.waited)
        mine += sides[True].seconds
        theirs += sides[False].seconds
    medians = statistics.median(mine), statistics.median(theirs)
    return PairedSample(timed.workload.key, tuple(logs), tuple(where), tuple(shares), tuple(disturbed), *medians)


@dataclass(frozen=True)
class _Side:
    contestant: Contestant
    stopwatch: Stopwatch
    expected: Expected
    seconds: list[float]  # per call, pair by pair

    def failed(self, failure: Failure) -> ContestantFailure:
        return ContestantFailure(self.contestant.hash, failure)


@dataclass(frozen=True)
class _Noise:
    overhead: float  # hand-over as a share of a batch
    waited: float  # share of the batches in which the threads had to wait for a processor


def _alternate(a: _Side, b: _Side, pairs: int, plan: Plan) -> _Noise | ContestantFailure:
    """Fills both sides' ``seconds``. Every pair counts, whatever disturbed it: leaving some out is a choice too."""
    rough: list[float] = []
    overheads: list[float] = []
    for side in (a, b):
        if (failure := side.stopwatch.prepare()) is not None:
            return side.failed(failure)
        overhead = side.stopwatch.overhead()
        if isinstance(overhead, Failure):
            return side.failed(overhead)
        seconds = estimate(side.stopwatch, plan)
        if isinstance(seconds, Failure):
            return side.failed(seconds)
        overheads.append(overhead)
        rough.append(seconds)
    overhead = min(overheads)
    calls = calls_for(plan, min(rough), overhead)
    lucky = random.SystemRandom()
    waited = 0
    position = 0
    order = (a, b)
    pairs = min(pairs, pairs_for(calls * sum(rough)))
    verified = {pair for pair in range(pairs) if lucky.random() < _VERIFIED_SHARE} or {lucky.randrange(pairs)}
    for pair in range(pairs):
        count, draw = jittered(calls, lucky), lucky.randrange(DRAWS)
        # ABBA or BAAB by lot: neither a drift nor a rhythm of the machine, nor what a batch leaves behind, has a side.
        order = (order[1], order[0]) if pair % 2 or lucky.random() < 0.5 else order
        for side in order:
            # One walk through the copies of the weights for both: a side that read the copies that the other has just
            # read would find some of them in the cache.
            side.stopwatch.position = position
            batch = side.stopwatch.watched_batch(count, draw, keep=pair in verified)
            if isinstance(batch, Failure):
                return side.failed(batch)
            position = side.stopwatch.position
            waited += batch.disturbed
            side.seconds.append(max(batch.seconds - overhead, 1e-9) / count)
            if pair in verified and (failure := side.stopwatch.verify(side.expected)) is not None:
                return side.failed(failure)
    for side in (a, b):
        if (failure := side.stopwatch.background()) is not None:
            return side.failed(failure)
    return _Noise(overhead / (calls * min(rough)), waited / (2 * pairs))


def pairs_for(seconds: float) -> int:
    """How many pairs of ``seconds`` each a zygote is worth: an even number, for the order to cancel."""
    return max(2, 2 * math.ceil(_ZYGOTE_SECONDS / (2 * max(seconds, 1e-6))))


def joined(a: PairedSample, b: PairedSample) -> PairedSample:
    """Two looks at the same comparison, put together."""
    n, m = len(a.log_ratios), len(b.log_ratios)
    return PairedSample(
        a.workload,
        a.log_ratios + b.log_ratios,
        a.zygotes + b.zygotes,
        a.overheads + b.overheads,
        a.disturbed + b.disturbed,
        (a.seconds * n + b.seconds * m) / (n + m),
        (a.incumbent_seconds * n + b.incumbent_seconds * m) / (n + m),
    )
