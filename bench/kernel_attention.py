"""Paged attention at decode and prefill shapes, as shares of this machine's limits measured in the same rounds.

    python bench/kernel_attention.py [--threads 2] [--only prefill] [--set prefetch=none] [--json attention.json]
    python bench/kernel_attention.py --shared [--kv f16] [--against TEMPLATES]

Every call reads another copy of the cache, as every layer of a model does, so that it comes from memory. A round times
all copies once, then the read bandwidth, then the float32 peak; shares are medians over rounds, `best` is the 90th
percentile (other load takes away from kernel and probe alike, but not at the same moment). The limit of a call is the
larger of its bytes' time and its operations' time.

`--shared` decodes sequences that have their first 2048 positions in common beside as many of the same length that have
nothing in common, and with `--against` also by the templates of another folder (`git worktree add ../before COMMIT`,
then `../before/templates/kernels`), all in turn in every round. Beside each time stands what its bytes take at the
bandwidth that was measured in the same rounds, each page counted once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
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
    common: int = 0  # positions that all sequences begin with, in the same pages

    @property
    def name(self) -> str:
        phase = "prefill" if self.tokens > 1 else f"decode {self.common} shared" if self.common else "decode"
        window = f" window {self.window}" if self.window else ""
        return f"{phase} {self.heads}/{self.kv_heads} D={self.d} x{self.sequences} {self.context}{window}"

    def workload(self, kv: str) -> Workload:
        problem = Problem.of("paged_attention", Hq=self.heads, Hkv=self.kv_heads, D=self.d, P=PAGE, kv=kv,
                             window=self.window, sinks=int(self.window > 0))
        blocks = -(-self.context // PAGE)
        return Workload.of(problem, T=self.sequences * self.tokens, S=self.sequences, B=blocks,
                           pages=self.sequences * blocks - (self.sequences - 1) * (self.common // PAGE),
                           max_context=self.context)


HEADS = ((9, 3, 64), (32, 8, 64), (32, 8, 128))
SHAPES = (*(Shape(*heads, batch, context) for heads in HEADS for batch in (1, 8) for context in (512, 2048, 8192)),
          *(Shape(*heads, 1, 512, 512) for heads in HEADS),
          *(Shape(64, 8, 64, batch, 2048, window=128) for batch in (1, 8)), Shape(64, 8, 64, 1, 512, 512, window=128))
SHARED = tuple(Shape(*heads, batch, 2048 + 128, common=2048) for heads in HEADS for batch in (16, 32))


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


@dataclass(frozen=True)
class SharedFigure:
    """Milliseconds of a call, median over rounds, and ``gain``, the median of the rounds' ratios over the call that has
    nothing in common; ``bytes``: milliseconds that its bytes take."""

    shape: str
    kernel: str
    rounds: int
    time: float
    bytes: float
    gain: float
    spread: float


def build_default(problem: Problem, target: Target, given: dict[str, Attr], folder: Path | None = None) -> Built:
    """The AVX-512 template where it applies, else the portable one, with its defaults but for ``given``."""
    found = {t.path.rsplit("/", 1)[1].split(".")[0]: t for t in templates.load("paged_attention", folder)}
    name = next(n for n in ("avx512", "portable") if found[n].applies(problem, target) is None)
    params = {**found[name].defaults(problem, target), **given}
    built = build(found[name].render(problem, target, params), target)
    image = admit(built.data) if isinstance(built, Artifact) else built
    if not isinstance(image, Image):
        raise KforgeError(f"{name}: {image.reason}")
    return Built(Kernel(image), name)


def program_of(workload: Workload, kernel: Kernel, copies: int, team: Team, common: int = 0) -> Program:
    """A launch per copy of the cache; pages in random order, the first ``common`` positions of all sequences in the
    same ones, values normal."""
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
    order, shared = rng.permutation(axes["pages"]).astype(np.int32), common // PAGE
    table[:, :shared] = order[:shared]
    table[:, shared:] = order[shared:].reshape(axes["S"], -1)
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


def measure_shared(shape: Shape, target: Target, team: Team, probe: BandwidthProbe, seconds: float,
                   given: dict[str, Attr], kv: str, against: Path | None) -> list[SharedFigure]:
    """This kernel and the one to hold it against, with and without common pages, interleaved."""
    apart = replace(shape, common=0)
    kernels = {"now": build_default(shape.workload(kv).problem, target, given).kernel}
    if against is not None:
        kernels["before"] = build_default(shape.workload(kv).problem, target, given, against).kernel
    cases = [(name, of) for of in (apart, shape) for name in kernels]
    cost = operators.get("paged_attention").cost
    size = {of: cost(of.workload(kv)).streamed_bytes for of in (apart, shape)}
    copies = {of: max(2, min(MAX_COPIES, -(-5 * target.llc_bytes // size[of]))) for of in size}
    times: dict[tuple[str, Shape], list[float]] = {case: [] for case in cases}
    bandwidth: list[float] = []
    with ExitStack() as stack:
        programs = {case: stack.enter_context(program_of(case[1].workload(kv), kernels[case[0]], copies[case[1]], team,
                                                         case[1].common)) for case in cases}
        for program in programs.values():
            program.run()
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(bandwidth) < 5:
            for case in cases if len(bandwidth) % 2 else reversed(cases):
                begin = time.perf_counter()
                programs[case].run()
                times[case].append((time.perf_counter() - begin) / copies[case[1]])
            team.park()
            bandwidth.append(probe.measure(0.01).value)
    figures = []
    for name, of in cases:
        mine, base = times[name, of], times["before" if against is not None else "now", apart]
        ratios = [b / m for b, m in zip(base, mine, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        figures.append(SharedFigure(of.name, name, len(mine), 1e3 * statistics.median(mine),
                                    1e3 * size[of] / statistics.median(bandwidth), middle, (high - low) / middle))
    return figures


def compare_shared(args: argparse.Namespace, given: dict[str, Attr], target: Target, team: Team) -> None:
    table = Table("shape", "template", "ms", "its bytes: ms", "gain over nothing shared", "spread",
                  title=f"{target.model}, {team.threads} threads, {args.kv} cache, pages of {PAGE}")
    figures = []
    with BandwidthProbe(team.threads) as probe:
        for shape in SHARED:
            if args.only in shape.name:
                for f in measure_shared(shape, target, team, probe, args.seconds, given, args.kv, args.against):
                    figures.append(f)
                    table.add_row(f.shape, f.kernel, f"{f.time:.3f}", f"{f.bytes:.3f}", f"{f.gain:.2f}",
                                  f"{100 * f.spread:.0f} %")
    Console().print(table)
    report = {"threads": team.threads, "kv": args.kv, "shared": [asdict(f) for f in figures]}
    write_json(args.json, "bench/kernel_attention.py --shared", report)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=0, help="default: all cores")
    parser.add_argument("--seconds", type=float, default=1.0, help="per shape")
    parser.add_argument("--kv", default="bf16", choices=KV_TYPES, help="element type of the cache")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--set", nargs="*", default=[], metavar="PARAM=VALUE", help="other than the defaults")
    parser.add_argument("--shared", action="store_true", help="decode with and without common first pages")
    parser.add_argument("--against", type=Path, help="a templates folder, for --shared")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    pairs = [item.split("=", 1) for item in args.set]
    given: dict[str, Attr] = {name: attribute(value) for name, value in pairs}
    target = host(quick=True)
    team = Team(args.threads or target.cores)
    if args.shared:
        compare_shared(args, given, target, team)
        return
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
