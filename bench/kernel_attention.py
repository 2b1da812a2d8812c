"""Paged attention at decode and prefill shapes, as shares of this machine's limits measured in the same rounds.

    python bench/kernel_attention.py [--threads 2] [--only prefill] [--set prefetch=none] [--json attention.json]

Every call reads another copy of the cache, as every layer of a model does, so that it comes from memory. A round times
all copies once, then the read bandwidth, then the float32 peak; shares are medians over rounds, `best` is the 90th
percentile (other load takes away from kernel and probe alike, but not at the same moment). The limit of a call is the
larger of its bytes' time and its operations' time.
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
from kforge.core.defaults import KV_TYPES
from kforge.core.dtypes import DType
from kforge.core.errors import KforgeError
from kforge.core.image import Image
from kforge.core.target import Target
from kforge.core.trial import Artifact
from kforge.core.workload import Attr, Problem, Workload, attribute
from kforge.native import Arena, Kernel, Program, Team, huge_array
from kforge.operators.numerics import narrow, numpy_dtype
from kforge.targets.files import host
from kforge.targets.probe import BandwidthProbe, measure_peak

PAGE = 64
MAX_COPIES = 32


@dataclass(frozen=True)
class Shape:
    """``tokens`` queries of each of ``sequences``, which have ``context`` positions; with a window there are sinks too,
    as in GPT-OSS."""

    heads: int
    kv_heads: int
    d: int
    sequences: int
    context: int
    tokens: int = 1
    window: int = 0

    @property
    def name(self) -> str:
        phase = "prefill" if self.tokens > 1 else "decode"
        window = f" window {self.window}" if self.window else ""
        return f"{phase} {self.heads}/{self.kv_heads} D={self.d} x{self.sequences} {self.context}{window}"

    def workload(self, kv: str) -> Workload:
        problem = Problem.of("paged_attention", Hq=self.heads, Hkv=self.kv_heads, D=self.d, P=PAGE, kv=kv,
                             window=self.window, sinks=int(self.window > 0))
        blocks = -(-self.context // PAGE)
        return Workload.of(problem, T=self.sequences * self.tokens, S=self.sequences, B=blocks,
                           pages=self.sequences * blocks, max_context=self.context)


HEADS = ((9, 3, 64), (32, 8, 64), (32, 8, 128))
SHAPES = (*(Shape(*heads, batch, context) for heads in HEADS for batch in (1, 8) for context in (512, 2048, 8192)),
          *(Shape(*heads, 1, 512, 512) for heads in HEADS),
          *(Shape(64, 8, 64, batch, 2048, window=128) for batch in (1, 8)), Shape(64, 8, 64, 1, 512, 512, window=128))


@dataclass(frozen=True)
class Figure:
    """Medians over rounds; ``limit`` is the share of the roofline, the other two its parts."""

    shape: str
    template: str
    rounds: int
    bandwidth: float
    compute: float
    limit: float
    best: float
    spread: float


@dataclass(frozen=True)
class Built:
    kernel: Kernel
    name: str


def build_default(problem: Problem, target: Target, given: dict[str, Attr]) -> Built:
    """The AVX-512 template where it applies, else the portable one, with its defaults but for ``given``."""
    found = {t.path.rsplit("/", 1)[1].split(".")[0]: t for t in templates.load("paged_attention")}
    name = next(n for n in ("avx512", "portable") if found[n].applies(problem, target) is None)
    params = {**found[name].defaults(problem, target), **given}
    built = build(found[name].render(problem, target, params), target)
    image = admit(built.data) if isinstance(built, Artifact) else built
    if not isinstance(image, Image):
        raise KforgeError(f"{name}: {image.reason}")
    return Built(Kernel(image), name)


def program_of(workload: Workload, kernel: Kernel, copies: int, team: Team) -> Program:
    """A launch per copy of the cache; pages in random order, values normal."""
    operator, rng = operators.get("paged_attention"), np.random.default_rng(1)
    specs = {s.name: s for s in operator.tensors(workload)}
    axes = workload.axes
    caches = [s for name, s in specs.items() if name.endswith(("_cache", "_scale"))]
    sizes = [-(-s.bytes // 4096) * 4096 for s in caches]
    memory = huge_array(copies * sum(sizes))
    normal = rng.standard_normal(1 << 16).astype(np.float32)
    arena = Arena(sum(s.bytes + 4096 for s in specs.values() if s not in caches))
    q, out = (arena.take(specs[name].shape, np.float32) for name in ("q", "out"))
    q[...] = rng.standard_normal(q.shape)
    integers = ("block_table", "query_start", "context")
    table, start, context = (arena.take(specs[name].shape, np.int32) for name in integers)
    table[...] = rng.permutation(axes["pages"]).reshape(table.shape)
    start[...] = np.arange(axes["S"] + 1) * (axes["T"] // axes["S"])
    context[...] = axes["max_context"]
    sinks = [arena.take(specs["sinks"].shape, np.float32)] if "sinks" in specs else []
    for each in sinks:
        each[...] = rng.standard_normal(each.shape)
    program = Program(team)
    begin = 0
    for _ in range(copies):
        parts = []
        for spec, size in zip(caches, sizes, strict=True):
            part = memory[begin:][: spec.bytes].view(numpy_dtype(spec.dtype)).reshape(spec.shape)
            if spec.dtype is DType.I8:
                part[...] = np.resize((normal * 25).clip(-127, 127).astype(np.int8), spec.shape)
            else:
                part[...] = 0.04 if spec.name.endswith("_scale") else np.resize(narrow(normal, spec.dtype), spec.shape)
            parts.append(part)
            begin += size
        program.add(kernel, [q, *parts, table, start, context, *sinks, out],
                    np.array([axes[name] for name in operator.dynamic_axes], np.int64),
                    np.array(operator.scalars(workload)))
    return program


def measure(shape: Shape, target: Target, team: Team, probe: BandwidthProbe, seconds: float,
            given: dict[str, Attr], kv: str) -> Figure:
    workload = shape.workload(kv)
    cost = operators.get("paged_attention").cost(workload)
    operations = dict(cost.operations)["fp32_fma"]
    built = build_default(workload.problem, target, given)
    copies = max(1, min(MAX_COPIES, -(-5 * target.llc_bytes // cost.streamed_bytes))) if shape.tokens == 1 else 1
    bandwidth: list[float] = []
    compute: list[float] = []
    limit: list[float] = []
    with program_of(workload, built.kernel, copies, team) as program:
        program.run()
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(limit) < 5:
            begin = time.perf_counter()
            program.run()
            call = (time.perf_counter() - begin) / copies
            team.park()
            by_memory = cost.streamed_bytes / probe.measure(0.01).value
            by_compute = operations / measure_peak("fp32_fma", team.threads, 0.01).value
            bandwidth.append(by_memory / call)
            compute.append(by_compute / call)
            limit.append(max(by_memory, by_compute) / call)
    low, middle, high = statistics.quantiles(limit, n=4)
    return Figure(shape.name, built.name, len(limit), statistics.median(bandwidth), statistics.median(compute), middle,
                  statistics.quantiles(limit, n=10)[-1], (high - low) / middle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=0, help="default: all cores")
    parser.add_argument("--seconds", type=float, default=1.0, help="per shape")
    parser.add_argument("--kv", default="bf16", choices=KV_TYPES, help="element type of the cache")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--set", nargs="*", default=[], metavar="PARAM=VALUE", help="other than the defaults")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    pairs = [item.split("=", 1) for item in args.set]
    given: dict[str, Attr] = {name: attribute(value) for name, value in pairs}
    target = host(quick=True)
    team = Team(args.threads or target.cores)
    table = Table("shape", "template", "bandwidth", "float32", "limit", "best", "spread",
                  title=f"{target.model}, {team.threads} threads, {args.kv} cache, pages of {PAGE}")
    figures = []
    with BandwidthProbe(team.threads) as probe:
        for shape in SHAPES:
            if args.only in shape.name:
                f = measure(shape, target, team, probe, args.seconds, given, args.kv)
                figures.append(f)
                shares = (f"{100 * share:.0f} %" for share in (f.bandwidth, f.compute, f.limit, f.best, f.spread))
                table.add_row(f.shape, f.template, *shares)
    Console().print(table)
    report = {"threads": team.threads, "kv": args.kv, "figures": [asdict(f) for f in figures]}
    write_json(args.json, "bench/kernel_attention.py", report)


if __name__ == "__main__":
    main()
