"""Micro wins are not engine wins: an accepted kernel is promoted only after the engine was run with and without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kforge.core.kernel import KernelRecord, KernelState
from kforge.core.target import Target
from kforge.core.workload import Problem
from kforge.engine.engine import Engine
from kforge.engine.kernel_set import DefaultKernels, KernelSet, Overlay, TunedKernels
from kforge.engine.weights import Weights
from kforge.models.model import Model
from kforge.models.workloads import Mode
from kforge.registry.database import Registry
from kforge.registry.snapshot import Snapshot
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.location import Location, locate
from kforge.tuner.modes import ModeDriver
from kforge.tuner.options import TuneOptions
from kforge.tuner.progress import Watcher

PAIRS = 40
NOT_SLOWER = 0.01  # the engine's gain must be above minus this, its lower bound above minus the floor too


@dataclass(frozen=True)
class EngineVerdict:
    """The engine in one mode with and without the new kernels of one problem."""

    problem: str
    mode: str
    gain: float  # robust location of without / with, minus one
    lower: float
    upper: float
    same_tokens: bool
    calls: int  # of the new kernels, while they were measured
    pairs: int
    floor: float = 0.0  # how far an engine can seem to be from itself in this mode, now

    @property
    def promotes(self) -> bool:
        not_slower = self.gain > -NOT_SLOWER and self.lower > -max(NOT_SLOWER, self.floor)
        return self.same_tokens and self.calls > 0 and not_slower

    @property
    def reason(self) -> str:
        if not self.same_tokens:
            return f"the engine's tokens differ in {self.mode}"
        if self.calls == 0:
            return f"the engine did not call it in {self.mode}"
        floor = f", A/A {100 * self.floor:.1f} %" if self.floor > NOT_SLOWER else ""
        return f"engine {100 * self.gain:+.1f} % in {self.mode} (at least {100 * self.lower:+.1f} %{floor})"


def as_if_promoted(snapshot: Snapshot, accepted: Sequence[KernelRecord]) -> Snapshot:
    """The registry as it would be with every accepted kernel promoted."""
    replaced = {(k.problem, k.bucket, k.target_identity) for k in accepted}
    kept = [
        k
        for k in snapshot.kernels
        if k.id not in {a.id for a in accepted}
        and not (k.state is KernelState.PROMOTED and (k.problem, k.bucket, k.target_identity) in replaced)
    ]
    new = [dataclasses.replace(k, state=KernelState.PROMOTED) for k in accepted]
    return Snapshot.of([*kept, *new], snapshot.settlements)


class Promotion:
    """Runs the engine in pairs, decides per kernel, and writes the states."""

    def __init__(
        self,
        model: Model,
        target: Target,
        registry: Registry,
        folder: RunFolder,
        options: TuneOptions,
        watcher: Watcher,
    ):
        self._model, self._target, self._registry = model, target, registry
        self._folder, self._options, self._watcher = folder, options, watcher
        self._weights = Weights(model)  # one copy for all engines of this comparison
        self._default = DefaultKernels(target)

    def engine(self, kernels: KernelSet, mode: Mode) -> Engine:
        """An engine with just the memory that this mode needs, on the shared weights."""
        tokens = mode.sequences * (mode.context + 128)
        return Engine(
            self._model,
            kernels,
            threads=self._options.threads,
            kv=self._options.kv,
            act=self._options.act,
            max_sequences=max(mode.sequences, 1),
            kv_tokens=tokens,
            weights=self._weights,
        )

    def promote(
        self,
        before: Snapshot,
        now: Snapshot,
        accepted: Sequence[KernelRecord],
        modes: Sequence[Mode],
        time_is_up: Callable[[], bool],
    ) -> list[EngineVerdict]:
        """``before``: the registry when the run began; ``now``: with its settlements. A kernel is promoted when every
        mode that calls it is not slower and gives the same tokens; what was not reached stays accepted."""
        tuned = TunedKernels(as_if_promoted(now, accepted), self._registry.store, self._default)
        old = TunedKernels(Snapshot.of(before.kernels, now.settlements), self._registry.store, self._default)
        verdicts = [self._from_json(d) for d in self._folder.of(Event.PROMOTION)]
        known = {(v.problem, v.mode) for v in verdicts}
        problems = list(dict.fromkeys(k.problem for k in accepted))
        for mode in modes:
            missing = [p for p in problems if (p.key, mode.name) not in known]
            if missing and not time_is_up():
                verdicts += self._mode(mode, missing, accepted, tuned, old, time_is_up)
        for kernel in accepted:
            self._decide(kernel, [v for v in verdicts if v.problem == kernel.problem.key])
        return verdicts

    def _mode(
        self,
        mode: Mode,
        problems: Sequence[Problem],
        accepted: Sequence[KernelRecord],
        tuned: KernelSet,
        old: KernelSet,
        time_is_up: Callable[[], bool],
    ) -> list[EngineVerdict]:
        verdicts = []
        with ModeDriver(self.engine(tuned, mode), mode) as new:
            new.burst()
            engaged = new.used()
            with ModeDriver(self.engine(tuned, mode), mode) as itself:
                floor = _pairs(new, itself).apparent
            for problem in problems:
                hashes = {k.candidate_hash for k in accepted if k.problem == problem}
                if not hashes & engaged.keys() or time_is_up():
                    continue
                before = new.used()
                with ModeDriver(self.engine(Overlay(tuned, {problem.key: old}, "without"), mode), mode) as without:
                    pairs = _pairs(new, without)
                calls = sum(n - before.get(h, 0) for h, n in new.used().items() if h in hashes)
                at = pairs.location
                verdict = EngineVerdict(
                    problem.key, mode.name, at.gain, at.lower, at.upper, pairs.same_tokens, calls, PAIRS, floor
                )
                self._folder.write(Event.PROMOTION, dataclasses.asdict(verdict))
                self._watcher.note(f"{problem.key}: {verdict.reason}")
                verdicts.append(verdict)
        return verdicts

    def _decide(self, kernel: KernelRecord, verdicts: Sequence[EngineVerdict]) -> None:
        if not verdicts:
            self._watcher.note(
                f"{kernel.candidate_hash}: accepted, not promoted: the time did not reach its engine run"
            )
            return
        evidence: dict[str, object] = {"engine": [dataclasses.asdict(v) for v in verdicts]}
        reason = "; ".join(v.reason for v in verdicts)
        state = KernelState.PROMOTED if all(v.promotes for v in verdicts) else KernelState.ACCEPTED
        self._registry.set_state(kernel.id, state, reason, evidence)

    @staticmethod
    def _from_json(data: dict) -> EngineVerdict:
        return EngineVerdict(**data)


@dataclass(frozen=True)
class _Pairs:
    """Bursts of two engines, one with and one without something: ratios without / with."""

    location: Location
    same_tokens: bool

    @property
    def apparent(self) -> float:
        """How far apart the two seem to be, either way."""
        return max(abs(self.location.lower), abs(self.location.upper))


def _pairs(new: ModeDriver, old: ModeDriver) -> _Pairs:
    """Alternating bursts of two engines from the same start, ABBA."""
    new.restart()
    old.restart()
    same = new.burst().output == old.burst().output
    ratios = []
    for n in range(PAIRS):
        first, second = (new, old) if n % 2 == 0 else (old, new)
        a, b = first.burst(), second.burst()
        same &= a.output == b.output
        fresh, stale = (a, b) if first is new else (b, a)
        ratios.append(stale.seconds / fresh.seconds)
    return _Pairs(locate(ratios), same)
