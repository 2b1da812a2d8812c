"""What a process that checks or times a candidate costs beyond its work, and how many of them a trial takes.

    python bench/process_cost.py [--repeats 50] [--threads 2] [--json cost.json]

`start` is a child of a workload's zygote from the request until it is locked down, has mapped the kernel and waits;
`close` is until it is gone; `call` is an empty command, and `check` one checked call of the smallest kernel that ships,
in fenced slots. A trial's process costs start, close and a call; its zygote is the workload's, made once (`zygote`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from measuring import write_json
from rich.console import Console
from rich.table import Table

from kforge.backends.cpp.admission import admit
from kforge.backends.cpp.build import build
from kforge.backends.defaults import default_kernel
from kforge.core.errors import KforgeError
from kforge.core.summary import Summary
from kforge.core.trial import Artifact, Failure
from kforge.core.workload import Problem, Workload
from kforge.harness import Harness
from kforge.harness.process import Process
from kforge.harness.session import Session, TimedInputs
from kforge.harness.timing import Stopwatch
from kforge.operators import get
from kforge.operators.base import Distribution
from kforge.targets.files import host

LIMIT_SECONDS = 0.025
T = TypeVar("T")
WORKLOAD = Workload.of(Problem.of("silu_mul", I=64), T=1)


def measure(repeats: int, threads: int) -> tuple[dict[str, Summary], int]:
    """Seconds of each step, and the processes of a whole trial."""
    target = host()
    candidate = default_kernel(WORKLOAD.problem, target)
    artifact = build(candidate, target)
    assert isinstance(artifact, Artifact)
    image = admit(artifact.data)
    if isinstance(image, Failure):
        raise KforgeError(image.reason)
    operator = get(WORKLOAD.problem.operator)
    inputs = operator.inputs(WORKLOAD, 1, Distribution.NORMAL)
    timed = TimedInputs(operator, WORKLOAD, 1, target.llc_bytes)
    found: dict[str, list[float]] = {"zygote": [], "start": [], "call": [], "check": [], "close": []}

    def clocked(step: str, action: Callable[[], T]) -> T:
        begin = time.perf_counter()
        done = action()
        found[step].append(time.perf_counter() - begin)
        if isinstance(done, Failure):
            raise KforgeError(f"{step}: {done.reason}")
        return done

    cpus = range(threads)
    for _ in range(10):
        clocked("zygote", partial(Session, timed, (), cpus)).close()
    with Session(timed, (), cpus) as session:
        for _ in range(repeats):
            process = clocked("start", partial(session.start, image))
            assert isinstance(process, Process)
            clocked("call", partial(Stopwatch(session, process, threads).batch, 0))
            clocked("check", partial(process.run_once, WORKLOAD, inputs, threads, 0xFF, 1, False, 5.0))
            clocked("close", process.close)
    timed.close()
    with Harness(target, threads) as harness:
        trial = harness.evaluate(candidate, WORKLOAD)
    return {step: Summary.of(seconds) for step, seconds in found.items()}, trial.processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    steps, processes = measure(options.repeats, options.threads)
    table = Table("step", "median ms", "spread", "repeats")
    for step, summary in steps.items():
        table.add_row(step, f"{summary.median * 1e3:.2f}", f"{summary.spread:.0%}", str(summary.count))
    console = Console()
    console.print(table)
    cost = steps["start"].median + steps["call"].median + steps["close"].median
    verdict = "within" if cost <= LIMIT_SECONDS else "beyond"
    console.print(f"a process costs {cost * 1e3:.2f} ms beyond its work, {verdict} {LIMIT_SECONDS * 1e3:.0f} ms; "
                  f"processes per trial: {processes}")
    write_json(options.json, "python bench/process_cost.py", {
        **steps, "process_seconds": cost, "limit_seconds": LIMIT_SECONDS, "processes_per_trial": processes})


if __name__ == "__main__":
    main()
