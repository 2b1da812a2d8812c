"""Random schedules of requests beside what each request gets alone: tokens, logits and log probabilities to the bit.

    python bench/exactness.py [--schedules 10000] [--seed 0] [--kernels default] [--json exactness.json]

Small models with random weights (tests/engine/toy_model.py) on the engine's own kernels, a dense one and one with
experts, sinks and windows in turn: a schedule takes some tens of milliseconds. Every schedule draws batch, chunking,
pool, prefix cache, threads, priorities, drops and guessing (tests/engine/schedules.py); models, types of KV cache and
engines change every few hundred schedules. Ends with 1 if anything differed, was left behind or did not come to its
end, and if, in a thousand schedules or more, something that they are meant to try never happened. The run's ``--seed``,
or the lab's that is printed with a difference, bring it back.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import time
from pathlib import Path

from measuring import write_json
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engine"))

from schedules import Coverage, Lab, random_schedule
from toy_model import ToyModel, gpt_oss_toy

from kforge.core.defaults import KV_TYPES
from kforge.engine.kernel_set import named
from kforge.targets.files import host

ENGINES, PER_LAB = 16, 500
PROVES_SOMETHING = 1000  # schedules from which on everything must have happened


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernels", default="default", choices=["default", "tuned"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    console, rng, began = Console(), random.Random(given.seed), time.monotonic()
    kernels = named(given.kernels, host())
    total, differing, labs, tried = Coverage(), 0, 0, 0
    while tried < given.schedules:
        seed, kv = rng.randrange(1 << 30), KV_TYPES[labs % len(KV_TYPES)]
        model = gpt_oss_toy() if labs % 2 else ToyModel()
        lab = Lab(kernels, ENGINES, seed, kv, model)
        for _ in range(min(PER_LAB, given.schedules - tried)):
            tried += 1
            schedule = random_schedule(rng, ENGINES)
            wrong: object
            try:
                wrong = lab.differing(schedule)
            except AssertionError as error:
                wrong = str(error)
            if wrong:
                differing += 1
                console.print(f"differs: requests {wrong} of {schedule}, lab {seed}, kv {kv}, {model.config.name}")
            if isinstance(wrong, str):
                break  # its engine holds what should be gone
        lab.close()
        labs += 1
        total = _sum(total, lab.coverage)
        console.print(f"{tried} of {given.schedules} schedules, {differing} differ", end="\r")
    seconds = time.monotonic() - began
    console.print(f"{total.schedules} schedules of {total.requests} requests in {seconds:.0f} s, "
                  f"{differing} schedules differ from what their requests get alone")
    console.print(f"in them: {total.dropped} requests dropped, {total.dropped_inside} of them amid a step, "
                  f"{total.failed} failed by their constraint, {total.preemptions} preemptions, "
                  f"{total.prefix_hit_tokens} prompt tokens found in the prefix cache, {total.drafted} tokens drafted, "
                  f"{total.accepted} accepted, {total.draft_passes} passes of draft models")
    write_json(given.json, f"python bench/exactness.py --schedules {given.schedules} --seed {given.seed}",
               {"seconds": seconds, "differing": differing, **dataclasses.asdict(total)})
    never = [name for name, count in dataclasses.asdict(total).items() if not count]
    if never and total.schedules >= PROVES_SOMETHING:
        console.print(f"never happened: {', '.join(never)}")
        sys.exit(1)
    sys.exit(bool(differing))


def _sum(a: Coverage, b: Coverage) -> Coverage:
    return Coverage(*(x + y for x, y in zip(dataclasses.astuple(a), dataclasses.astuple(b), strict=True)))


if __name__ == "__main__":
    main()
