"""The keeper: takes each specimen through the real harness and says which gate stopped it, and what it left behind."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType

from kforge.backends.cpp.build import build
from kforge.backends.defaults import default_kernel
from kforge.backends.handwritten import from_file
from kforge.backends.header import TemplateError
from kforge.core.target import Target
from kforge.core.trial import Candidate, Decision, Failure, FailureClass
from kforge.core.workload import Problem
from kforge.harness.harness import Harness
from kforge.harness.zoo.grounds import Grounds
from kforge.harness.zoo.specimens import Gate, Kind, Specimen, told


@dataclass(frozen=True)
class Sighting:
    """What became of one specimen. ``gate``: what stopped it, None when nothing did. ``left``: what should not be
    there afterwards, one sentence each, the harness's own health included."""

    specimen: Specimen
    gate: Gate | None
    text: str
    left: tuple[str, ...]
    seconds: float

    @property
    def stopped(self) -> bool:
        return self.gate is not None

    @property
    def as_told(self) -> bool:
        """Stopped by one of the gates that its header names (by none, if it is honest), with nothing left behind."""
        gates = self.specimen.gates
        return not self.left and (self.gate in gates if gates else self.gate is None)

    @property
    def sentence(self) -> str:
        wanted = " or ".join(map(told, self.specimen.gates)) or "nothing"
        seen = f"stopped by {told(self.gate)}, to be stopped by {wanted}: {self.text}"
        return "; ".join([seen, *self.left])


@dataclass(frozen=True)
class _Stop:
    gate: Gate
    text: str


class Keeper:
    """Owns a harness and the grounds; close it. Not thread-safe, and one at a time in a process."""

    def __init__(self, target: Target, threads: int, *, cold: bool = True) -> None:
        self._target = target
        self._grounds = Grounds(cold=cold)
        try:
            self._harness = Harness(target, threads)
        except BaseException:
            self._grounds.close()
            raise
        self._candidates: dict[str, Candidate | _Stop] = {}
        self._defaults: dict[Problem, Candidate] = {}

    def watch(self, specimens: Sequence[Specimen], others: Iterable[Specimen] = ()) -> Iterator[Sighting]:
        """Every specimen: built side by side first, then checked, timed and if need be judged one at a time.

        ``others``: where incumbents are looked for that are not among ``specimens``.
        """
        known = {s.name: s for s in (*others, *specimens)}
        begin = time.monotonic()
        for specimen in specimens:  # once for each operator, and not in the threads: they would all compile the prelude
            self._default(specimen.workload.problem)
        # What keeps a compiler busy longest comes first.
        slow = sorted(specimens, key=lambda s: FailureClass.COMPILE_LIMIT not in s.gates)
        with ThreadPoolExecutor(2) as pool:
            taken = dict(zip([s.name for s in slow], pool.map(self._prepare, slow), strict=True))
        left = self._grounds.traces()
        if left and specimens:  # of one of the builds: told once, with the first
            yield Sighting(specimens[0], None, "while all were built", tuple(left), time.monotonic() - begin)
        for specimen in sorted(specimens, key=lambda s: s.workload.key):  # zygotes are shared
            yield self._observe(specimen, known, taken[specimen.name])

    def _observe(self, specimen: Specimen, known: dict[str, Specimen], building: float) -> Sighting:
        begin = time.monotonic()
        stop = self._stop(specimen, known)
        left = self._grounds.traces()
        if stop is not None and self._grounds.secret in stop.text:
            left.append("the secret stands in what the trial says")
        if specimen.kind is not Kind.HONEST and (ill := self._ill(specimen)):
            left.append(ill)
        text = (stop.text if stop else "passed all gates").replace(self._grounds.secret, "SECRET")
        seconds = building + time.monotonic() - begin
        return Sighting(specimen, stop.gate if stop else None, text, tuple(left), seconds)

    def _stop(self, specimen: Specimen, known: dict[str, Specimen]) -> _Stop | None:
        candidate = self._candidates[specimen.name]
        if isinstance(candidate, _Stop):
            return candidate
        trial = self._harness.evaluate(candidate, specimen.workload)
        if trial.failure is not None:
            return _stop_of(trial.failure)
        if specimen.kind is Kind.HONEST:
            return None
        incumbent = self._incumbent(specimen, known)
        verdict = self._harness.judge(candidate, incumbent, [specimen.workload])
        if verdict.decision is Decision.ACCEPTED or verdict.reason is None:
            return None
        return _Stop(verdict.reason, verdict.text)

    def _incumbent(self, specimen: Specimen, known: dict[str, Specimen]) -> Candidate:
        if not specimen.incumbent:
            return self._default(specimen.workload.problem)
        other = known[specimen.incumbent]
        self._prepare(other)
        candidate = self._candidates[other.name]
        assert isinstance(candidate, Candidate), f"{specimen.incumbent} is no kernel to be held against"
        return candidate

    def _prepare(self, specimen: Specimen) -> float:
        """Renders and builds it into the cache; returns the seconds taken. Failures are kept: they are not cached."""
        begin = time.monotonic()
        if specimen.name not in self._candidates:
            self._candidates[specimen.name] = self._built(specimen)
        return time.monotonic() - begin

    def _built(self, specimen: Specimen) -> Candidate | _Stop:
        folder = self._grounds.root / "specimens" / specimen.kind
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / specimen.file.name
        file.write_text(self._grounds.fill_in(specimen.file.read_text(encoding="utf-8")), encoding="utf-8")
        try:
            candidate = from_file(file, specimen.workload.problem, self._target, {}, specimen.numerics)
        except TemplateError as error:
            return _stop_of(error.failure)
        candidate = replace(candidate, proposer="zoo")
        built = build(candidate, self._target)
        return _stop_of(built) if isinstance(built, Failure) else candidate

    def _default(self, problem: Problem) -> Candidate:
        if problem not in self._defaults:
            self._defaults[problem] = default_kernel(problem, self._target)
        return self._defaults[problem]

    def _ill(self, specimen: Specimen) -> str:
        """Why the harness no longer does its work, "" when it does."""
        checked = self._harness.check(self._default(specimen.workload.problem), specimen.workload)
        if isinstance(checked, Failure):
            return f"afterwards the default kernel fails ({checked.kind}): {checked.reason}"
        return ""

    def close(self) -> list[str]:
        """Ends the harness; returns what is left of everything, one sentence each."""
        try:
            self._harness.close()
            return self._grounds.traces()
        finally:
            self._grounds.close()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def _stop_of(failure: Failure) -> _Stop:
    return _Stop(failure.kind, f"{failure.reason}{f' ({failure.detail})' if failure.detail else ''}")
