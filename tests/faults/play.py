"""One seed from start to end: the command, the fault, the recovery, and everything that must hold then."""

from __future__ import annotations

import hashlib
import json
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults.harm import Harm, inflict
from tests.faults.records import Records, files_in_use
from tests.faults.scenario import RUNS, Action, Fault, Scenario, Variant, When
from tests.faults.stage import Base, World, lines_in, world
from tests.faults.tidy import strangers
from tests.faults.watch import Ended, Process, leftover_processes

STOCKED = 3  # kernels that the base holds
_DAY = 86400.0


@dataclass
class Played:
    """What became of a seed. ``hit``: the fault came while the command ran."""

    seed: int
    action: str
    fault: str
    variant: str
    hit: bool = False
    harm: str = ""
    code: int = 0
    said: str = ""
    recovered: bool = False
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict:
        return asdict(self)


def play(base: Base, scenario: Scenario, folder: Path) -> Played:
    """Never raises for what the command under test does: that is a violation."""
    began = time.monotonic()
    played = Played(scenario.seed, scenario.action, scenario.fault, scenario.variant)
    cut_run = scenario.amount if scenario.action is Action.RESUME else None
    with world(base, folder, cut_run=cut_run, cold=scenario.cold, disks=scenario.fault is Fault.DISK) as here:
        try:
            _Play(base, scenario, here, played).whole()
        except Exception as error:  # of the test itself, or a command that does not end
            played.violations.append(f"{type(error).__name__}: {error}")
        finally:
            played.violations += [f"a process stayed: {p}" for p in leftover_processes()]
    played.recovered = not played.violations
    played.seconds = time.monotonic() - began
    return played


class _Play:
    def __init__(self, base: Base, scenario: Scenario, here: World, played: Played) -> None:
        self.base, self.scenario, self.here, self.played = base, scenario, here, played
        self.before: list[Records] = []
        back = _DAY * (0.01 + 400 * scenario.amount)
        self.clock = {"deed": "clock", "back": back} if scenario.fault is Fault.CLOCK else {}
        always = scenario.variant is Variant.ALWAYS
        self.again = {"from_the_start": back} if always else {}  # the plan of what is done after the fault

    def whole(self) -> None:
        harm = self._faulty()
        if self.scenario.fault is Fault.ARTIFACT:
            self._verify_names(harm)
        self._do_again()
        self._hold()

    # -- the command and the fault ---------------------------------------------------------------------------------

    def _faulty(self) -> Harm:
        s = self.scenario
        process = self.here.start(self.base.words(s.action), **self._plan())
        harm = Harm("the moment did not come")
        killed_itself = (s.fault, s.variant, s.when) == (Fault.KILL, Variant.MAIN, When.TOUCH)
        if self.clock:
            harm, self.played.hit = inflict(s, self.here, process), True
        elif process.wait_until(self._moment(process)):
            self.played.hit = True
            _stand_still(process)
            self.before.append(Records.of(self.here))
            harm = inflict(s, self.here, process)
            if s.fault is Fault.JOURNAL:  # what was cut off is lost, of course; what still stands must stay
                self.before[-1] = Records(self.before[-1].rows, Records.of(self.here).lines)
            process.send(signal.SIGCONT)
        ended = process.ended()
        if killed_itself and ended.code == -signal.SIGKILL:
            harm, self.played.hit = Harm("killed"), True
        harm.lift()
        self.played.harm, self.played.code, self.played.said = harm.told, ended.code, " ".join(ended.sentences)
        self._check(ended, self._allowed())
        self._nothing_runs()
        self.before.append(Records.of(self.here))
        return harm

    def _plan(self) -> dict:
        s, size = self.scenario, self.base.sizes[self.scenario.action]
        touch = 1 + int(s.at * 0.95 * size.touches)  # they vary by a few
        if self.clock:
            return {"touch": touch, **self.clock}
        if s.when is not When.TOUCH:
            return {}
        return {"touch": touch, "deed": "kill" if (s.fault, s.variant) == (Fault.KILL, Variant.MAIN) else "stop"}

    def _moment(self, process: Process):
        s, size = self.scenario, self.base.sizes[self.scenario.action]
        if s.when is When.TOUCH:
            return lambda: process.stopped_itself
        if s.when is When.TIME:
            return lambda: time.monotonic() > process.begun + s.at * size.seconds
        wanted = lines_in(self.here) + 1 + int(s.at * max(size.lines - 1, 1))
        return lambda: lines_in(self.here) >= wanted

    def _allowed(self) -> set[int]:
        s = self.scenario
        codes = {0}
        if s.action is Action.SUBMIT:
            codes.add(1)  # the judge may abstain on a machine that others use
        if s.action is Action.VERIFY and s.fault is Fault.ARTIFACT:
            codes.add(1)
        if s.fault in (Fault.DISK, Fault.ARTIFACT) or s.variant in (Variant.HELD, Variant.AWAY):
            codes.add(2)
        if (s.fault is Fault.KILL) or (s.killed and s.fault in (Fault.STOP, Fault.JOURNAL)):
            codes.add(-signal.SIGKILL)
        return codes

    # -- afterwards ------------------------------------------------------------------------------------------------

    def _verify_names(self, harm: Harm) -> None:
        """Exactly the damaged file is named, once, as long as it is in use and was not made whole meanwhile."""
        damaged = harm.digest and harm.digest in files_in_use(self.here.database) and not self._whole(harm.digest)
        ended = self._run("kernels", "verify", "--json")
        self._check(ended, {1 if damaged else 0})
        named = {d["hash"] for d in json.loads(ended.out or '{"damaged": []}')["damaged"]}
        if named != ({harm.digest} if damaged else set()):
            self._violated(f"verify names {sorted(named)} where {harm.digest} was damaged")

    def _do_again(self) -> None:
        """The same once more, without a fault; a run goes on."""
        if self.scenario.action not in RUNS:
            self._check(self._run(*self.base.words(self.scenario.action)), self._allowed() & {0, 1})
            return
        begun = [run for run in self.here.run_folders if self._begins(run)]
        if not begun:
            for run in self.here.run_folders:  # killed before its first line, or cut to nothing
                refused = self._run("tune", "--resume", f"runs/{run.name}")
                self._check(refused, {2})
                if "does not begin with a run's options" not in refused.err and "has no journal" not in refused.err:
                    self._violated(f"resuming a run without a beginning says {refused.err[-200:]!r}")
            return
        for run in begun:
            self._check(self._run("tune", "--resume", f"runs/{run.name}"), {0})
            if b'"finished"' not in (run / "journal.jsonl").read_bytes().splitlines()[-1]:
                self._violated(f"{run.name} is not finished after it was resumed")

    def _hold(self) -> None:
        """Everything that must be true of a machine on which something like this has happened."""
        self._check(self._run("kernels", "gc"), {0})
        verified = self._run("kernels", "verify", "--json")
        self._check(verified, {0})
        self._nothing_runs()
        for digest in files_in_use(self.here.database):
            if not self._whole(digest):
                self._violated(f"store: {digest} is in use and not whole")
        now = Records.of(self.here)
        for records in self.before:
            for said in (*records.lost(now), *now.unsound(STOCKED)):
                self._violated(said)
        for said in strangers(self.here):
            self._violated(said)

    def _begins(self, run: Path) -> bool:
        journal = run / "journal.jsonl"
        return journal.exists() and journal.read_bytes().startswith(b'{"kind": "started"') and \
            b"\n" in journal.read_bytes()

    def _whole(self, digest: str) -> bool:
        path = self.here.root / "home" / "store" / digest[:2] / digest
        return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest

    def _run(self, *words: str) -> Ended:
        return self.here.run(*words, **self.again)

    def _check(self, ended: Ended, codes: set[int]) -> None:
        words = " ".join(ended.words[:3])
        if ended.code not in codes:
            self._violated(f"{words} ended with {ended.code}, not {sorted(codes)}: {ended.err[-800:]}")
        if ended.code == 2 and not any("/" in sentence for sentence in ended.sentences):
            self._violated(f"{words}: no file or folder is named: {ended.sentences}")
        if "Traceback" in ended.err or "Exception ignored" in ended.err:
            self._violated(f"{words}: a traceback: {ended.err[-1500:]}")
        if len(ended.sentences) != (ended.code == 2) and not (ended.code == 0 and ended.sentences):
            self._violated(f"{words} ended with {ended.code} and said {ended.sentences}")

    def _nothing_runs(self) -> None:
        for process in leftover_processes():
            self._violated(f"a process stayed: {process}")

    def _violated(self, said: str) -> None:
        if said not in self.played.violations:
            self.played.violations.append(said)


def _stand_still(process: Process) -> None:
    process.send(signal.SIGSTOP)
    until = time.monotonic() + 5
    while process.alive and not process.stands and time.monotonic() < until:
        time.sleep(0.001)
