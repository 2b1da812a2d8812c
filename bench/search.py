"""Search strategies on recorded spaces, where the answer is known: how near to the optimum after so many evaluations.

    python bench/search.py [--spaces FOLDER] [--seeds 50] [--only guided,tpe] [--json search.json]

FOLDER holds spaces of which every point was measured (T4 results or caches of Kernel Tuner, *.json or *.json.gz);
files are named KERNEL_TARGET. Every strategy replays every space with every seed. An evaluation is a configuration
that was not tried before and lies in the space, whether it turns out to work or not. What is printed is the optimum
over the best found, the mean over spaces and seeds, with its standard error over seeds. Held against each other:
kforge's strategies; Optuna's TPE in two forms, its suggestions repaired to the nearest configuration that is free; and
Kernel Tuner's strategies with their defaults, in an environment of its own and in its own simulation.
``guided-seeded``: the ten best of another target's space of the same kernel are tried first. ``ms`` is what an
evaluation takes on a core, a strategy's start included.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from measuring import write_json
from peers import environments
from peers.process import Refused
from rich.console import Console
from rich.table import Table

from kforge.core.errors import KforgeError
from kforge.tuner.strategies import DEFAULT, NAMES, make
from kforge.tuner.strategies.recorded import Recorded, read
from kforge.tuner.strategies.replay import replay, seeds_from
from kforge.tuner.strategies.space import DiscreteSpace

HERE = Path(__file__).parent
DRIVER = HERE / "drivers" / "kernel_tuner_replay.py"
AT = (50, 100, 200)  # evaluations
SEEDED_AT = 50
SEEDED = f"{DEFAULT}-seeded"
OURS = (*NAMES, "tpe-plain")
KERNEL_TUNER = (
    "genetic_algorithm", "diff_evo", "pso", "firefly_algorithm", "simulated_annealing", "dual_annealing",
    "basinhopping", "minimize", "greedy_ils", "greedy_mls", "ordered_greedy_mls", "mls", "bayes_opt", "hybrid_vndx",
    "adaptive_tabu_greywolf",
)
_CHUNK = 5  # seeds of one job
_NICENESS = 15


@dataclass(frozen=True)
class Job:
    """Some seeds of one strategy on one space; ``like``: a recorded space that gives the first points."""

    strategy: str
    space: Path  # as ``save`` wrote it
    first: int
    last: int
    like: Path | None = None
    python: Path | None = None  # of Kernel Tuner's environment


@dataclass(frozen=True)
class Done:
    """``shares`` [seeds, evaluations], ``seconds`` of the whole job."""

    shares: np.ndarray
    seconds: float


def main() -> None:
    arguments = _arguments()
    console = Console(stderr=True)
    files = sorted(f for pattern in ("*.json", "*.json.gz") for f in arguments.spaces.glob(pattern))
    if not files:
        console.print(f"no recorded space in {arguments.spaces}: nothing to replay (--spaces names another folder)")
        return
    wanted = arguments.only.split(",") if arguments.only else [*OURS, SEEDED, *KERNEL_TUNER]
    with tempfile.TemporaryDirectory() as folder:
        recorded, saved = {}, {}
        for file in files:
            try:
                found = read(file)
            except KforgeError as error:
                console.print(f"skipped: {error}")
                continue
            recorded[found.name], saved[found.name] = found, save(found, Path(folder))
        python = _kernel_tuner(console) if set(wanted) & set(KERNEL_TUNER) else None
        jobs = list(_jobs(saved, wanted, arguments.seeds, python))
        results = _run(jobs, console)
    figures = collect(jobs, results)
    took = _milliseconds(jobs, results)
    _print(figures, recorded, took, arguments.seeds)
    write_json(arguments.json, "bench/search.py", {
        "seeds": arguments.seeds,
        "spaces": {n: {"points": len(r.space), "failing": int(np.isnan(r.cost).sum())} for n, r in recorded.items()},
        "shares": {
            strategy: {name: {at: f[:, at - 1].tolist() for at in AT if at <= f.shape[1]} for name, f in by.items()}
            for strategy, by in figures.items()
        },
        "ms": took,
    })


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", type=Path, default=HERE / "data" / "tuning_spaces")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--only", default="", help="strategies, with commas")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if unknown := set(filter(None, arguments.only.split(","))) - {*OURS, SEEDED, *KERNEL_TUNER}:
        parser.error(f"no such strategy: {', '.join(sorted(unknown))}")
    return arguments


# -- jobs --------------------------------------------------------------------------------------------------------------


def save(recorded: Recorded, folder: Path) -> Path:
    """A form that starts fast in other processes, Kernel Tuner's too."""
    path = folder / f"{recorded.name}.npz"
    values = json.dumps({name: recorded.space.values[name] for name in recorded.space.names})
    np.savez(path, codes=recorded.space.codes, cost=recorded.cost, values=np.array(values))
    return path


@cache
def load(path: Path) -> Recorded:
    with np.load(path) as data:
        values, codes = json.loads(str(data["values"])), data["codes"]
        columns = {name: [values[name][c] for c in codes[:, k].tolist()] for k, name in enumerate(values)}
        return Recorded(path.stem, DiscreteSpace(columns), data["cost"])


def _jobs(
    saved: Mapping[str, Path], wanted: Sequence[str], seeds: int, python: Path | None
) -> Iterator[Job]:
    for strategy in wanted:
        for name, path in saved.items():
            if strategy in KERNEL_TUNER:
                if python is not None:
                    yield Job(strategy, path, 0, seeds, python=python)
                continue
            siblings = [p for n, p in saved.items() if n != name and _kernel(n) == _kernel(name)]
            for like in siblings if strategy == SEEDED else [None]:
                for first in range(0, seeds, _CHUNK):
                    yield Job(strategy, path, first, min(first + _CHUNK, seeds), like)


def _kernel(name: str) -> str:
    return name.rsplit("_", 1)[0]


def perform(job: Job) -> Done:
    began = time.monotonic()
    if job.python is not None:
        command = [str(job.python), str(DRIVER), str(job.space), job.strategy]
        command += [str(job.first), str(job.last), str(AT[-1])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [json.loads(line)["shares"] for line in done.stdout.splitlines()]
        if done.returncode or len(lines) != job.last - job.first:
            raise Refused(f"{job.strategy} on {job.space.stem}: {done.stderr.strip()[-300:] or 'it ended early'}")
        return Done(np.array(lines), time.monotonic() - began)
    recorded = load(job.space)
    seeded = seeds_from(load(job.like), recorded) if job.like is not None else []
    name = job.strategy if job.like is None else DEFAULT
    evaluations = AT[-1] if job.like is None else SEEDED_AT
    rows = []
    for seed in range(job.first, job.last):
        rows.append(replay(_strategy(name, recorded.space, seed), recorded, evaluations, seeded))
    return Done(np.array(rows), time.monotonic() - began)


def _strategy(name: str, space: DiscreteSpace, seed: int):
    if name != "tpe-plain":
        return make(name, space, seed)
    from kforge.tuner.strategies.tpe import TpeSearch

    return TpeSearch(space, seed, multivariate=False)


def _kernel_tuner(console: Console) -> Path | None:
    try:
        return environments.install_kernel_tuner(console)
    except Refused as refused:
        console.print(f"without Kernel Tuner: {refused}")
        return None


def _run(jobs: Sequence[Job], console: Console) -> dict[Job, Done]:
    """On all cores, at low priority; what fails is told and left out."""
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    results: dict[Job, Done] = {}
    context = multiprocessing.get_context("spawn")  # numpy reads its number of threads where it is loaded
    with ProcessPoolExecutor(mp_context=context, initializer=os.nice, initargs=(_NICENESS,)) as pool:
        running: dict[Future[Done], Job] = {pool.submit(perform, job): job for job in jobs}
        while running:
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                job = running.pop(future)
                try:
                    results[job] = future.result()
                    means = results[job].shares.mean(axis=0)
                    shown = " ".join(f"{means[at - 1]:.3f}" for at in AT if at <= len(means))
                    told = f"{shown} in {results[job].seconds:.0f} s"
                except Refused as refused:
                    told = f"left out: {refused}"
                console.print(f"{len(jobs) - len(running)}/{len(jobs)} {job.strategy} on {job.space.stem}, seeds "
                              f"{job.first} to {job.last - 1}: {told}")
    return results


# -- figures -----------------------------------------------------------------------------------------------------------


def collect(jobs: Sequence[Job], results: Mapping[Job, Done]) -> dict[str, dict[str, np.ndarray]]:
    """Strategy -> space -> shares [seeds, evaluations], only strategies that ran on every space of theirs; where
    several spaces gave first points, the mean over them."""
    figures: dict[str, dict[str, np.ndarray]] = {}
    for strategy in dict.fromkeys(job.strategy for job in jobs):
        mine = [job for job in jobs if job.strategy == strategy]
        if any(job not in results for job in mine):
            continue
        figures[strategy] = {}
        for path in dict.fromkeys(job.space for job in mine):
            likes = dict.fromkeys(job.like for job in mine if job.space == path)
            parts = [
                np.concatenate([results[j].shares for j in mine if j.space == path and j.like == like])
                for like in likes
            ]
            figures[strategy][path.stem] = np.mean(parts, axis=0)
    return figures


def mean_and_error(by_space: Mapping[str, np.ndarray], at: int) -> tuple[float, float]:
    """Over spaces and seeds; the error is that of the seeds, since the spaces are what they are."""
    means = np.mean([shares[:, at - 1] for shares in by_space.values()], axis=0)
    return float(means.mean()), float(means.std(ddof=1) / len(means) ** 0.5) if len(means) > 1 else float("nan")


def _milliseconds(jobs: Sequence[Job], results: Mapping[Job, Done]) -> dict[str, float]:
    """Of one evaluation, the strategy's start included."""
    took: dict[str, float] = {}
    for strategy in dict.fromkeys(job.strategy for job in jobs):
        mine = [results[j] for j in jobs if j.strategy == strategy and j in results]
        if mine:
            took[strategy] = 1e3 * sum(d.seconds for d in mine) / sum(d.shares.size for d in mine)
    return took


def _print(figures: Mapping[str, dict[str, np.ndarray]], recorded: Mapping[str, Recorded], took: Mapping[str, float],
           seeds: int) -> None:
    console = Console()
    table = Table(title=f"optimum / best found, mean of {len(recorded)} spaces and {seeds} seeds ± standard error")
    table.add_column("strategy")
    for at in AT:
        table.add_column(f"{at}", justify="right")
    table.add_column("ms", justify="right")
    for name in recorded:
        table.add_column(name.replace("_", " "), justify="right")
    whole = {s: by for s, by in figures.items() if s != SEEDED}
    for strategy, by in sorted(whole.items(), key=lambda item: -mean_and_error(item[1], AT[1])[0]):
        cells = [f"{mean:.3f} ±{error:.3f}" for mean, error in (mean_and_error(by, at) for at in AT)]
        cells.append(f"{took[strategy]:.1f}")
        cells += [" ".join(f"{by[name][:, at - 1].mean():.3f}" for at in AT) for name in recorded]
        table.add_row(strategy, *cells)
    console.print(table)
    if (ours := whole.pop(DEFAULT, None)) and whole:
        for at in AT:
            mine, error = mean_and_error(ours, at)
            rival = max(whole, key=lambda s: mean_and_error(whole[s], at)[0])
            theirs, other = mean_and_error(whole[rival], at)
            console.print(f"after {at}: {DEFAULT} {mine:.3f}, the best of the others {theirs:.3f} ({rival}): ahead by "
                          f"{(mine - theirs) / np.hypot(error, other):.1f} standard errors")
    if seeded := figures.get(SEEDED):
        mean, error = mean_and_error(seeded, SEEDED_AT)
        console.print(f"seeded with the ten best of another target, after {SEEDED_AT}: {mean:.3f} ±{error:.3f} ("
                      + ", ".join(f"{n} {s[:, SEEDED_AT - 1].mean():.3f}" for n, s in seeded.items()) + ")")


if __name__ == "__main__":
    sys.exit(main())
