"""Every template of a language for GPUs built for every GPU that a target file describes, without one: registers,
spills, shared memory, occupancy and predicted time. Nothing here was measured on a GPU.

    python bench/gpu_static.py [--backend triton|cuda|hip] [--targets NAME,...] [--operators NAME,...]
                               [--corners default|few|all] [--processes N] [--json FILE]

The calls are those of a decoding step of Qwen3-8B and GPT-OSS-20B at batch 8. Builds come from the cache where they
were made before; reports lie beside them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from kforge.backends import templates
from kforge.backends.corners import corners
from kforge.backends.verbs import StaticReport, of
from kforge.core.errors import KforgeError
from kforge.core.trial import Failure, FailureClass
from kforge.core.workload import Attr, Problem, Workload
from kforge.targets import list_targets, load_target

_QWEN = {"Hq": 32, "Hkv": 8, "D": 128, "P": 16}
_OSS = {"E": 32, "k": 4}
_DECODE = {"T": 8, "S": 8, "B": 257, "pages": 2100, "max_context": 4096}
_CALLS: tuple[tuple[str, dict[str, int], dict[str, Attr]], ...] = (
    ("embedding", {"T": 8}, {"V": 151936, "H": 4096, "weight": "q8_0", "rows": 16}),
    ("rms_norm", {"T": 8}, {"H": 4096, "residual": 1}),
    ("linear", {"M": 8}, {"K": 4096, "N": 24576, "weight": "q4_0", "act": "a8", "epilogue": "silu_gate", "bias": 0,
                          "rows": 32}),
    ("linear", {"M": 8}, {"K": 4096, "N": 6144, "weight": "q4_0", "act": "f32", "epilogue": "none", "bias": 0,
                          "rows": 16}),
    ("linear", {"M": 8}, {"K": 4096, "N": 6144, "weight": "bf16", "act": "f32", "epilogue": "none", "bias": 0,
                          "rows": 16}),
    ("linear", {"M": 512}, {"K": 4096, "N": 6144, "weight": "q4_0", "act": "a8", "epilogue": "none", "bias": 0,
                            "rows": 16}),
    ("silu_mul", {"T": 8}, {"I": 12288}),
    ("rope_kv_write", {"T": 8, "pages": 2100, "positions": 4096}, {**_QWEN, "kv": "f16", "style": "neox"}),
    ("qk_norm_rope_kv_write", {"T": 8, "pages": 2100, "positions": 4096}, {**_QWEN, "kv": "f16", "style": "neox"}),
    ("paged_attention", _DECODE, {**_QWEN, "kv": "f16", "window": 0, "sinks": 0}),
    ("paged_attention", {"T": 512, "S": 1, "B": 257, "pages": 300, "max_context": 4096},
     {**_QWEN, "kv": "f16", "window": 0, "sinks": 0}),
    ("moe_route", {"T": 8}, {**_OSS, "style": "chosen"}),
    ("moe_linear", {"T": 8}, {**_OSS, "input": "token", "K": 2880, "N": 5760, "weight": "mxfp4", "act": "a8",
                              "epilogue": "swiglu_oai", "bias": 1, "rows": 32}),
    ("moe_combine", {"T": 8}, {"H": 2880, "k": 4}),
    ("gather_rows", {"R": 8, "T": 512}, {"H": 4096}),
    ("argmax", {"R": 8}, {"V": 151936}),
)


@dataclass(frozen=True)
class Job:
    """One point of a template at one call, on one target."""

    template: str
    workload: str
    params: tuple[tuple[str, Attr], ...]
    target: str
    point: str  # "default" or "corner"


@dataclass(frozen=True)
class Row:
    job: Job
    report: StaticReport | None
    failure: str = ""  # class and reason
    seconds: float = 0.0  # of building
    compiler: str = ""


def main() -> None:
    args = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 180)
    backend = of(args.backend)
    chosen = args.targets.split(",") if args.targets else [
        name for name in list_targets() if args.backend in load_target(name).backends]
    for name in chosen:
        if why := backend.cannot_build(load_target(name)):
            raise SystemExit(f"{name}: {why}")
    jobs = list(_jobs(args.backend, chosen, args.operators.split(",") if args.operators else None, args.corners))
    console.print(f"{args.backend}; {len(jobs)} builds for {', '.join(chosen)}; nothing is measured")
    with ProcessPoolExecutor(args.processes) as pool:
        rows = list(track(pool.map(_built, jobs), "building", len(jobs), console=Console(stderr=True)))
    table = Table("template", "problem", "target", "point", "registers", "spill B", "shared B", "occupancy",
                  "groups/unit", "waves", "predicted us", "bound by")
    for row in rows:
        if row.report is not None:
            have = dict(row.report.resources)
            table.add_row(_short(row.job.template), row.job.workload, row.job.target, row.job.point,
                          str(have["registers"]), str(have["spill_bytes"]), str(have["shared_bytes"]),
                          f"{row.report.occupancy:.2f}", str(have["groups_per_unit"]), str(have["waves"]),
                          f"{row.report.seconds * 1e6:.1f}", row.report.bound)
        else:
            table.add_row(_short(row.job.template), row.job.workload, row.job.target, row.job.point, row.failure)
    console.print(table)
    failed = [row for row in rows if row.failure and not row.failure.startswith(FailureClass.MEMORY.value)]
    unfit = sum(row.failure.startswith(FailureClass.MEMORY.value) for row in rows)
    console.print(f"{len(rows) - len(failed) - unfit} built, {unfit} need more shared memory or threads than the "
                  f"target has, {len(failed)} failed")
    if args.json:
        args.json.write_text(json.dumps({"backend": args.backend, "rows": [_record(row) for row in rows]}, indent=1))
    raise SystemExit(bool(failed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("triton", "cuda", "hip"), default="triton")
    parser.add_argument("--targets", default="", help="names, separated by commas; all that the backend builds for")
    parser.add_argument("--operators", default="", help="names, separated by commas; all")
    parser.add_argument("--corners", choices=("default", "few", "all"), default="default")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _jobs(backend: str, targets: list[str], operators: list[str] | None, which: str) -> Iterator[Job]:
    for operator, axes, static in _CALLS:
        if operators is not None and operator not in operators:
            continue
        problem = Problem.of(operator, **static)
        workload = Workload(problem, tuple(sorted(axes.items())))
        for template in templates.load(operator):
            if template.backend != backend:
                continue
            for name in targets:
                target = load_target(name)
                if template.applies(problem, target) is not None:
                    continue
                points = [template.defaults(problem, target)] if which == "default" else corners(
                    template, problem, target, every=which == "all")
                for i, point in enumerate(points):
                    yield Job(template.path, workload.key, tuple(point.items()), name, "corner" if i else "default")


def _built(job: Job) -> Row:
    """In a process of the pool."""
    workload, target, backend = Workload.parse(job.workload), load_target(job.target), of(job.template.split("/")[0])
    template = next(t for t in templates.load(workload.problem.operator) if t.path == job.template)
    artifact = backend.build(template.render(workload.problem, target, dict(job.params)), target)
    if isinstance(artifact, Failure):
        return Row(job, None, f"{artifact.kind.value}: {artifact.reason}")
    made = artifact.report
    try:
        return Row(job, backend.inspect(artifact, workload, target), "", made.seconds, made.compiler)
    except KforgeError as error:
        return Row(job, None, f"report: {error}", made.seconds, made.compiler)


def _short(path: str) -> str:
    return path.partition("/")[2].removesuffix(".j2").rpartition(".")[0]


def _record(row: Row) -> dict[str, object]:
    report = row.report
    known = {} if report is None else {
        "resources": dict(report.resources), "mix": dict(report.mix), "occupancy": report.occupancy,
        "predicted_seconds": report.seconds, "bound": report.bound, "notes": report.notes}
    return {"template": row.job.template, "workload": row.job.workload, "target": row.job.target,
            "params": dict(row.job.params), "build_seconds": row.seconds, "compiler": row.compiler,
            "failure": row.failure, **known}


if __name__ == "__main__":
    main()
