"""The judge measured: kernels against themselves, and against themselves with work inserted.

Three stages, in one journal that a killed calibration goes on from: how much time a step of inserted work costs each
kernel; how far each kernel seems to be from itself, which gives the judge's parameters; and decisions by the judge
with those parameters, whose errors are counted. The last stage shares no sample with the first two.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kforge.core.errors import KforgeError
from kforge.core.target import Target
from kforge.core.trial import Candidate, RejectReason
from kforge.core.workload import Workload
from kforge.harness.harness import Harness
from kforge.harness.judge import LEAST_ZYGOTES, Rules, interval, zygote_locations
from kforge.harness.pairs import MOST_PAIRS, ContestantFailure, PairedSample
from kforge.harness.rates import Decided, Inserted, SelfSample, fit
from kforge.harness.timing import PAIRS, Plan
from kforge.harness.variants import Specimen, base_of, framed, specimens
from kforge.targets.noise import Noise

SLOWDOWNS = (0.01, 0.02, 0.03, 0.05)
_GROUPS = 12  # of LEAST_ZYGOTES zygotes: how far a kernel seems to be from itself
_LONG = 18  # zygotes of the comparison that tells what a step costs
_SHARE = 0.25  # by how much it slows the kernel down: far above the noise, and near enough for a step to cost the same
_STEP_SECONDS = 1.2e-9  # first guess
_PER_SLOWDOWN = 16  # A/A decisions for each decision at a slow-down
_PLACES = 3  # different addresses
_FEWEST = 3  # rounds that a scatter between groups can be told from
_TRIES = 3


@dataclass(frozen=True)
class Settings:
    """What a journal belongs to: only the same settings go on from it. ``decisions`` may grow."""

    target: str  # identity
    threads: int
    loaded: bool
    kernels: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "kernels": list(self.kernels)}


@dataclass(frozen=True)
class Recorded:
    """What a calibration knows so far."""

    inserted: tuple[Inserted, ...] = ()
    samples: tuple[SelfSample, ...] = ()
    decided: tuple[Decided, ...] = ()


class Journal:
    """One line of JSON for everything measured, written before it counts."""

    def __init__(self, path: Path, settings: Settings, resume: bool) -> None:
        """Raises KforgeError when there is nothing to resume, or another calibration's."""
        self.path = path
        self.recorded = _read(path, settings) if resume else Recorded()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a" if resume else "w", encoding="utf-8")
        except OSError as error:
            raise KforgeError(f"cannot write the calibration's journal {path}: {error.strerror}") from error
        if not resume:
            self._write("settings", settings.to_json())

    def add(self, what: Inserted | SelfSample | Decided) -> None:
        kind, field = _KINDS[type(what)]
        self._write(kind, dataclasses.asdict(what))
        more = (*getattr(self.recorded, field), what)
        self.recorded = dataclasses.replace(self.recorded, **{field: more})

    def _write(self, kind: str, data: dict[str, Any]) -> None:
        try:
            # A line that a killed process left half is ended by this one's first character.
            self._file.write("\n" + json.dumps({"kind": kind, **data}))
            self._file.flush()
        except OSError as error:
            raise KforgeError(f"cannot write the calibration's journal {self.path}: {error.strerror}") from error

    def close(self) -> None:
        self._file.close()


_KINDS: dict[type, tuple[str, str]] = {
    Inserted: ("inserted", "inserted"),
    SelfSample: ("self", "samples"),
    Decided: ("decision", "decided"),
}


def _read(path: Path, settings: Settings) -> Recorded:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise KforgeError(f"no calibration to resume: {path}: {error.strerror}") from error
    found: dict[str, list[Any]] = {"inserted": [], "samples": [], "decided": []}
    head = None
    for line in lines:
        try:
            data = json.loads(line)
            kind = data.pop("kind")
        except (ValueError, KeyError, AttributeError):
            continue  # empty, or cut short when the process was killed
        if kind == "settings":
            head = data
        for made, (name, field) in _KINDS.items():
            if kind == name:
                data = {**data, "locations": tuple(data["locations"])} if made is SelfSample else data
                found[field].append(made(**data))
    if head != settings.to_json():
        raise KforgeError(f"{path} is of another calibration (target, threads, load or kernels): leave out --resume")
    return Recorded(*(tuple(found[field]) for field in ("inserted", "samples", "decided")))


@dataclass(frozen=True)
class Progress:
    stage: str
    done: int
    of: int


class _Watched(Harness):
    """Keeps the samples that the judge decides from."""

    def __init__(self, target: Target, threads: int) -> None:
        super().__init__(target, threads)
        self.seen: list[PairedSample] = []

    def compare(self, candidate: Candidate, incumbent: Candidate, workload: Workload, *, pairs: int = MOST_PAIRS,
                zygotes: int = 1, first_zygote: int = 0, plan: Plan = PAIRS) -> PairedSample | ContestantFailure:
        found = super().compare(candidate, incumbent, workload, pairs=pairs, zygotes=zygotes,
                                first_zygote=first_zygote, plan=plan)
        if isinstance(found, PairedSample):
            self.seen.append(found)
        return found


class Calibration:
    """Of the judge on this machine. ``noise``: parameters to judge by, without the second stage; None: by what follows
    from it.
    """

    def __init__(self, target: Target, threads: int, specimens: Sequence[Specimen], journal: Journal, decisions: int,
                 deadline: float, noise: Noise | None, watch: Callable[[Progress], None]) -> None:
        self._target, self._threads = target, threads
        self._specimens = {s.name: s for s in specimens}
        self._bases = {s.name: base_of(s, target) for s in specimens}
        self._journal, self._decisions, self._deadline = journal, decisions, deadline
        self._given, self._watch = noise, watch

    def run(self) -> Noise | None:
        """Until all is measured or the time is over; the parameters judged by, None when it never came to them.

        Raises KforgeError for a kernel that fails.
        """
        harness = _Watched(self._target, self._threads)
        with harness:
            for name in self._specimens:
                if not any(i.kernel == name for i in self._journal.recorded.inserted):
                    if self._late():
                        return None
                    self._journal.add(self._price(harness, name))
                self._watch(Progress("inserted work", len(self._journal.recorded.inserted), len(self._specimens)))
            if self._given is None and not self._meet_themselves(harness):
                return None
            noise = self._given or fit(self._journal.recorded.samples, self._threads, f"{datetime.now(UTC):%Y-%m-%d}")
            self._decide(harness, noise)
            return noise

    def _late(self) -> bool:
        return time.monotonic() > self._deadline

    def _price(self, harness: Harness, name: str) -> Inserted:
        """What a step costs, as a share of the kernel's time: by a slow-down far above the noise."""
        base = self._bases[name]
        plain = framed(base)
        rough = _measured(harness, plain, plain, self._specimens[name], 1)
        steps = max(1, round(_SHARE * rough.seconds / _STEP_SECONDS))
        for _ in range(2):  # the second time with a better guess of what makes that share
            sample = _measured(harness, plain, framed(base, steps=steps), self._specimens[name], _LONG)
            found = interval(zygote_locations(sample), 0.025)
            used, steps = steps, max(1, round(steps * _SHARE / max(math.expm1(found.location), 0.01)))
        share, lower, upper = (math.expm1(x) / used for x in (found.location, found.lower, found.upper))
        return Inserted(name, share, lower, upper)

    def _meet_themselves(self, harness: _Watched) -> bool:
        """Round after round over all kernels, so that a bad minute falls on all; whether it came to its end."""
        done = len(self._journal.recorded.samples)
        names = list(self._specimens)
        for i in range(done, _GROUPS * len(names)):
            if self._late():
                return False
            name, turn = names[i % len(names)], i // len(names)
            self._watch(Progress("noise", i, _GROUPS * len(names)))
            begin = time.monotonic()
            a, b = _itself(self._bases[name], turn)
            sample = _measured(harness, a, b, self._specimens[name], LEAST_ZYGOTES)
            waited = sum(sample.disturbed) / len(sample.disturbed)
            locations = tuple(zygote_locations(sample).tolist())
            self._journal.add(SelfSample(name, locations, sample.seconds, waited, time.monotonic() - begin))
        return True

    def _decide(self, harness: _Watched, noise: Noise) -> None:
        rules = Rules(noise=noise)
        planned = list(plan(list(self._specimens), self._decisions))
        done = {d.number for d in self._journal.recorded.decided}
        for number, (name, slowdown) in enumerate(planned):
            if number in done:
                continue
            if self._late():
                return
            self._watch(Progress("decisions", number, len(planned)))
            base = self._bases[name]
            if slowdown:
                share = next(i.share for i in self._journal.recorded.inserted if i.kernel == name)
                a, b = framed(base), framed(base, steps=max(1, round(slowdown / share)))
            else:
                a, b = _itself(self._bases[name], number // len(self._specimens))
            begin = time.monotonic()
            harness.seen.clear()
            verdict = harness.judge(a, b, [self._specimens[name].workload], rules=rules)
            took = time.monotonic() - begin
            waited = [share for sample in harness.seen for share in sample.disturbed]
            self._journal.add(Decided(
                number, name, slowdown, verdict.decision.value, verdict.reason.value if verdict.reason else "",
                verdict.audit is not None, verdict.gain, verdict.lower, verdict.upper, verdict.zygotes, verdict.pairs,
                harness.seen[-1].seconds if harness.seen else 0.0, sum(waited) / len(waited) if waited else 0.0, took,
                verdict.text if verdict.reason is RejectReason.FAILED else "",
            ))
        self._watch(Progress("decisions", len(planned), len(planned)))


def measure_noise(harness: Harness, deadline: float) -> Noise:
    """The judge's parameters from a minute of kernels beside themselves: what a machine's first tune judges by.

    Rounds over all kernels until ``deadline`` (of the monotonic clock), at least ``_FEWEST``. With fewer samples than a
    calibration has, the floors come out higher, and no error rate was counted.
    """
    chosen = specimens()
    bases = [base_of(s, harness.target) for s in chosen]
    samples: list[SelfSample] = []
    turn = 0
    while turn < _FEWEST or time.monotonic() < deadline:
        for specimen, base in zip(chosen, bases, strict=True):
            begin = time.monotonic()
            a, b = _itself(base, turn % 2)  # one other address only: each more is a build
            sample = _measured(harness, a, b, specimen, LEAST_ZYGOTES)
            waited = sum(sample.disturbed) / len(sample.disturbed)
            locations = tuple(zygote_locations(sample).tolist())
            samples.append(SelfSample(specimen.name, locations, sample.seconds, waited, time.monotonic() - begin))
        turn += 1
    return fit(samples, harness.threads, f"{datetime.now(UTC):%Y-%m-%d}")


def _itself(base: Candidate, turn: int) -> tuple[Candidate, Candidate]:
    """A kernel twice, at different addresses, which of them comes first in turn."""
    moved = framed(base, pages=1 + turn // 2 % _PLACES)
    still = framed(base)
    return (moved, still) if turn % 2 else (still, moved)


def _measured(harness: Harness, a: Candidate, b: Candidate, specimen: Specimen, zygotes: int) -> PairedSample:
    """A comparison of kforge's own kernels, tried again when it fails: a machine that stood still looks like a hang.

    Raises KforgeError when it goes on failing.
    """
    reason = ""
    for _ in range(_TRIES):
        found = harness.compare(a, b, specimen.workload, zygotes=zygotes)
        if isinstance(found, PairedSample):
            return found
        reason = found.failure.reason
    raise KforgeError(f"the judge cannot be measured with {specimen.name}: {reason}")


def plan(names: Sequence[str], decisions: int) -> Iterator[tuple[str, float]]:
    """Kernels in turn, and slow-downs among the A/A decisions, so that every minute sees all of them.

    The plan of fewer decisions is the beginning of that of more: a resumed calibration may ask for more.
    """
    for i in range(decisions):
        yield names[i % len(names)], 0.0
        if i % _PER_SLOWDOWN == _PER_SLOWDOWN // 2:
            for slowdown in SLOWDOWNS:
                yield names[i // _PER_SLOWDOWN % len(names)], slowdown


@contextmanager
def load(threads: int) -> Iterator[None]:
    """Keeps one CPU that ``threads`` threads do not use busy. Raises KforgeError where there is none left."""
    cpus = sorted(os.sched_getaffinity(0))
    if threads >= len(cpus):
        raise KforgeError(f"--load needs a CPU beside the {threads} that are measured; there are {len(cpus)}")
    # It looks after its parent: nothing else would end it when that is killed.
    code = "import os\np = os.getppid()\nwhile os.getppid() == p:\n    for _ in range(1000000): pass"
    spinner = subprocess.Popen([sys.executable, "-c", code])
    try:
        os.sched_setaffinity(spinner.pid, {cpus[-1]})
        yield
    finally:
        spinner.kill()
        spinner.wait()
