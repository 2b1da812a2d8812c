"""A run as JSON: what it came to, the judge's word at each bucket, and the kernel that came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kforge.core.errors import KforgeError
from kforge.core.workload import Workload

if TYPE_CHECKING:
    from kforge.core.kernel import KernelRecord
    from kforge.core.trial import Verdict
    from kforge.tuner.run_view import BucketView, RunView, TaskView
    from kforge.tuner.tune import TuneResult


def tuned_document(result: TuneResult, folder: Path) -> dict[str, Any]:
    """What ``kforge tune --json`` prints."""
    from kforge.tuner.run_view import view_of

    view = view_of(folder)
    return {
        "run": result.run,
        "folder": str(folder),
        "subject": view.options.subject,
        "seconds": view.used_seconds,
        "trials": result.search.trials,
        "buckets": buckets_of(view, stored_kernels()),
        "settled": list(result.search.settled),
        "kept": list(result.search.kept),
        "accepted": [k.candidate_hash for k in result.search.accepted],
        "serving": {
            **dataclasses.asdict(result.serving),
            "defaults_only": result.serving.defaults_only,
            "text": result.serving.text,
        },
        "engine": [{**dataclasses.asdict(v), "promotes": v.promotes} for v in result.engine],
        "layouts": [{**dataclasses.asdict(v), "kept": v.keeps} for v in result.layouts],
        "table": [
            {
                "setting": f.setting,
                "kernels": f.kernels,
                "tokens_per_second": f.rate.median,
                "spread": f.rate.spread,
                "ratio": f.ratio.median if f.ratio else None,
                "ratio_spread": f.ratio.spread if f.ratio else None,
                "python_share": f.python_share,
            }
            for f in (result.table.figures if result.table else ())
        ],
    }


def stored_kernels() -> tuple[KernelRecord, ...]:
    """The registry's; none where it cannot be read, for a run's own figures do not need it."""
    from kforge.registry.ask import open_snapshot

    try:
        return open_snapshot().kernels
    except KforgeError:
        return ()


def buckets_of(view: RunView, kernels: Iterable[KernelRecord]) -> list[dict[str, Any]]:
    """One object a bucket, in the order in which they were planned. ``kernels``: the registry's, of any run. Gains are
    the judge's, ratios to the incumbent minus one with their bounds; seconds are those of a call in the search."""
    mine = [kernel for kernel in kernels if kernel.run == view.id]
    return [_bucket(view, task, bucket, mine) for task in view.tasks for bucket in task.buckets]


def _bucket(view: RunView, task: TaskView, bucket: BucketView, mine: Iterable[KernelRecord]) -> dict[str, Any]:
    from kforge.tuner.report_outcomes import bucket_outcome

    tried = [p for p in view.tried if p.bucket == bucket.key]
    timed = [p.seconds for p in tried if p.seconds]
    verdict = _told([j.verdict for j in view.judged if j.bucket == bucket.key])
    kernel = _kernel(bucket, verdict, mine) if verdict else None
    return {
        "problem": task.key,
        "bucket": Workload.parse(bucket.key).point,
        "trials": len(tried),
        "failed": sum(p.trial.failure is not None for p in tried),
        "default_seconds": timed[0] if timed else None,  # which is timed first
        "best_seconds": min(timed, default=None),
        "limit_seconds": bucket.limit or None,
        "verdict": _verdict(verdict) if verdict else None,
        "kernel": kernel.id if kernel else None,
        "state": kernel.state.value if kernel else None,
        "outcome": bucket_outcome(view, task, bucket),
    }


def _told(verdicts: list[Verdict]) -> Verdict | None:
    """That of the winner; where there is none, of who came nearest."""
    return max(verdicts, key=lambda v: (v.decision == "accepted", v.gain), default=None)


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "decision": verdict.decision.value,
        "reason": verdict.reason.value if verdict.reason else None,
        "text": verdict.text,
        "gain": verdict.gain,
        "lower": verdict.lower,
        "upper": verdict.upper,
        "pairs": verdict.pairs,
        "candidate": verdict.candidate_hash,
        "incumbent": verdict.incumbent_hash,
    }


def _kernel(bucket: BucketView, verdict: Verdict, mine: Iterable[KernelRecord]) -> KernelRecord | None:
    """What was stored of an accepted candidate at this bucket."""
    axes = Workload.parse(bucket.key).axes
    return next((kernel for kernel in mine if kernel.candidate_hash == verdict.candidate_hash
                 and all(axes.get(name) == value for name, value in kernel.bucket)), None)
