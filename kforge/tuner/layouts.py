"""A layout was chosen from search timings, which only rank: it serves only after the engine was faster with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from kforge.core.kernel import KernelRecord, Settled
from kforge.engine.kernel_set import KernelSet, Overlay, TunedKernels
from kforge.models.workloads import Mode
from kforge.registry.database import Registry
from kforge.registry.snapshot import Snapshot
from kforge.tuner.engine_pairs import EnginePairs, interleave
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.progress import Watcher
from kforge.tuner.promotion import as_if_promoted


@dataclass(frozen=True)
class LayoutGain:
    """The engine in one mode with a problem's new layout and kernels against those that served before."""

    problem: str
    mode: str
    gain: float
    lower: float
    same_tokens: bool
    floor: float


@dataclass(frozen=True)
class LayoutVerdict:
    """A changed panel height before the engine: one weight has one layout, so all modes count together."""

    problem: str
    rows: int
    before: int
    gains: tuple[LayoutGain, ...]

    @property
    def keeps(self) -> bool:
        """Shown to be faster on average over the modes, the lower bound too, and the same tokens in each. What served
        before stays where the machine is too noisy to tell: a layout was chosen by a margin that should show."""
        same = bool(self.gains) and all(g.same_tokens for g in self.gains)
        return same and fmean(g.lower for g in self.gains) > 0

    @property
    def text(self) -> str:
        modes = ", ".join(
            f"{100 * g.gain:+.1f} % in {g.mode}{'' if g.same_tokens else ' with other tokens'}" for g in self.gains
        )
        return f"rows {self.before} -> {self.rows}: engine {modes}; {'kept' if self.keeps else 'taken back'}"


class Layouts:
    """Runs the engine with and without each changed layout, and settles the problem in the one that stays."""

    def __init__(self, pairs: EnginePairs, identity: str, registry: Registry, folder: RunFolder, watcher: Watcher):
        self._pairs, self._identity = pairs, identity
        self._registry, self._folder, self._watcher = registry, folder, watcher

    def confirm(
        self,
        before: Snapshot,
        accepted: Sequence[KernelRecord],
        modes: Sequence[Mode],
        time_is_up: Callable[[], bool],
    ) -> list[LayoutVerdict]:
        """Decide every layout that this run changed. What the time did not reach stays as it was, unsettled, so that
        the next run tries it again; a layout that is taken back takes its kernels' promotion with it."""
        waiting = changed(self._folder.of(Event.SETTLED))
        if not waiting:
            return []
        now = self._registry.snapshot()
        trying = Snapshot.of(now.kernels, [*now.settlements, *((self._identity, s) for s, _ in waiting)])
        store, default = self._registry.store, self._pairs.default
        new = TunedKernels(as_if_promoted(trying, accepted), store, default)
        verdicts = []
        for settled, rows_before in waiting:
            old = TunedKernels(Snapshot.of(before.kernels, before.settlements), store, default)
            gains = self._gains(settled.problem, new, old, modes, time_is_up)
            if len(gains) < len(modes):
                self._watcher.note(f"{settled.problem}: the time did not reach its new layout's engine run")
                continue
            verdict = LayoutVerdict(settled.problem, settled.rows, rows_before, tuple(gains))
            stays = settled if verdict.keeps else dataclasses.replace(settled, rows=rows_before)
            self._registry.settle(self._folder.id, self._identity, stays)
            self._watcher.note(f"{settled.problem}: {verdict.text}")
            verdicts.append(verdict)
        return verdicts

    def _gains(
        self, problem: str, new: KernelSet, old: KernelSet, modes: Sequence[Mode], time_is_up: Callable[[], bool]
    ) -> list[LayoutGain]:
        known = {d["mode"]: LayoutGain(**d) for d in self._folder.of(Event.LAYOUT_GAIN) if d["problem"] == problem}
        without = Overlay(new, {}, "other layout", relaid={problem: old})
        for mode in modes:
            if mode.name in known or time_is_up():
                continue
            with self._pairs.driver(new, mode) as a, self._pairs.driver(without, mode) as b:
                floor = self._pairs.floor(a, new, mode)
                found = interleave(a, b)
            at = found.location
            known[mode.name] = LayoutGain(problem, mode.name, at.gain, at.lower, found.same_tokens, floor)
            self._folder.write(Event.LAYOUT_GAIN, dataclasses.asdict(known[mode.name]))
        return list(known.values())


def changed(settled: Iterable[Mapping]) -> list[tuple[Settled, int]]:
    """What a run settled in another layout than it found, with the panel height that it found."""
    return [
        (Settled(d["task"], d["rows"], tuple(d["buckets"]), d["templates"]), d["before"])
        for d in settled
        if d["rows"] != d["before"]
    ]
