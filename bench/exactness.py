"""Random schedules of requests beside what each request gets alone: tokens, logits and log probabilities to the bit.

    python bench/exactness.py [--schedules 10000] [--seed 0] [--kernels default] [--json exactness.json]

Small models with random weights (tests/engine/toy_model.py), in turn one whose layers see all, one with a window in
every second layer and one with windows alone, on the engine's own kernels: a schedule takes some tens of milliseconds.
Every schedule draws batch, chunking, pool, prefix cache, threads, priorities, drops and guessing
(tests/engine/schedules.py); engines are made anew every few hundred schedules. Ends with 1 if anything differed.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random
import sys
import time
from pathlib import Path

from measuring import write_json
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engine"))

from schedules import MODELS, Coverage, Lab, random_schedule

from kforge.engine.kernel_set import named
from kforge.targets.files import host

ENGINES, PER_LAB = 16, 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernels", default="default", choices=["default", "tuned"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    console, rng, began = Console(), random.Random(given.seed), time.monotonic()
    kernels = named(given.kernels, host())
    total, differing, models = Coverage(), [], itertools.cycle(MODELS)
    while total.schedules < given.schedules:
        lab = Lab(kernels, ENGINES, rng.randrange(1 << 30), next(models))
        for _ in range(min(PER_LAB, -(-given.schedules // len(MODELS)), given.schedules - total.schedules)):
            schedule = random_schedule(rng, ENGINES)
            if wrong := lab.differing(schedule):
                differing.append(schedule)
                console.print(f"differs: requests {wrong} of {schedule}")
        lab.close()
        total = _sum(total, lab.coverage)
        console.print(f"{total.schedules} of {given.schedules} schedules, {len(differing)} differ", end="\r")
    seconds = time.monotonic() - began
    console.print(f"{total.schedules} schedules of {total.requests} requests in {seconds:.0f} s, "
                  f"{len(differing)} schedules differ from what their requests get alone")
    console.print(f"in them: {total.dropped} requests dropped, {total.preemptions} preemptions, "
                  f"{total.prefix_hit_tokens} prompt tokens found in the prefix cache, {total.drafted} tokens drafted, "
                  f"{total.accepted} accepted, {total.draft_passes} passes of draft models")
    write_json(given.json, f"python bench/exactness.py --schedules {given.schedules} --seed {given.seed}",
               {"seconds": seconds, "differing": len(differing), **dataclasses.asdict(total)})
    sys.exit(bool(differing))


def _sum(a: Coverage, b: Coverage) -> Coverage:
    return Coverage(*(x + y for x, y in zip(dataclasses.astuple(a), dataclasses.astuple(b), strict=True)))


if __name__ == "__main__":
    main()
