"""Micro wins are not engine wins: an accepted kernel is promoted only after the engine was run with and without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kforge.core.kernel import KernelRecord, KernelState
from kforge.core.workload import Problem
from kforge.engine.kernel_set import KernelSet, Overlay, TunedKernels
from kforge.models.workloads import Mode
from kforge.registry.database import Registry
from kforge.registry.snapshot import Snapshot
from kforge.tuner.engine_pairs import EnginePairs, interleave
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.progress import Watcher

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
    def word(self) -> str:
        """What the engine says in this mode, which alone decides nothing."""
        if not self.same_tokens:
            return "other tokens"
        if self.calls == 0:
            return "not called"
        if self.promotes:
            return "not slower"
        return "slower" if self.gain <= -NOT_SLOWER else "may be slower"

    @property
    def reason(self) -> str:
        if not self.same_tokens:
            return f"the engine's tokens differ in {self.mode}"
        if self.calls == 0:
            return f"the engine did not call it in {self.mode}"
        floor = f"; two equal engines differ by up to {100 * self.floor:.1f} %" if self.floor > NOT_SLOWER else ""
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


@dataclass(frozen=True)
class _Reached:
    """One mode's verdicts, and the problems (by key) that the time did not reach in it."""

    verdicts: tuple[EngineVerdict, ...]
    unreached: frozenset[str]


class Promotion:
    """Runs the engine in pairs, decides per kernel, and writes the states."""

    def __init__(self, pairs: EnginePairs, registry: Registry, folder: RunFolder, watcher: Watcher):
        self._pairs, self._registry, self._folder, self._watcher = pairs, registry, folder, watcher

    def promote(
        self,
        before: Snapshot,
        now: Snapshot,
        accepted: Sequence[KernelRecord],
        modes: Sequence[Mode],
        time_is_up: Callable[[], bool],
    ) -> list[EngineVerdict]:
        """``before``: the registry when the run began; ``now``: with its settlements. A kernel is promoted when every
        mode that calls it is not slower and gives the same tokens. While the time has not reached them all it stays
        accepted, without a word from the engine, so that the next tune goes on with it; so does what is for a layout
        that is not the settled one."""
        accepted = [k for k in accepted if self._laid(k, now)]
        tuned = TunedKernels(as_if_promoted(now, accepted), self._registry.store, self._pairs.default)
        old = TunedKernels(Snapshot.of(before.kernels, now.settlements), self._registry.store, self._pairs.default)
        verdicts = [self._from_json(d) for d in self._folder.of(Event.PROMOTION)]
        known = {(v.problem, v.mode) for v in verdicts}
        problems = list(dict.fromkeys(k.problem for k in accepted))
        unreached: set[str] = set()
        for mode in modes:
            missing = [p for p in problems if (p.key, mode.name) not in known]
            if missing and time_is_up():
                unreached |= {p.key for p in missing}
            elif missing:
                found = self._mode(mode, missing, accepted, tuned, old, time_is_up)
                verdicts += found.verdicts
                unreached |= found.unreached
        for kernel in accepted:
            own = [v for v in verdicts if v.problem == kernel.problem.key]
            if kernel.problem.key in unreached and all(v.promotes for v in own):
                self._watcher.note(
                    f"{kernel.candidate_hash}: accepted, not promoted: the time did not reach all its engine runs"
                )
            elif own:
                self._decide(kernel, own)
        return verdicts

    def _mode(
        self,
        mode: Mode,
        problems: Sequence[Problem],
        accepted: Sequence[KernelRecord],
        tuned: KernelSet,
        old: KernelSet,
        time_is_up: Callable[[], bool],
    ) -> _Reached:
        verdicts: list[EngineVerdict] = []
        unreached: set[str] = set()
        with self._pairs.driver(tuned, mode) as new:
            new.burst()
            engaged = new.used()
            floor = self._pairs.floor(new, tuned, mode)
            for problem in problems:
                hashes = {k.candidate_hash for k in accepted if k.problem == problem}
                if not hashes & engaged.keys():
                    continue
                if time_is_up():
                    unreached.add(problem.key)
                    continue
                before = new.used()
                with self._pairs.driver(Overlay(tuned, {problem.key: old}, "without"), mode) as without:
                    pairs = interleave(new, without)
                calls = sum(n - before.get(h, 0) for h, n in new.used().items() if h in hashes)
                at = pairs.location
                verdict = EngineVerdict(
                    problem.key, mode.name, at.gain, at.lower, at.upper, pairs.same_tokens, calls, pairs.count, floor
                )
                self._folder.write(Event.PROMOTION, dataclasses.asdict(verdict))
                self._watcher.note(f"{problem.key}: {verdict.reason}")
                verdicts.append(verdict)
        return _Reached(tuple(verdicts), frozenset(unreached))

    def _laid(self, kernel: KernelRecord, now: Snapshot) -> bool:
        """Whether the engine holds this kernel's weight in the layout that it needs."""
        rows = kernel.problem.rows
        if not rows or rows == now.rows(kernel.problem.without_layout, kernel.target_identity):
            return True
        self._registry.set_state(kernel.id, KernelState.ACCEPTED, f"the layout rows={rows} does not serve", {})
        return False

    def _decide(self, kernel: KernelRecord, verdicts: Sequence[EngineVerdict]) -> None:
        evidence: dict[str, object] = {"engine": [dataclasses.asdict(v) for v in verdicts]}
        reason = "; ".join(v.reason for v in verdicts)
        state = KernelState.PROMOTED if all(v.promotes for v in verdicts) else KernelState.ACCEPTED
        self._registry.set_state(kernel.id, state, reason, evidence)

    @staticmethod
    def _from_json(data: dict) -> EngineVerdict:
        return EngineVerdict(**data)
