"""The faults themselves. Each gives back what was true just before it, and how to lift it."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.faults.records import files_in_use
from tests.faults.scenario import Fault, Scenario, Variant
from tests.faults.stage import World
from tests.faults.watch import Process, send


@dataclass(frozen=True)
class Harm:
    """``lift`` ends the fault; ``told`` says what was done; ``digest`` names a damaged file of the store."""

    told: str
    lift: Callable[[], None] = lambda: None
    digest: str = ""


def inflict(scenario: Scenario, here: World, process: Process) -> Harm:
    """Does it to a process that stands still (or has ended); the process goes on afterwards, unless it was killed."""
    rng = random.Random(f"harm {scenario.seed}")
    match scenario.fault:
        case Fault.KILL:
            return _kill(scenario.variant, process, rng)
        case Fault.STOP:
            return _stop(scenario, process, rng)
        case Fault.DISK:
            return _fill(scenario, here, process)
        case Fault.DATABASE:
            return _deny(scenario, here, process)
        case Fault.ARTIFACT:
            return _damage(scenario.variant, here, rng)
        case Fault.JOURNAL:
            return _cut(scenario, here, process, rng)
        case Fault.CLOCK:
            return Harm("the clock went back")  # by the process itself


def _kill(variant: Variant, process: Process, rng: random.Random) -> Harm:
    below = process.below()
    if variant is Variant.CHILD and below:
        victim = rng.choice(below)
        told = f"killed {_name(victim)} below it"
        send([victim], signal.SIGKILL)
        return Harm(told)
    process.send(signal.SIGKILL)
    if variant is Variant.TREE:
        send(below, signal.SIGKILL)
    return Harm(f"killed{f' with {len(below)} below it' if variant is Variant.TREE else ''}")


def _stop(scenario: Scenario, process: Process, rng: random.Random) -> Harm:
    seconds = 0.05 + 2.0 * scenario.amount
    below = process.below()
    if scenario.variant is Variant.CHILD and below:
        victims = [rng.choice(below)]
        process.send(signal.SIGCONT)
    else:
        victims = below if scenario.variant is Variant.TREE else []
    send(victims, signal.SIGSTOP)
    time.sleep(seconds)
    if scenario.killed:
        process.send(signal.SIGKILL)
    else:
        process.send(signal.SIGCONT)
    send(victims, signal.SIGCONT)
    return Harm(f"stopped for {seconds:.2f} s with {len(victims)} below it{', then killed' if scenario.killed else ''}")


def _fill(scenario: Scenario, here: World, process: Process) -> Harm:
    left = int(scenario.amount**3 * (256 << 10))
    if not here.mounted:  # the next best: no file may grow beyond this
        if process.alive:
            resource.prlimit(process.seen.pid, resource.RLIMIT_FSIZE, (left, left))
        return Harm(f"no file may grow beyond {left} bytes")
    place = here.root / _PLACES[scenario.variant]
    ballast = place / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb") as out:
        free = shutil.disk_usage(place).free - left
        os.posix_fallocate(out.fileno(), 0, max(free & ~4095, 4096))
    return Harm(f"{shutil.disk_usage(place).free} bytes free in {place.name}", ballast.unlink)


_PLACES = {Variant.HOME: "home", Variant.CACHE: "cache", Variant.TEMPORARY: "tmp", Variant.RUNS: "runs"}


def _deny(scenario: Scenario, here: World, process: Process) -> Harm:
    variant = scenario.variant
    if variant is Variant.AWAY and not _has_open(process, here.database):
        variant = Variant.LOCKED  # one that it has not opened yet it would rightly make anew
    if variant is Variant.AWAY:
        away = here.root / "home" / "away"
        away.mkdir()
        _move(here.database, away)

        def put_back() -> None:
            _move(away / here.database.name, here.root / "home")
            away.rmdir()

        return Harm("the database is elsewhere", put_back)
    process.send(signal.SIGCONT)  # it may hold the lock itself
    holder = sqlite3.connect(here.database, isolation_level=None, timeout=60, check_same_thread=False)
    holder.execute("begin immediate")

    def release() -> None:
        with contextlib.suppress(sqlite3.ProgrammingError):
            holder.execute("rollback")
        holder.close()

    if variant is Variant.HELD:
        return Harm("the database is locked until the command has ended", release)
    seconds = 0.2 + 3.0 * scenario.amount
    timer = threading.Timer(seconds, release)
    timer.start()
    return Harm(f"the database is locked for {seconds:.2f} s", timer.join)


def _damage(variant: Variant, here: World, rng: random.Random) -> Harm:
    files = sorted(files_in_use(here.database))
    digest = rng.choice(files)
    path = here.root / "home" / "store" / digest[:2] / digest
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    if variant is Variant.REMOVED:
        path.unlink()
    elif variant is Variant.SHORTER:
        os.truncate(path, at)
    else:
        data[at] ^= 1 << rng.randrange(8)
        with open(path, "r+b") as out:
            out.write(data)
    return Harm(f"{digest[:12]}: {variant}", digest=digest)


def _cut(scenario: Scenario, here: World, process: Process, rng: random.Random) -> Harm:
    if scenario.killed:
        process.send(signal.SIGKILL)
        process.ended()
    names = {Variant.RUN_JOURNAL: ("journal.jsonl",), Variant.STUDY: ("study.journal",)}
    told = []
    for run in here.run_folders:
        for name in names.get(scenario.variant, ("journal.jsonl", "study.journal")):
            path = run / name
            if path.exists():
                size = path.stat().st_size
                to = int(size * scenario.amount) if rng.random() < 0.8 else max(size - rng.randrange(1, 200), 0)
                os.truncate(path, to)
                told.append(f"{name} {size} -> {to} bytes")
    return Harm("; ".join(told) or "there was no journal yet")


def _move(database: Path, to: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path = database.with_name(database.name + suffix)
        if path.exists():
            path.rename(to / path.name)


def _has_open(process: Process, path: Path) -> bool:
    try:
        return any(Path(f.path) == path for f in process.seen.open_files())
    except psutil.NoSuchProcess:
        return False


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return "something that had just ended"
