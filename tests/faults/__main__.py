"""``python -m tests.faults --seeds 0:300 --json FILE``: faults at random points of real commands, and what is left.

``FILE`` takes one JSON line a seed and is gone on with. ``--seeds 17 -v`` tells one seed's story.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.play import Played, play
from tests.faults.scenario import Scenario
from tests.faults.stage import own_mounts, prepared
from tests.faults.table import told
from tests.faults.watch import ROOT, adopt_orphans


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seeds", default="0:300", help="first:end, or numbers with commas")
    parser.add_argument("--json", type=Path, help="results, a JSON line a seed; seeds that it holds are not run again")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="side by side, one CPU each")
    parser.add_argument("--base", type=Path, help="where the prepared base is kept; by default made and removed")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each seed")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    seeds = _seeds(given.seeds)
    if given.worker is not None:
        return _work(seeds, given.base, given.worker)
    with tempfile.TemporaryDirectory(prefix="kforge-faults-") as folder:
        base = given.base or Path(folder) / "base"
        _spawn(given.base or base, [], 0).wait()
        return _lead(seeds, given.json, given.workers, base, given.verbose)


def _lead(seeds: list[int], file: Path | None, workers: int, base: Path, verbose: bool) -> int:
    if not (base / "base.json").exists():
        print("the base could not be made", file=sys.stderr)
        return 1
    known = [Played(**json.loads(line)) for line in file.read_text().splitlines()] if file and file.exists() else []
    played = [p for p in known if p.seed in seeds]
    waiting = [s for s in seeds if s not in {p.seed for p in played}]
    shares = [share for n in range(workers) if (share := waiting[n::workers])]
    running = [_spawn(base, share, n) for n, share in enumerate(shares)]
    for line in _lines(running):
        one = Played(**json.loads(line))
        played.append(one)
        if file:
            with open(file, "a", encoding="utf-8") as out:
                out.write(line)
        if verbose or one.violations:
            print(f"{Scenario.of(one.seed)}: {one.harm}; exit {one.code} {one.said}; {one.seconds:.1f} s", flush=True)
        for said in one.violations:
            print(f"    VIOLATED {said}", flush=True)
        if not verbose and len(played) % 10 == 0:
            print(f"{len(played)} of {len(seeds)}", file=sys.stderr, flush=True)
    failed = [p for p in running if p.wait() != 0]
    print(told(sorted(played, key=lambda p: p.seed)))
    return 1 if failed or any(p.violations for p in played) or len(played) < len(seeds) else 0


def _lines(running: list[subprocess.Popen]):
    """Lines of all workers as they come."""
    import selectors

    with selectors.DefaultSelector() as selector:
        for process in running:
            selector.register(process.stdout, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if line := key.fileobj.readline():
                    yield line
                else:
                    selector.unregister(key.fileobj)


def _spawn(base: Path, seeds: list[int], number: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.faults", "--worker", str(number), "--base", str(base), "--seeds",
               ",".join(map(str, seeds))]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _work(seeds: list[int], base: Path, number: int) -> int:
    """One CPU, own mounts, and every orphan below it: a worker sees whatever its commands leave."""
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[number % len(cpus)]})
    adopt_orphans()
    own_mounts()
    ready = prepared(base)
    for seed in seeds:
        played = play(ready, Scenario.of(seed), base.with_name(f"{base.name}-world-{number}"))
        print(json.dumps(played.to_json()), flush=True)
    return 0


def _seeds(text: str) -> list[int]:
    first, colon, end = text.partition(":")
    return list(range(int(first), int(end))) if colon else [int(s) for s in text.split(",") if s]


if __name__ == "__main__":
    sys.exit(main())
