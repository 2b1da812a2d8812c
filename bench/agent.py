"""Templates of a language model against the built-in rules: the same workload, trials and judge, each from nothing.

    python bench/agent.py --agent openai:MODEL [--trials 60] [--repeats 3] [--only NAME,...] [--parallel N] [--out DIR]

For every workload and repeat two runs, in an order that alternates: the built-in rules alone, and the same with the
model's proposals. Each has a registry of its own that knows nothing, at most ``--trials`` trials and the same budget;
each ends with the kernel that its judge accepted over the default, or the default. Then the two kernels meet before the
judge, one against the other, with the machine's calibrated noise: *beats* is a kernel accepted over the other. Lessons
and earlier kernels reach neither. ``--submit`` hands the model's kernels that win to your own registry as ``kforge try
--submit`` does; ``kforge kernels promote`` has the engine decide then. Killed, it goes on with the same ``--out``.
With ``--parallel`` so many duels are under way at once, because a model thinks longer than its kernels take to measure;
one of them at a time builds, checks, times or judges.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from measuring import write_json
from rich.console import Console
from rich.table import Table

from kforge.agent.budget import spent_in
from kforge.agent.opening import Agent
from kforge.backends.defaults import default_kernel
from kforge.core.defaults import DEFAULT_ROWS
from kforge.core.target import Target
from kforge.core.trial import Candidate, Decision, Verdict
from kforge.core.workload import Workload
from kforge.harness import Harness
from kforge.harness.judge import Rules
from kforge.harness.turn import Turn
from kforge.models import load
from kforge.models.fetch import resolve
from kforge.models.graph import CallKind, StepOptions
from kforge.models.synth_plan import SHAPES, plan
from kforge.models.workloads import workloads
from kforge.registry.database import Registry
from kforge.targets.files import load_target
from kforge.targets.noise import noise_of
from kforge.tuner.attempt import submit
from kforge.tuner.contenders import incumbent, stored_candidate
from kforge.tuner.coordinator import Coordinator
from kforge.tuner.finals import bucket_shapes
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.options import TuneOptions
from kforge.tuner.plan import Bucket, Task
from kforge.tuner.progress import Silent
from kforge.tuner.tune import started

LLAMA, SMOL = "llama-3.2-1b:q4_0", "smollm2-135m"


@dataclass(frozen=True)
class Case:
    """One call of one mode of a model: as many sequences, each at this context; a prefill chunk when ``prefill``.
    ``key``: a workload by itself, which no model's step calls."""

    name: str
    model: str
    kind: CallKind | None = None
    sequences: int = 1
    context: int = 512
    prefill: bool = False
    key: str = ""

    def workload(self) -> Workload:
        """As the engine calls it, at its bucket's tuning point."""
        if self.key:
            return Workload.parse(self.key)
        shape, _, form = self.model.partition(":")
        model = plan(shape, form) if shape in SHAPES else load(resolve(self.model))
        batches = () if self.prefill else (self.sequences,)
        rows = workloads(model, batches, (self.context,), self.context if self.prefill else 0, StepOptions())
        found = next(row.workload for row in rows if row.kind is self.kind)
        return Workload(found.problem.without_layout, found.dynamic)


CASES = (
    Case("linear-1", LLAMA, CallKind.GATE_UP, 1),
    Case("linear-8", LLAMA, CallKind.GATE_UP, 8),
    Case("linear-64", LLAMA, CallKind.GATE_UP, 64),
    Case("attention-512", LLAMA, CallKind.ATTENTION, 8, 512),
    Case("attention-4096", LLAMA, CallKind.ATTENTION, 8, 4096),
    Case("attention-prefill", LLAMA, CallKind.ATTENTION, 1, 512, prefill=True),
    Case("rms-norm-32", LLAMA, key="rms_norm(H=2048,residual=1)@T=32"),
    Case("head-1", SMOL, CallKind.HEAD, 1),
)


@dataclass(frozen=True)
class OneLayout(Task):
    """A task in one layout alone: kernels of two layouts cannot be held against each other without an engine."""

    rows: int = 0

    def rows_choices(self) -> tuple[int, ...]:
        return (self.rows,)


@dataclass(frozen=True)
class Winner:
    """What one run came to. ``gain``: over the default, by its own judge; 0 where the default stays."""

    candidate: Candidate
    gain: float
    trials: int
    seconds: float
    proposals: int
    calls: int
    tokens: int


class Duel:
    """One case in one repeat, below ``folder``."""

    def __init__(self, case: Case, repeat: int, args: argparse.Namespace, target: Target, folder: Path):
        self.case, self.repeat, self.args, self.target = case, repeat, args, target
        self.folder = folder / f"{case.name}-{repeat}"
        self.threads = args.threads or target.cores
        workload = case.workload()
        whole = Task(workload.problem, (Bucket(workload, ()),))
        self.task = OneLayout(whole.problem, whole.buckets, DEFAULT_ROWS if whole.packed else 0)

    @cached_property
    def turn(self) -> Turn:
        return Turn(self.folder.parent / "turn.lock")

    @property
    def workload(self) -> Workload:
        return self.task.workload(self.task.buckets[0], self.task.rows)

    def run(self, side: str) -> Winner:
        """One side's run, or the rest of one that was killed."""
        agent = self.args.agent if side == "model" else ""
        options = TuneOptions(
            model=self.case.model, budget_seconds=self.args.budget, threads=self.threads, max_trials=self.args.trials,
            seed=self.repeat, agent=agent, max_calls=self.args.max_calls if agent else 0,
            max_tokens=self.args.max_tokens if agent else 0,
        )
        below = self.folder / side
        earlier = sorted(path.parent for path in below.glob("*/journal.jsonl"))
        folder = RunFolder.resume(earlier[-1]) if earlier else RunFolder.create(below, self.case.name)
        asked = Agent.of(options)
        with Registry.open(below / "registry.db") as registry, folder:
            if not folder.lines:
                folder.write(Event.STARTED, started(options, self.target))
            registry.begin_run(folder.id, options.model, self.target.identity, folder.path)
            with asked.proposing(folder, registry, self.target) if asked else nullcontext() as proposer:
                run = Coordinator(options, folder, registry, self.target, Silent(), proposer, turn=self.turn)
                outcome = run.run([self.task])
            mine = [k for k in registry.snapshot().kernels if k.run == folder.id]
            kernel = max(mine, key=lambda k: k.gain, default=None)
            problem = self.workload.problem
            candidate = (
                stored_candidate(kernel, registry.store) if kernel else default_kernel(problem, self.target)
            )
            spent = spent_in(folder.path).values() if agent else ()
            return Winner(
                candidate, kernel.gain if kernel else 0.0, outcome.trials, folder.used_seconds,
                len(folder.of(Event.PROPOSAL)), sum(s.calls for s in spent), sum(s.usage.total for s in spent),
            )

    def row(self) -> dict[str, object]:
        """Both runs and their meeting."""
        sides = ("rules", "model") if self.repeat % 2 else ("model", "rules")
        won = {side: self.run(side) for side in sides}
        rules, model = won["rules"], won["model"]
        verdict = self._meeting(model.candidate, rules.candidate)
        word = "same kernel" if verdict is None else _word(verdict)
        number = None
        if word == "beats" and self.args.submit:
            number = self._submitted(model.candidate)
        return {
            "case": self.case.name,
            "repeat": self.repeat,
            "workload": self.workload.key,
            "word": word,
            "gain": verdict.gain if verdict else 0.0,
            "lower": verdict.lower if verdict else 0.0,
            "upper": verdict.upper if verdict else 0.0,
            "kernel": number,
            **{
                side: {**{k: v for k, v in dataclasses.asdict(w).items() if k != "candidate"},
                       "candidate": w.candidate.hash, "template": w.candidate.template,
                       "params": dict(w.candidate.params)}
                for side, w in won.items()
            },
        }

    def _meeting(self, model: Candidate, rules: Candidate) -> Verdict | None:
        if model.source == rules.source:
            return None
        with Harness(self.target, self.threads, turn=self.turn) as harness:
            noise = Rules(noise=noise_of(self.target, self.threads))
            return harness.judge(model, rules, bucket_shapes(self.workload), rules=noise)

    def _submitted(self, candidate: Candidate) -> int | None:
        with Registry.open() as registry, Harness(self.target, self.threads, turn=self.turn) as harness, self.turn:
            serving = incumbent("tuned", self.workload, registry.snapshot(), registry.store, self.target)
            return submit(candidate, self.workload, serving, harness, registry).kernel


def _word(verdict: Verdict) -> str:
    if verdict.decision is Decision.ACCEPTED:
        return "beats"
    return "loses" if verdict.upper < 0 else "ties" if verdict.decision is Decision.REJECTED else "undecided"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", required=True, help="PROVIDER:MODEL, as of kforge tune")
    parser.add_argument("--trials", type=int, default=60, help="of each run")
    parser.add_argument("--max-calls", type=int, default=12, help="of the model in a run")
    parser.add_argument("--max-tokens", type=int, default=2_000_000, help="of the model in a run")
    parser.add_argument("--budget", type=float, default=1800.0, help="seconds of a run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help=f"of {', '.join(case.name for case in CASES)}")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=1, help="duels under way at once; they take turns measuring")
    parser.add_argument("--submit", action="store_true", help="hand winners to your registry")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-agent"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    wanted = [case for case in CASES if case.name in args.only.split(",") or not args.only]
    target = load_target("host")
    args.out.mkdir(parents=True, exist_ok=True)
    kept = args.out / "rows.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    done = {(row["case"], row["repeat"]) for row in rows}
    left = [(case, repeat) for repeat in range(1, args.repeats + 1) for case in wanted
            if (case.name, repeat) not in done]
    for row in _rows([Duel(case, repeat, args, target, args.out) for case, repeat in left], args.parallel):
        print(f"{row['case']} {row['repeat']}: {row['word']} ({100 * float(str(row['gain'])):+.1f} %)", flush=True)
        rows.append(row)
        with kept.open("a") as file:
            file.write(json.dumps(row) + "\n")
    Console().print(_table(rows))
    write_json(args.json, "bench/agent.py", {"agent": args.agent, "trials": args.trials, "rows": rows})


def _rows(duels: Sequence[Duel], parallel: int) -> Iterator[dict[str, object]]:
    """As they are fought out, ``parallel`` at once, each in a process of its own."""
    if parallel == 1:
        yield from (duel.row() for duel in duels)
        return
    with ProcessPoolExecutor(parallel, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(duel.row) for duel in duels]):
            yield done.result()


def _table(rows: list[dict]) -> Table:
    table = Table(title="the model's kernel over the rules' kernel, as judged in interleaved pairs")
    for column in ("case", "repeat", "word", "gain", "rules over default", "model over default", "ideas", "calls"):
        table.add_column(column, justify="left" if column in ("case", "word") else "right")
    for row in sorted(rows, key=lambda r: (r["case"], r["repeat"])):
        rules, model = row["rules"], row["model"]
        table.add_row(
            row["case"], str(row["repeat"]), row["word"], f"{100 * row['gain']:+.1f} [{100 * row['lower']:+.1f}] %",
            f"{100 * rules['gain']:+.1f} %", f"{100 * model['gain']:+.1f} %",
            str(model["proposals"]), str(model["calls"]),
        )
    return table


if __name__ == "__main__":
    main()
