"""The tree of attempts at a task: which branch is thought about next, what a template deserves, when to rest.

Everything here is a function of the ideas that were asked for and of the outcomes that were told, so that a resumed run
and a replay come to the same choices. What is still being thought about has no influence but that it was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kforge.agent.readings import Reading, best_readings, told_apart
from kforge.core.trial import Timing
from kforge.tuner.proposals import Outcome, Situation, Tried

PROGRESS = 0.01  # gain that counts as one
STAGNANT = 3  # ideas without progress, one after another, before another approach is asked for
FRUITLESS = 6  # the same where most came to nothing that could be tried
PATIENCE = 8  # and before a task is left alone
CLOSE = 0.95  # of the limit: what is left is not worth a call
_DISTURBED = 0.95  # of an empty call: nothing that works takes less
WEIGHS = 0.02  # share of a task's time from which on a bucket counts
FIRST_TRIALS = 6  # of a new template; those that stay in the race get twice as many, and so on
MOST_TRIALS = 96
_CURIOSITY = 0.1  # weight of the confidence bound: relative speeds of templates worth a thought differ by about this
_WIDE_CURIOSITY = 0.4
GIVEN_UP = 3  # points that may fail before a template of which none ran gets no more

Seconds = Mapping[str, float]  # bucket -> of one call


@dataclass(frozen=True)
class Branch:
    """Where the next idea starts. ``parent``: hash of the template that it may change, "" for a new one.

    ``turn``: ideas already asked for in this task since an outcome was last told: two that think side by side must not
    think the same. ``exhausted``: moves that brought nothing, to be left alone; empty unless the search has widened.
    """

    parent: str
    wide: bool = False
    turn: int = 0
    exhausted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rest:
    """Why a task needs no further idea."""

    reason: str


@dataclass(frozen=True)
class Idea:
    """One attempt, from the moment at which it was asked for.

    ``ordinal``: ideas asked for about the same parent before, in any task. ``told``: outcomes of the task known then.
    ``before``: the best seconds of each bucket then: what gains are measured against; ``margins``: how far from them
    the true ones may have been. ``mends``: id of the proposal whose failure it repairs; ``root``: number of the idea
    that the chain of repairs began with.
    """

    number: int  # in the run, from 0 on
    task: str
    branch: Branch
    ordinal: int
    told: int
    before: tuple[tuple[str, float], ...]
    root: int
    mends: str = ""
    margins: tuple[tuple[str, float], ...] = ()

    @property
    def id(self) -> str:
        """Of the proposal that may come of it."""
        return f"idea-{self.number:03d}"

    @property
    def readings(self) -> dict[str, Reading]:
        """The best of each bucket when it was asked for."""
        margins = dict(self.margins)
        return {bucket: Reading(seconds, margins.get(bucket, 0.0)) for bucket, seconds in self.before}


@dataclass(frozen=True)
class Result:
    """What became of an idea. ``gain``: by the search's times, of which those that cannot be told apart count as equal;
    None while nothing of it ran, or where there was nothing to compare with."""

    idea: Idea
    outcome: Outcome
    seconds: Seconds
    gain: float | None

    @property
    def settled(self) -> bool:
        """Whether it had its first share of trials, or all that there are, or failed as often as is enough."""
        outcome = self.outcome
        if outcome.verdicts or not outcome.tried:
            return bool(outcome.verdicts) or outcome.failure is not None
        there = math.prod(len(param.choices) for param in outcome.proposal.template.params)
        return len(outcome.tried) >= min(FIRST_TRIALS if self.seconds else GIVEN_UP, there)

    @property
    def progress(self) -> bool:
        """A gain, or the first template of a task that works."""
        return self.gain >= PROGRESS if self.gain is not None else bool(self.seconds) and not self.idea.before


def best_seconds(tried: Iterable[Tried]) -> dict[str, float]:
    """The fastest right point of each bucket. Below what the clock resolves nothing can be compared."""
    return {bucket: found.seconds for bucket, found in best_readings(tried).items()}


def gain(own: Seconds, before: Seconds, weights: Mapping[str, float]) -> float | None:
    """How much faster the task is with the better of both in each bucket, as a ratio minus one. Where it is better in
    none, how it compares in those that were measured: zero or less."""
    known = [b for b in sorted(weights) if before.get(b) and weights[b] > 0]
    measured = [b for b in known if own.get(b)]
    if not measured:
        return None
    old = sum(weights[b] * before[b] for b in known)
    new = sum(weights[b] * min(own.get(b, before[b]), before[b]) for b in known)
    if new < old:
        return old / new - 1
    return sum(weights[b] * before[b] for b in measured) / sum(weights[b] * own[b] for b in measured) - 1


def result_of(idea: Idea, outcome: Outcome, weights: Mapping[str, float], empty_call: Timing | None = None) -> Result:
    own = best_readings(outcome.tried, empty_call)
    seconds = {bucket: found.seconds for bucket, found in own.items()}
    return Result(idea, outcome, seconds, gain(told_apart(own, idea.readings), dict(idea.before), weights))


def results(ideas: Sequence[Idea], situation: Situation) -> list[Result]:
    """Of the proposals that came of ideas, in their order, whether they have been tried or wait."""
    by_id = {idea.id: idea for idea in ideas}
    found = []
    for outcome in situation.outcomes:
        if (idea := by_id.get(outcome.proposal.id)) is not None:
            found.append(result_of(idea, outcome, situation.weights, empty_call(situation)))
    return found


def shares(situation: Situation, best: Seconds) -> dict[str, float]:
    """Share of each bucket in the task's time at its best; empty before anything was measured."""
    costs = {b: w * best[b] for b, w in sorted(situation.weights.items()) if b in best}
    total = sum(costs.values())
    return {b: cost / total for b, cost in costs.items()} if total > 0 else {}


def empty_call(situation: Situation) -> Timing | None:
    """What was measured of a call that does nothing; None where one that works took less: other load was in the way
    then."""
    best = min(best_seconds(situation.tried).values(), default=math.inf)
    found = situation.empty_call
    return found if found is not None and found.seconds * _DISTURBED <= best else None


def least_seconds(situation: Situation, bucket: str) -> float:
    """What no kernel's call gets below: the target's limit, or a call that does nothing, whichever is longer."""
    empty = empty_call(situation)
    return max(situation.limits.get(bucket, 0.0), empty.seconds if empty else 0.0)


def promise(situation: Situation) -> float:
    """Share of a step that the task could still give back: its times above the least, weighted."""
    best = best_seconds(situation.tried)
    if not best:
        return situation.share
    over = {b: max(seconds - least_seconds(situation, b), 0.0) for b, seconds in best.items()}
    return sum(weight * over[b] for b, weight in sorted(situation.weights.items()) if b in over)


def near_limit(situation: Situation) -> bool:
    """Whether every bucket that weighs is within a few percent of the least time that a call can take."""
    best = best_seconds(situation.tried)
    heavy = [b for b, share in shares(situation, best).items() if share >= WEIGHS]
    return bool(heavy) and all(least_seconds(situation, b) >= CLOSE * best[b] for b in heavy)


def speed(own: Seconds, best: Seconds, share: Mapping[str, float]) -> float:
    """Of a template beside the best of each bucket, weighted: 1 when it is the best in all of them."""
    return sum(s * min(best[b] / own[b], 1.0) for b, s in share.items() if b in own)


def choose(ideas: Sequence[Idea], situation: Situation) -> Branch | Rest:
    """The branch that the next call of a model is spent on: upper confidence bounds over the templates that compete."""
    if near_limit(situation):
        return Rest(f"it is within {1 - CLOSE:.0%} of the limit in every bucket that weighs")
    mine = [i for i in ideas if i.task == situation.task.problem.key]
    done = results(mine, situation)
    last = max((r.idea.number for r in done if r.progress), default=-1)
    since = [i for i in mine if i.number > last and not i.mends]
    if len(since) >= PATIENCE:
        return Rest(f"{len(since)} ideas, one after another, made no progress")
    unlucky = [r for r in done if r.idea.number > last and r.settled]
    wide = len({r.idea.root for r in unlucky}) >= STAGNANT or len(since) >= FRUITLESS
    if wide and not any(i.branch.parent == "" for i in since):
        parent = ""
    else:
        parent = _most_promising(mine, situation, _WIDE_CURIOSITY if wide else _CURIOSITY)
    told = len(situation.outcomes)
    turn = sum(1 for i in mine if i.told == told and not i.mends)
    exhausted = tuple(dict.fromkeys(_move(r) for r in unlucky)) if wide else ()
    return Branch(parent, wide, turn, exhausted)


def _most_promising(mine: Sequence[Idea], situation: Situation, curiosity: float) -> str:
    best = best_seconds(situation.tried)
    share = shares(situation, best)
    visits = {t.hash: sum(1 for i in mine if i.branch.parent == t.hash and not i.mends) for t in situation.templates}
    total = sum(visits.values())

    def bound(template: str) -> float:
        own = best_seconds(t for t in situation.tried if t.template_hash == template)
        return speed(own, best, share) + curiosity * math.sqrt(math.log(1 + total) / (1 + visits[template]))

    return max(visits, key=bound, default="")  # the first of equals: templates come fastest first


def _move(result: Result) -> str:
    return f"{result.outcome.proposal.bottleneck}: {result.outcome.proposal.move[:200]}"


def deserved_trials(outcomes: Sequence[Outcome], situation: Situation) -> dict[str, int]:
    """Proposal -> how many of its points deserve a trial in all: asynchronous successive halving.

    A template that has had its share gets twice as many when it is in the better half of those that came as far, or
    leads in a bucket that weighs (Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020).
    """
    best = best_seconds([*situation.tried, *(t for o in outcomes for t in o.tried)])
    share = shares(situation, best)
    own = {o.proposal.id: best_seconds(o.tried) for o in outcomes}
    count = {o.proposal.id: len(o.tried) for o in outcomes}
    value = {name: speed(seconds, best, share) for name, seconds in own.items()}

    def share_of(name: str) -> int:
        if not own[name]:
            return count[name] if count[name] >= GIVEN_UP else FIRST_TRIALS
        rung = FIRST_TRIALS
        while rung <= count[name] and rung < MOST_TRIALS:
            peers = sorted((value[other] for other in count if own[other] and count[other] >= rung), reverse=True)
            leads = any(b in own[name] and own[name][b] <= best[b] for b, s in share.items() if s >= WEIGHS)
            if not leads and value[name] < peers[(len(peers) + 1) // 2 - 1]:
                break
            rung *= 2
        return min(rung, MOST_TRIALS)

    return {name: share_of(name) for name in own}


@dataclass(frozen=True)
class Calibration:
    """How good a model's predictions have been: ``ratio`` is the median of (1 + measured) / (1 + predicted)."""

    count: int
    right_sign: int  # promised a gain of at least PROGRESS, and got one
    ratio: float


def calibration(done: Sequence[Result]) -> Calibration | None:
    """None before the first measured prediction."""
    pairs = [(r.outcome.proposal.predicted, r.gain) for r in done if r.gain is not None and r.settled]
    if not pairs:
        return None
    ratios = sorted((1 + measured) / (1 + predicted) for predicted, measured in pairs)
    middle = len(ratios) // 2
    median = ratios[middle] if len(ratios) % 2 else (ratios[middle - 1] + ratios[middle]) / 2
    return Calibration(len(pairs), sum(m >= PROGRESS for _, m in pairs), median)
