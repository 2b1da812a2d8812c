"""Where the runs take place: a base made once by real commands, and a copy of it for each seed."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.faults import kernels
from tests.faults.scenario import Action
from tests.faults.stock import stock
from tests.faults.watch import Ended, Process

GATHER, ARGMAX = "gather_rows", "argmax"
_TUNE = ("--batch", "1", "--context", "32", "--prefill", "1", "--threads", "1", "--runs-dir", "runs")
_WORLD_BYTES = 96 << 20  # of each small disk
_CLONE_NEWNS, _MS_REC_PRIVATE = 0x20000, 0x44000
PLACES = ("home", "cache", "tmp", "runs")


@dataclass(frozen=True)
class Size:
    """What an undisturbed command does."""

    touches: int
    seconds: float
    lines: int  # of its run's journal


@dataclass(frozen=True)
class Base:
    """The state that every seed starts from; never changed."""

    root: Path
    run: str  # id of the finished run
    sizes: dict[Action, Size]

    @property
    def model(self) -> Path:
        return self.root / "tiny.gguf"

    @property
    def hand(self) -> Path:
        return self.root / "hand.cc"

    def words(self, action: Action) -> tuple[str, ...]:
        """The command line, run in a world's folder."""
        gather = tuple(f"{name}={value}" for name, value in kernels.AXES.items())
        return {
            Action.TUNE: ("tune", str(self.model), "--budget", "6s", *_TUNE, "--workload", ARGMAX, "--retune"),
            Action.RESUME: ("tune", "--resume", f"runs/{self.run}"),
            Action.PROMOTE: ("tune", str(self.model), "--budget", "60s", *_TUNE, "--workload", GATHER),
            Action.SUBMIT: ("try", str(self.hand), "--op", GATHER, "--axes", ",".join(gather), "--submit",
                            "--threads", "1", "--json"),
            Action.LOOKUP: ("lookup", GATHER, *gather, "--json"),
            Action.GC: ("kernels", "gc"),
            Action.VERIFY: ("kernels", "verify", "--json"),
        }[action]


@dataclass(frozen=True)
class World:
    """One seed's own home, cache, temporary files and runs, each on a small disk of its own where that can be."""

    root: Path
    mounted: bool

    @property
    def env(self) -> dict[str, str]:
        names = {"KFORGE_HOME": "home", "KFORGE_CACHE": "cache", "TMPDIR": "tmp"}
        given = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "CXX")}
        return {**given, "COLUMNS": "200", **{k: str(self.root / v) for k, v in names.items()}}

    @property
    def database(self) -> Path:
        return self.root / "home" / "registry.db"

    @property
    def run_folders(self) -> list[Path]:
        return sorted(p for p in (self.root / "runs").iterdir() if p.is_dir())

    def start(self, words: tuple[str, ...], **plan: object) -> Process:
        return Process(words, self.env, self.root, {"touch": 0, **plan})

    def run(self, *words: str, **plan: object) -> Ended:
        return self.start(words, **plan).ended()


@contextlib.contextmanager
def world(base: Base, folder: Path, *, cut_run: float | None, cold: bool, disks: bool) -> Iterator[World]:
    """A copy of the base. ``cut_run``: the finished run's journal only up to this share of its lines, else no run;
    ``cold``: without compiled kernels; ``disks``: on small disks, where this process may mount any."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mounts: list[Path] = []
    try:
        for place in PLACES:
            (folder / place).mkdir()
            if disks and _mount(folder / place):
                mounts.append(folder / place)
        skip = shutil.ignore_patterns("artifacts", "prelude") if cold else None
        for place in ("home", "cache"):
            shutil.copytree(base.root / place, folder / place, dirs_exist_ok=True, ignore=skip)
        if cut_run is not None:
            shutil.copytree(base.root / "runs" / base.run, folder / "runs" / base.run)
            journal = folder / "runs" / base.run / "journal.jsonl"
            lines = journal.read_bytes().splitlines(keepends=True)
            journal.write_bytes(b"".join(lines[: max(1, int(cut_run * (len(lines) - 1)))]))
        yield World(folder, bool(mounts))
    finally:
        for mount in mounts:
            _libc().umount2(os.fsencode(mount), 2)
        shutil.rmtree(folder, ignore_errors=True)


def own_mounts() -> None:
    """From now on this process's mounts are its own, where it may have any (as root)."""
    if os.geteuid() == 0 and _libc().unshare(_CLONE_NEWNS) == 0:
        _libc().mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None)


def _mount(place: Path) -> bool:
    given = f"size={_WORLD_BYTES},mode=0755".encode()
    return os.geteuid() == 0 and _libc().mount(b"tmpfs", os.fsencode(place), b"tmpfs", ctypes.c_ulong(0), given) == 0


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def prepared(root: Path) -> Base:
    """The base in ``root``, made there when it is not there yet."""
    if not (root / "base.json").exists():
        _make(root)
    told = json.loads((root / "base.json").read_text())
    return Base(root, told["run"], {Action(name): Size(**size) for name, size in told["sizes"].items()})


def _make(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    for place in PLACES:
        (root / place).mkdir(parents=True)
    base = Base(root, "", {})
    itself = World(root, False)
    (root / "hand.cc").write_text(kernels.FAST)
    (root / "slow.cc").write_text(kernels.SLOW)
    _must(itself.run("model", "synth", "tiny-llama-test", "--layers", "1", "--out", str(base.model)))
    with _environment(itself.env):
        stock(root / "slow.cc", base.hand, base.model)
    _must(itself.run(*base.words(Action.TUNE)))
    base = dataclasses.replace(base, run=itself.run_folders[0].name)
    sizes = {action: _measured(base, action) for action in Action}
    (root / "base.json").write_text(
        json.dumps({"run": base.run, "sizes": {a.value: dataclasses.asdict(s) for a, s in sizes.items()}})
    )


def _measured(base: Base, action: Action) -> Size:
    folder = base.root.with_name(f"{base.root.name}-undisturbed")
    resumed = action is Action.RESUME
    with world(base, folder, cut_run=0.5 if resumed else None, cold=False, disks=False) as here:
        before = lines_in(here)
        process = here.start(base.words(action), counted=str(here.root / "touches"))
        _must(process.ended(), *((1,) if action is Action.SUBMIT else ()))  # the judge may abstain on a busy machine
        seconds = time.monotonic() - process.begun
        return Size(int((here.root / "touches").read_text()), seconds, lines_in(here) - before)


def lines_in(here: World) -> int:
    """Whole lines in the journals of all runs."""
    return sum(p.read_bytes().count(b"\n") for p in (here.root / "runs").glob("*/journal.jsonl"))


def _must(ended: Ended, *also: int) -> None:
    if ended.code not in (0, *also):
        raise RuntimeError(f"{' '.join(ended.words)} failed undisturbed: {ended.err[-2000:]}{ended.out[-1000:]}")


@contextlib.contextmanager
def _environment(env: dict[str, str]) -> Iterator[None]:
    import tempfile

    before = dict(os.environ)
    os.environ.update(env)
    tempfile.tempdir = None
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        tempfile.tempdir = None
