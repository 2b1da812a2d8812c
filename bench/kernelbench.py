"""Problems in KernelBench's form: imported, tuned, and held against torch, eager and compiled, on the same inputs.

    python bench/kernelbench.py --problems DIR [--only level1/23,level1/40] [--budget 2m] [--json kernelbench.json]

A problem is a file with ``Model``, ``get_inputs`` and ``get_init_inputs``. It is scaled to fit the machine where it
must be, imported (kforge operator import) and tuned (kforge tune, with ``--agent`` by a model too). Then the kernel
that serves, the original module and its torch.compile take turns, calls in batches of some tens of milliseconds on
the parent's clock, all with the module's own inputs and parameters in memory and the same number of threads. The
module runs confined in a process of its own. ``beat`` and ``lose`` are told where the 95 % interval of the ratio to
the faster of torch's two leaves out 1. The geometric mean is over the problems that were compared, right and not
flagged, each ratio counting as 3 at most. The limit is all that is given and returned over the bandwidth measured in
the same rounds, where that is more than the caches hold, or operations over the measured peak; the table says how much
of it either side reaches. What goes on is told on standard error. With ``--parallel`` so many problems are under way at
once, each with a registry of its own below ``--runs-dir``, because a model thinks longer than its kernels take to
measure; one at a time builds, checks, times or is compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from confined import Confined
from measuring import write_json
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kforge.backends.cpp.admission import admit
from kforge.backends.cpp.build import build
from kforge.core.errors import KforgeError
from kforge.core.image import Image
from kforge.core.kernel import Tier
from kforge.core.paths import data_dir, store_path
from kforge.core.summary import Summary
from kforge.core.target import Target
from kforge.core.trial import Artifact, Failure, NumericsClass
from kforge.core.words import counted, plain
from kforge.engine.executors import LocalExecutor
from kforge.engine.isolation import IsolatedExecutor
from kforge.engine.kernel_set import OWN, ChosenKernel
from kforge.harness.cases import solve
from kforge.harness.check import judge_outputs
from kforge.harness.turn import Turn
from kforge.importing.importer import Request, import_operator
from kforge.native import Arena
from kforge.operators.base import Cost, Role
from kforge.operators.graph import concrete
from kforge.operators.imported import Imported
from kforge.registry.ask import ask, open_snapshot
from kforge.registry.store import Store
from kforge.targets.files import host
from kforge.targets.probe import measure_bandwidth, measure_peak
from kforge.targets.roofline import time_limit
from kforge.tuner.generated import untuned
from kforge.tuner.location import locate

DRIVER = "kernelbench_torch.py"
CAP = 3.0  # what a ratio counts in the geometric mean at most
_BATCH_SECONDS = 0.03
_REST = 0.05  # threads of the side before go to sleep
_PROBE_SECONDS = 0.05
_LEAST_ROUNDS = 10
_NEAR = 0.85  # of the limit: what is left is within what limits are off by
_LONGEST = 48  # letters of an operator's name

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Serving:
    """The kernel that serves an operator at the batch of its import. ``isolated``: it runs in a process of its own,
    because a model wrote it."""

    kernel: ChosenKernel
    label: str
    isolated: bool


@dataclass(frozen=True)
class Compared:
    """Medians over rounds. ``ratios``: of torch's sides, by name, to ours; ``faster`` is the one to beat, ``gain`` the
    location of its ratios, minus one. ``share``: of the limit, which ``bound_by`` names. ``wrong``: "" where ours and
    the module's outputs are within the operator's bound on the module's inputs."""

    seconds: Mapping[str, Summary]
    ratios: Mapping[str, Summary]
    faster: str
    gain: float
    lower: float
    upper: float
    share: Summary
    bound_by: str
    wrong: str

    @property
    def word(self) -> str:
        if self.wrong:
            return "wrong"
        return "beat" if self.lower > 0 else "lose" if self.upper < 0 else "tie"

    @property
    def why(self) -> str:
        """How near its limit either side is: where both are near, neither can be much faster."""
        ours = self.share.median
        theirs = ours / self.ratios[self.faster].median
        text = f"{100 * ours:.0f} % of the limit ({self.bound_by}), {self.faster} {100 * theirs:.0f} %"
        if max(ours, theirs) > 1:
            return f"{text}: above 100 %, so the limit was measured too low; again on an idle machine"
        return f"{text}: no room" if min(ours, theirs) >= _NEAR else text


@dataclass(frozen=True)
class Row:
    """What became of a problem. ``reason``: why it was not compared; ``remarks``: such as what torch.compile said."""

    problem: str
    operator: str = ""
    shapes: str = ""
    scaling: str = ""
    flags: tuple[str, ...] = ()
    kernel: str = ""
    compared: Compared | None = None
    reason: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        return self.compared is not None and not self.compared.wrong and not self.flags


@dataclass(frozen=True)
class Side:
    """``run`` makes so many calls and returns their seconds."""

    name: str
    run: Callable[[int], float]


def problems_in(folder: Path, only: Sequence[str]) -> list[Path]:
    """Problem files below the folder. ``only``: beginnings of their paths, such as level1/23, up to a word's end."""
    found = sorted(path for path in folder.rglob("*.py") if not path.name.startswith("_"))
    wanted = [re.compile(re.escape(one.removesuffix(".py")) + r"(?![A-Za-z0-9])") for one in only]
    return [p for p in found if not wanted or any(w.match(p.relative_to(folder).as_posix()) for w in wanted)]


def name_of(path: Path, folder: Path) -> str:
    """``level1/23_Softmax.py`` as ``level1_23_softmax``, also where the folder is ``level1`` itself."""
    parts = path.relative_to(folder).with_suffix("").parts
    if not parts[0][:1].isalpha():  # an operator's name begins with a letter
        above = folder.resolve().name
        parts = (above if above[:1].isalpha() else "problem", *parts)
    return re.sub("[^a-z0-9]+", "_", "_".join(parts).lower())[:_LONGEST].strip("_")


def tuned(name: str, args: argparse.Namespace, tell: Tell) -> None:
    """Passes on what the command says meanwhile. Raises KforgeError with its last sentence where it fails."""
    command = [sys.executable, "-m", "kforge.cli.main", "tune", name, "--budget", args.budget, "--threads",
               str(args.threads), "--runs-dir", str(args.runs_dir)]
    for option in ("agent", "max_usd", "max_tokens", "max_calls", "max_trials", "turn"):
        if value := getattr(args, option):
            command += [f"--{option.replace('_', '-')}", str(value)]
    said = ""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in filter(None, map(str.strip, running.stderr)):
            said = line.removeprefix("kforge: ")
            tell(said)
    if running.returncode != 0:
        raise KforgeError(f"tuning: {said or f'exit code {running.returncode}'}")


def serving(operator: Imported, target: Target) -> Serving:
    """What a look-up answers, else the generated default. Raises KforgeError where that does not build."""
    kernel = ask(open_snapshot(), operator.name, {}, target).kernel
    if kernel is not None:
        data, label = Store(store_path()).get(kernel.artifact_hash), f"{kernel.template} {kernel.candidate_hash}"
        return Serving(_chosen(data, kernel.candidate_hash, kernel.template, Tier.EXACT), label,
                       kernel.proposer not in OWN)
    candidate = untuned(operator, target)
    artifact = build(candidate, target)
    if not isinstance(artifact, Artifact):
        raise KforgeError(f"the generated default does not build: {artifact.reason}")
    chosen = _chosen(artifact.data, candidate.hash, candidate.template, Tier.DEFAULT)
    return Serving(chosen, "the generated default", False)


def _chosen(data: bytes, digest: str, template: str, tier: Tier) -> ChosenKernel:
    image = admit(data)
    if not isinstance(image, Image):
        raise KforgeError(f"kernel {digest} is refused: {image.reason}")
    return ChosenKernel(image, digest, template, NumericsClass.RELAXED, tier)


class Ours:
    """The kernel with the module's own tensors resident."""

    def __init__(self, operator: Imported, kernel: Serving, given: Sequence[np.ndarray], threads: int) -> None:
        self._specs = operator.tensors(operator.workload)
        self._executor = IsolatedExecutor(threads) if kernel.isolated else LocalExecutor(threads)
        made = [spec for spec in self._specs if spec.role is not Role.IN]
        inputs = Arena(sum(array.nbytes + 64 for array in given) + 4096, self._executor.shared)
        outputs = Arena(sum(spec.bytes + 64 for spec in made) + 4096, self._executor.shared)
        self._executor.share(inputs, writable=False)
        self._executor.share(outputs, writable=True)
        axes = inputs.take((1,), np.int64)
        axes[:] = operator.batch
        self.inputs = [inputs.take(array.shape, np.float32) for array in given]
        for place, array in zip(self.inputs, given, strict=True):
            place[...] = array
        self.outputs = {spec.name: outputs.take(spec.shape, np.float32) for spec in made}
        self._program = self._executor.program()
        tensors = [*self.inputs, *self.outputs.values()]
        self._program.add(kernel.kernel, tensors, axes, inputs.take((0,), np.float64), operator.name, axes)
        self._program.reserve()

    def run(self, calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            self._program.run()
        return time.perf_counter() - began

    def close(self) -> None:
        self._program.close()
        self._executor.close()


class Torch:
    """The original module, confined. A context manager."""

    def __init__(self, file: Path, operator: Imported, threads: int) -> None:
        given = [{"name": g.name, "shape": list(concrete(g.shape, operator.batch))} for g in operator.graph.given]
        job = {"label": file.name, "threads": threads, "given": given, "lead": operator.record.lead,
               "sizes": dict(operator.record.sizes)}
        self._operator = operator
        self._driver = Confined(DRIVER, {"problem.py": file.read_text(encoding="utf-8"), "job.json": json.dumps(job)})
        self._overhead = 0.0

    def __enter__(self) -> Torch:
        self._driver.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._driver.__exit__(*error)  # type: ignore[arg-type]

    def leave(self) -> None:
        """Makes it write what it is given and returns. Raises KforgeError where that is not what was imported."""
        self.version = str(self._driver.ask(do="leave")["torch"])
        self._overhead = min(self._timed("eager", 0) for _ in range(20))

    def compiles(self) -> str:
        """"" when it does, else why not."""
        try:
            self._driver.ask(do="compile")
        except KforgeError as error:
            return str(error)
        return ""

    def array(self, kind: str, number: int, shape: tuple[int, ...]) -> np.ndarray:
        """Raises KforgeError for one of another size."""
        values = np.fromfile(self._driver.work / f"{kind}.{number}", np.float32)
        if values.size != math.prod(shape):
            raise KforgeError(f"the module's {kind} {number} has {values.size} elements, not those of {shape}")
        return values.reshape(shape)

    def side(self, name: str) -> Side:
        return Side(name, lambda calls: max(self._timed(name, calls) - self._overhead, 1e-9))

    def _timed(self, side: str, calls: int) -> float:
        began = time.perf_counter()
        self._driver.ask(do="run", side=side, calls=calls)
        return time.perf_counter() - began


def wrong(operator: Imported, ours: Ours, module: Sequence[np.ndarray]) -> str:
    """Why our outputs are not the module's: both are held against the operator's bound on the module's own inputs."""
    specs = [spec for spec in operator.tensors(operator.workload) if spec.role is not Role.IN]
    inputs = {given.name: array for given, array in zip(operator.graph.given, ours.inputs, strict=True)}
    answer = solve(operator, operator.workload, inputs, NumericsClass.RELAXED)
    theirs = {spec.name: array for spec, array in zip(specs, module, strict=True)}
    for who, outputs in (("the module", theirs), ("the kernel", ours.outputs)):
        found = judge_outputs(specs, outputs, answer)
        if isinstance(found, Failure):
            return f"{who}: {found.reason} ({found.detail})"
    return ""


def calls_for(side: Side) -> int:
    """As many as take a batch's time; warm-up as well."""
    calls = 1
    while (seconds := side.run(calls)) < _BATCH_SECONDS / 2:
        calls = max(2 * calls, round(calls * _BATCH_SECONDS / max(seconds, 1e-6)))
    return max(1, round(calls * _BATCH_SECONDS / seconds))


def interleaved(sides: Sequence[Side], cost: Cost, target: Target, threads: int, rounds: int,
                mistaken: str) -> Compared:
    """``sides``: ours first. Every side once a round, in alternating order, the bandwidth probed beside them."""
    peaks = tuple((name, measure_peak(name, threads)) for name, _ in cost.operations)
    now = dataclasses.replace(target, peaks=peaks, cores=threads)
    calls = {side.name: calls_for(side) for side in sides}
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    limits = []
    for n in range(rounds):
        bandwidth = measure_bandwidth(threads, seconds=_PROBE_SECONDS).value
        limits.append(time_limit(cost, now, threads, bandwidth))
        for side in sides if n % 2 == 0 else sides[::-1]:
            seconds[side.name].append(side.run(calls[side.name]) / calls[side.name])
            time.sleep(_REST)
    ours = seconds[sides[0].name]
    ratios = {s.name: [t / o for t, o in zip(seconds[s.name], ours, strict=True)] for s in sides[1:]}
    faster = min(ratios, key=lambda name: Summary.of(seconds[name]).median)
    at = locate(ratios[faster])
    share = Summary.of([limit.seconds / o for limit, o in zip(limits, ours, strict=True)])
    return Compared({name: Summary.of(found) for name, found in seconds.items()},
                    {name: Summary.of(found) for name, found in ratios.items()}, faster, at.gain, at.lower, at.upper,
                    share, limits[0].bound_by, mistaken)


def resident(cost: Cost, target: Target) -> Cost:
    """Of calls that find the same tensors each time: they come from memory where the caches cannot hold them."""
    size = cost.streamed_bytes + cost.hot_bytes
    streamed = size if size > target.llc_bytes else 0
    return Cost(streamed, size - streamed, cost.operations)


def compared(file: Path, operator: Imported, target: Target, args: argparse.Namespace) -> Row:
    """Raises KforgeError where a side cannot run."""
    kernel = serving(operator, target)
    specs = operator.tensors(operator.workload)
    remarks = []
    with Torch(file, operator, args.threads) as module:
        module.leave()
        given = [module.array("given", i, spec.shape) for i, spec in enumerate(specs) if spec.role is Role.IN]
        made = [spec for spec in specs if spec.role is not Role.IN]
        ours = Ours(operator, kernel, given, args.threads)
        try:
            ours.run(1)
            mistaken = wrong(operator, ours, [module.array("out", i, spec.shape) for i, spec in enumerate(made)])
            sides = [Side("ours", ours.run), module.side("eager")]
            if why := module.compiles():
                remarks.append(f"torch.compile fails here: {why}")
            else:
                sides.append(module.side("compile"))
            cost = resident(operator.cost(operator.workload), target)
            found = interleaved(sides, cost, target, args.threads, args.rounds, mistaken)
        finally:
            ours.close()
    return dataclasses.replace(_known(file, operator, args), kernel=kernel.label, compared=found,
                               remarks=tuple(remarks))


def _known(file: Path, operator: Imported, args: argparse.Namespace) -> Row:
    shapes = ", ".join(f"{s.name}[{','.join(map(str, s.shape))}]" for s in operator.tensors(operator.workload))
    return Row(file.relative_to(args.problems).as_posix(), operator.name, shapes, operator.record.scaling,
               operator.record.flags)


def one(file: Path, target: Target, args: argparse.Namespace, tell: Tell) -> Row:
    """A problem from the file to its row; what fails on the way is in the row."""
    tell("importing")
    try:
        operator = import_operator(Request(file, name=name_of(file, args.problems), replace=True))
    except KforgeError as error:
        return Row(file.relative_to(args.problems).as_posix(), reason=str(error))
    if operator.unfit:
        return dataclasses.replace(_known(file, operator, args), reason="not tuned: flagged")
    try:
        tell(f"imported as {operator.name}, tuning for {args.budget}")
        tuned(operator.name, args, tell)
        with Turn(args.turn) if args.turn else nullcontext():
            tell(f"comparing with torch, {args.rounds} rounds")
            return compared(file, operator, target, args)
    except KforgeError as error:
        return dataclasses.replace(_known(file, operator, args), reason=str(error))


def apart(number: int, count: int, file: Path, args: argparse.Namespace) -> Row:
    """A problem in this process, with a registry of its own below ``--runs-dir``: one registry allows one tune."""
    home = args.runs_dir / f"home-{name_of(file, args.problems)}"
    if (known := data_dir() / "targets").is_dir():  # this machine and its calibrated noise
        shutil.copytree(known, home / "targets", dirs_exist_ok=True)
    os.environ["KFORGE_HOME"] = str(home.resolve())
    return told(number, count, file, args)


def told(number: int, count: int, file: Path, args: argparse.Namespace) -> Row:
    """``one``, its progress and its end on standard error."""
    tell = teller(f"[{number}/{count}] {file.relative_to(args.problems).as_posix()}")
    row = one(file, host(), args, tell)
    tell(f"{row.compared.word}: {row.compared.wrong or row.compared.why}" if row.compared else row.reason)
    return row


def all_rows(files: Sequence[Path], args: argparse.Namespace) -> list[Row]:
    """In the order of the files; ``--parallel`` at once, of which one at a time measures."""
    if args.parallel == 1:
        return [told(number, len(files), file, args) for number, file in enumerate(files, 1)]
    args.runs_dir.mkdir(parents=True, exist_ok=True)
    args.turn = args.turn or args.runs_dir / "turn.lock"
    with ProcessPoolExecutor(args.parallel, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        asked = [pool.submit(apart, number, len(files), file, args) for number, file in enumerate(files, 1)]
        return [row.result() for row in asked]


def teller(head: str) -> Tell:
    """Says what goes on behind ``head``, on standard error."""
    def tell(text: str) -> None:
        print(f"{head}: {plain(text)}", file=sys.stderr, flush=True)

    return tell


def geometric_mean(rows: Sequence[Row]) -> float | None:
    """Of the ratios to the faster of torch's sides that count."""
    logs = [math.log(min(row.compared.ratios[row.compared.faster].median, CAP)) for row in rows
            if row.counts and row.compared is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def print_table(rows: Sequence[Row], threads: int, console: Console) -> None:
    table = Table(title=f"ours over torch, {counted(threads, 'thread')}, interleaved")
    for column in ("problem", "ours", "eager / ours", "compile / ours", "to the faster", "result", "why"):
        left = column in ("problem", "result", "why")
        table.add_column(column, justify="left" if left else "right", overflow="fold", no_wrap=column == "result")
    for row in rows:
        found = row.compared
        if found is None:
            table.add_row(row.problem, "", "", "", "", "none", Text(row.reason))
            continue
        ratios = [str(found.ratios[name]) if name in found.ratios else "-" for name in ("eager", "compile")]
        table.add_row(row.problem, f"{1e6 * found.seconds['ours'].median:.1f} us", *ratios,
                      f"{1 + found.gain:.2f} [{1 + found.lower:.2f}, {1 + found.upper:.2f}]",
                      f"{found.word}{', flagged' if row.flags else ''}", Text(found.wrong or found.why))
    console.print(table)
    for row in rows:
        scaled = f"scaled: {row.scaling}" if row.scaling else ""
        mistaken = row.compared.wrong if row.compared else ""
        told = (row.shapes, scaled, row.kernel, *row.flags, row.reason, mistaken, *row.remarks)
        console.print(f"{row.problem}: {'; '.join(filter(None, told))}", highlight=False, markup=False, soft_wrap=True)
    words = [row.compared.word for row in rows if row.compared is not None and row.counts]
    said = ", ".join(f"{words.count(word)} {word}" for word in ("beat", "tie", "lose"))
    mean = geometric_mean(rows)
    imported = sum(bool(row.operator) for row in rows)
    end = f"; geometric mean of the ratios, {CAP:g} at most each: {mean:.2f}" if mean else ""
    console.print(f"{counted(len(rows), 'problem')}, {imported} imported, {len(words)} counted: {said}{end}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=Path, required=True, help="a folder of problem files")
    parser.add_argument("--only", default="", help="only these, comma separated, such as level1/23")
    parser.add_argument("--budget", default="2m", help="of each problem's tune")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--agent", default="", help="models that write templates, as in kforge tune")
    parser.add_argument("--max-usd", type=float, default=0.0, help="of each problem")
    parser.add_argument("--max-tokens", type=int, default=0)
    parser.add_argument("--max-calls", type=int, default=0)
    parser.add_argument("--max-trials", type=int, default=0, help="of each problem; 0: what the time allows")
    parser.add_argument("--parallel", type=int, default=1, help="problems under way at once; one at a time measures")
    parser.add_argument("--turn", type=Path, help="the file whose lock is held to measure (kforge tune --turn)")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.agent and not (args.max_usd or args.max_tokens):
        parser.error("a model costs money: give --max-usd or --max-tokens")
    args.rounds = max(args.rounds, _LEAST_ROUNDS)
    console = Console(width=120)
    args.threads = args.threads or host().cores
    files = problems_in(args.problems, [one for one in args.only.split(",") if one])
    if not files:
        raise SystemExit(f"there is no problem {args.only} in {args.problems}")
    rows = all_rows(files, args)
    print_table(rows, args.threads, console)
    document = [{**dataclasses.asdict(row), "word": row.compared.word if row.compared else None,
                 "why": row.compared.why if row.compared else None, "counts": row.counts} for row in rows]
    figures = {"threads": args.threads, "rounds": args.rounds, "budget": args.budget, "agent": args.agent,
               "geometric_mean": geometric_mean(rows), "problems": document}
    write_json(args.json, "bench/kernelbench.py", figures)


if __name__ == "__main__":
    main()
