"""Every workload of a model against its roofline, with the kernel that serves it now, limits measured in the same run.

    python bench/roofline.py [MODEL] [--batch 1,8] [--context 512] [--prefill 512] [--json roofline.json]

Each workload is timed through the harness (weights streamed from memory, activations hot, as in the engine), between
two readings of the bandwidth; its limit is drawn with their mean and with peaks measured at the start. ``share`` is
limit over time: 100 % is the roofline. Workloads whose data stays in cache have no streamed bytes and are bounded by
arithmetic alone, so their share says little.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from measuring import write_json
from rich.console import Console
from rich.table import Table

from kforge.core.defaults import ACTS
from kforge.core.paths import store_path
from kforge.core.summary import Summary
from kforge.core.target import Target
from kforge.core.workload import Workload
from kforge.harness import Harness
from kforge.harness.timing import Plan
from kforge.models import load
from kforge.models.fetch import resolve
from kforge.models.graph import StepOptions
from kforge.models.workloads import workloads
from kforge.operators import get
from kforge.registry.ask import open_snapshot
from kforge.registry.snapshot import Snapshot
from kforge.registry.store import Store
from kforge.targets.files import load_target
from kforge.targets.probe import BandwidthProbe, measure_peak
from kforge.targets.roofline import Limit, time_limit
from kforge.tuner.contenders import incumbent
from kforge.tuner.plan import plan

TIMING = Plan(batch_seconds=0.02, batches=9, handovers=200)


def measured(target: Target, threads: int) -> Target:
    """The target with its peaks as they are now."""
    peaks = tuple((name, measure_peak(name, threads)) for name, _ in target.peaks)
    return dataclasses.replace(target, peaks=peaks)


def one(
    workload: Workload,
    which: str,
    harness: Harness,
    target: Target,
    probe: BandwidthProbe,
    threads: int,
    snapshot: Snapshot,
    store: Store,
    rounds: int,
) -> dict[str, object]:
    """One workload's row: time, limit and share, each over ``rounds``."""
    kernel = incumbent(which, workload, snapshot, store, target)
    cost = get(workload.problem.operator).cost(workload)
    shares, seconds, speeds = [], [], []
    limit: Limit | None = None
    for _ in range(rounds):
        before = probe.measure(0.1).value
        trial = harness.evaluate(kernel.candidate, workload, check=False, plan=TIMING)
        bandwidth = (before + probe.measure(0.1).value) / 2
        if trial.timing is None:
            raise SystemExit(f"{workload.key}: {trial.failure.reason if trial.failure else 'not timed'}")
        limit = time_limit(cost, target, threads, bandwidth)
        shares.append(limit.seconds / trial.timing.seconds)
        seconds.append(trial.timing.seconds)
        speeds.append(bandwidth)
    assert limit is not None
    return {
        "workload": workload.key,
        "count": workload.count,
        "kernel": kernel.candidate.hash,
        "serves": kernel.label,
        "seconds": Summary.of(seconds),
        "share": Summary.of(shares),
        "bound_by": limit.bound_by,
        "bandwidth": Summary.of(speeds),
        "streamed_bytes": cost.streamed_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--kernels", default="tuned", choices=("default", "tuned"))
    parser.add_argument("--only", default="", help="only problems whose key contains this text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--act", default="a8", choices=ACTS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console = Console()
    host = load_target("host")
    threads = args.threads or host.cores
    target = measured(host, threads)
    batches = tuple(int(b) for b in args.batch.split(","))
    rows = workloads(
        load(resolve(args.model)), batches, (args.context,), args.prefill, StepOptions(act=args.act)
    )
    tasks = [t for t in plan(rows, lambda p, axes: get(p.operator).bucket(p, axes)) if args.only in t.problem.key]
    table = Table(title="time against the roofline, limits measured in the same run")
    for column in ("workload", "calls", "us", "share", "bound by", "GB/s then"):
        table.add_column(column, justify="left" if column == "workload" else "right", overflow="fold")
    results = []
    snapshot, store = open_snapshot(), Store(store_path())
    with Harness(target, threads) as harness:
        probe = BandwidthProbe(threads)
        for task in tasks:
            for bucket in task.buckets:
                workload = task.workload(bucket, snapshot.rows(task.problem, target.identity))
                row = one(workload, args.kernels, harness, target, probe, threads, snapshot, store, args.rounds)
                results.append(row)
                calls = " ".join(f"{mode}:{n:g}" for mode, n in bucket.calls)
                seconds, share, speed = (row[k] for k in ("seconds", "share", "bandwidth"))
                table.add_row(
                    workload.key,
                    calls,
                    f"{1e6 * seconds.median:.1f}",  # type: ignore[attr-defined]
                    f"{100 * share.median:.0f} ±{50 * share.spread * share.median:.0f} %",  # type: ignore[attr-defined]
                    str(row["bound_by"]),
                    f"{speed.median / 1e9:.1f}",
                )  # type: ignore[attr-defined]
    console.print(table)
    peaks = {name: peak.value for name, peak in target.peaks}
    figures = {"model": args.model, "threads": threads, "peaks": peaks, "rows": results}
    write_json(args.json, "bench/roofline.py", figures)


if __name__ == "__main__":
    main()
