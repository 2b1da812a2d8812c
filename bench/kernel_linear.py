"""Default linear kernels at two models' shapes, as shares of this machine's limits measured in the same rounds.

    python bench/kernel_linear.py [--threads 2] [--only down] [--set prefetch=0] [--json linear.json]

Every call reads another copy of the weights, so that they come from memory as in a decode step. A round times each
copy's call once (their median: a call that lost its core does not count), then the read bandwidth, then the int8
(or float32) peak; shares are medians over rounds, `best` is the 90th percentile. The limit of a call is the larger of
its bytes' time and its operations' time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from measuring import write_json
from rich.console import Console
from rich.table import Table

from kforge import operators
from kforge.backends import templates
from kforge.backends.cpp.admission import admit
from kforge.backends.cpp.build import build
from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.core.image import Image
from kforge.core.target import Target
from kforge.core.trial import Artifact
from kforge.core.workload import Attr, Problem, Workload, attribute
from kforge.native import Arena, Kernel, Program, Team, huge_array
from kforge.operators import layouts
from kforge.targets.files import host
from kforge.targets.probe import BandwidthProbe, measure_peak

TOKENS = (1, 8, 32, 512)
MAX_COPIES = 64


@dataclass(frozen=True)
class Shape:
    name: str
    n: int
    k: int
    weight: str
    epilogue: str = "none"
    act: str = "a8"

    def problem(self, rows: int) -> Problem:
        return Problem.of("linear", K=self.k, N=self.n, weight=self.weight, act=self.act, epilogue=self.epilogue,
                          bias=0, rows=rows)


SHAPES = (
    Shape("smollm2 qkv", 960, 576, "q4_1"), Shape("smollm2 o", 576, 576, "q4_1", "residual"),
    Shape("smollm2 gate_up", 3072, 576, "q4_1", "silu_gate"), Shape("smollm2 down", 576, 1536, "q4_1", "residual"),
    Shape("smollm2 head", 49152, 576, "q8_0"),
    Shape("llama qkv", 3072, 2048, "q4_0"), Shape("llama o", 2048, 2048, "q4_0", "residual"),
    Shape("llama gate_up", 16384, 2048, "q4_0", "silu_gate"), Shape("llama down", 2048, 8192, "q4_0", "residual"),
    Shape("llama w8a8 o", 2048, 2048, "int8_channel", "residual", "a8_token"),
    Shape("llama w8a8 gate_up", 16384, 2048, "int8_channel", "silu_gate", "a8_token"),
    Shape("llama w8a8 down", 2048, 8192, "int8_channel", "residual", "a8_token"),
    Shape("llama head", 128256, 2048, "q6_k"), Shape("llama qkv bf16", 3072, 2048, "bf16", act="f32"),
    Shape("llama qkv bf16 dot", 3072, 2048, "bf16", act="bf16_dot"),
    Shape("llama gate_up bf16 dot", 16384, 2048, "bf16", "silu_gate", "bf16_dot"),
    Shape("llama head bf16 dot", 128256, 2048, "bf16", act="bf16_dot"),
)


@dataclass(frozen=True)
class Figure:
    """Medians over rounds; ``limit`` is the share of the roofline, the other two its parts."""

    shape: str
    tokens: int
    template: str
    rounds: int
    bandwidth: float
    compute: float
    limit: float
    best: float
    spread: float


def packed(shape: Shape, problem: Problem) -> np.ndarray:
    """The weight's bytes: the first panels packed from random values, the others copies of them."""
    rows = problem.int("rows")
    layout = layouts.panel_layout(rows, shape.epilogue == "silu_gate")
    size = layouts.packed_bytes(WeightFormat(shape.weight), shape.n, shape.k, layout)
    part = layouts.pack(layouts.random(WeightFormat(shape.weight), 2 * rows, shape.k, 1), layout)
    return np.resize(part, size)


def kernel_of(problem: Problem, target: Target, given: dict[str, Attr]) -> tuple[Kernel, str]:
    """The first applicable template, widest vectors first, built with its defaults but for ``given``."""
    order = ("a8_vnni", "a8_token_vnni", "bf16_dot_avx512", "f32_avx512", "a8_avx2", "a8_token_avx2", "f32_avx2",
             "portable")
    found = {t.path.rsplit("/", 1)[1].split(".")[0]: t for t in templates.load("linear")}
    name = next(n for n in order if found[n].applies(problem, target) is None)
    known = {p.name for p in found[name].params}
    params = {**found[name].defaults(problem, target), **{k: v for k, v in given.items() if k in known}}
    built = build(found[name].render(problem, target, params), target)
    image = admit(built.data) if isinstance(built, Artifact) else built
    if not isinstance(image, Image):
        raise KforgeError(f"{name}: {image.reason}")
    return Kernel(image), name


def measure(shape: Shape, tokens: int, rows: int, target: Target, team: Team, probe: BandwidthProbe, seconds: float,
            given: dict[str, Attr]) -> Figure:
    problem = shape.problem(rows)
    workload = Workload.of(problem, M=tokens)
    operator = operators.get("linear")
    kernel, name = kernel_of(problem, target, given)
    weight = packed(shape, problem)
    wanted = -(-5 * target.llc_bytes // weight.size)
    copies = min(MAX_COPIES, max(1, wanted * 8 // max(8, tokens)))  # with many tokens memory hardly matters
    stride = -(-weight.size // 4096) * 4096
    memory = huge_array(copies * stride + 65536)
    specs = operator.tensors(workload)
    arena = Arena(sum(s.bytes + 4096 for s in specs if s.name != "w"))
    dense = {s.name: arena.take(s.shape, np.float32) for s in specs if s.name != "w"}
    dense["x"][...] = np.random.default_rng(1).standard_normal(dense["x"].shape)
    cost = operator.cost(workload)
    peak_name, operations = cost.operations[0]
    ratios: list[tuple[float, float]] = []
    with Program(team) as program:
        for i in range(copies):
            copy = memory[i * stride:i * stride + weight.size]
            copy[:] = weight
            program.add(kernel, [copy if s.name == "w" else dense[s.name] for s in specs], np.array([tokens], np.int64),
                        np.array([], np.float64), shape.name)
        program.run()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(ratios) < 5:
            per_call = statistics.median(program.profile(1))
            speed = probe.measure(0.0).value
            peak = measure_peak(peak_name, team.threads, 0.004).value
            ratios.append((cost.streamed_bytes / speed / per_call, operations / peak / per_call))
    limits = [max(pair) for pair in ratios]
    low, middle, high = statistics.quantiles(limits, n=4)
    return Figure(shape.name, tokens, name, len(ratios), statistics.median(b for b, _ in ratios),
                  statistics.median(c for _, c in ratios), middle, statistics.quantiles(limits, n=10)[-1],
                  (high - low) / middle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--only", default="", help="shapes whose name contains this text")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--seconds", type=float, default=1.0, help="per shape and token count")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="a parameter instead of its default")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    pairs = [item.split("=", 1) for item in args.set]
    given: dict[str, Attr] = {name: attribute(value) for name, value in pairs}
    console = Console(width=100)
    table = Table("shape", "M", "template", "of bandwidth", "of compute peak", "of the limit", "best", "spread",
                  title=f"{args.threads} threads")
    target, figures = host(quick=True), []
    with BandwidthProbe(args.threads) as probe:
        team = Team(args.threads)
        for shape in (s for s in SHAPES if args.only in s.name):
            for tokens in map(int, args.tokens.split(",")):
                f = measure(shape, tokens, args.rows, target, team, probe, args.seconds, given)
                figures.append(f)
                table.add_row(f.shape, str(f.tokens), f.template, f"{f.bandwidth:.2f}", f"{f.compute:.2f}",
                              f"{f.limit:.2f}", f"{f.best:.2f}", f"{100 * f.spread:.0f} %")
    console.print(table)
    write_json(args.json, "bench/kernel_linear.py", {"threads": args.threads, "figures": [asdict(f) for f in figures]})


if __name__ == "__main__":
    main()
