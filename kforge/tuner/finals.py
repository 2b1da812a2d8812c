"""The end of a task: the layout is chosen, the best few meet the incumbent before the judge, winners are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from kforge.backends.building import build
from kforge.core.kernel import KernelRecord, Settled, Tier
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Decision, Verdict
from kforge.core.workload import Workload
from kforge.harness import Harness
from kforge.harness.judge import Rules
from kforge.operators import get
from kforge.registry.ask import ask
from kforge.registry.database import Registry
from kforge.registry.snapshot import Snapshot
from kforge.targets.noise import noise_of
from kforge.tuner.contenders import stored_candidate
from kforge.tuner.contest import Contest, best_rows
from kforge.tuner.journal import Event, RunFolder, verdict_from_json
from kforge.tuner.plan import Bucket
from kforge.tuner.points import Point
from kforge.tuner.winners import Seconds, record_of

FINALISTS = 2
WORTH_JUDGING = 0.99  # a finalist must look at least 1 % faster than the incumbent in the search's own timing


@dataclass(frozen=True)
class Incumbent:
    """What serves a bucket now: a registry kernel, or the default."""

    candidate: Candidate
    kernel: KernelRecord | None


class Finals:
    def __init__(self, folder: RunFolder, registry: Registry, harness: Harness, target: Target, snapshot: Snapshot):
        self._folder, self._registry, self._harness = folder, registry, harness
        self._target, self._snapshot = target, snapshot
        self._noise = noise_of(target, harness.threads)

    def incumbent(self, contest: Contest, bucket: Bucket, rows: int) -> Incumbent:
        space = contest.main.space
        workload = contest.task.workload(bucket, rows)
        answer = ask(
            self._snapshot, workload.problem.operator, {**dict(workload.problem.static), **workload.axes}, self._target
        )
        if answer.kernel is not None and answer.tier is Tier.EXACT:
            known = Point(answer.kernel.template, rows, answer.kernel.params)
            if known in space:
                return Incumbent(space.render(known), answer.kernel)
            # A template that only an earlier run had, or a kernel that somebody handed in.
            return Incumbent(stored_candidate(answer.kernel, self._registry.store), answer.kernel)
        return Incumbent(space.render(space.default(rows)), None)

    def settle(self, contest: Contest) -> list[KernelRecord]:
        """Choose the layout, judge each bucket's finalists, store winners, and write down that the task is settled.

        A layout that differs from the one that served is settled in the registry only after the engine ran with it.
        """
        task = contest.task
        before = self._snapshot.rows(task.problem, self._target.identity) if task.packed else 0
        rows = best_rows(contest.measured, contest.weights, before)
        self._folder.write(Event.LAYOUT, {"task": task.problem.key, "rows": rows})
        accepted = []
        for bucket in task.buckets:
            kernel = self._bucket(contest, bucket, rows)
            if kernel is not None:
                accepted.append(kernel)
        buckets = tuple(b.workload.point for b in task.buckets)
        settled = Settled(task.problem.key, rows, buckets, contest.main.space.templates_hash)
        if rows == before:
            self._registry.settle(self._folder.id, self._target.identity, settled)
        self._folder.write(
            Event.SETTLED,
            {
                "task": settled.problem,
                "rows": rows,
                "before": before,
                "buckets": list(buckets),
                "templates": settled.templates,
                "accepted": len(accepted),
            },
        )
        return accepted

    def _bucket(self, contest: Contest, bucket: Bucket, rows: int) -> KernelRecord | None:
        """The best finalist that the judge accepts in this bucket, stored; None when the incumbent stays."""
        incumbent = self.incumbent(contest, bucket, rows)
        finalists = self._finalists(contest, bucket, rows, incumbent)
        best: tuple[Verdict, Candidate] | None = None
        for candidate in finalists:
            verdict = self._judge(contest, candidate, incumbent, bucket, rows, len(finalists))
            if verdict.decision is Decision.ACCEPTED and (best is None or verdict.gain > best[0].gain):
                best = (verdict, candidate)
        return self._store(contest, best[1], best[0], incumbent, bucket, rows) if best else None

    def _finalists(self, contest: Contest, bucket: Bucket, rows: int, incumbent: Incumbent) -> list[Candidate]:
        key = bucket.workload.key
        ranking = contest.ranking(key, rows)
        measured = contest.measured
        seconds = {p: measured[p][key] for p in ranking}
        serving = next((s for p, s in seconds.items() if contest.render(p).hash == incumbent.candidate.hash), None)
        worthy = [p for p in ranking if serving is None or seconds[p] < WORTH_JUDGING * serving]
        finalists: dict[str, Candidate] = {}
        own = build(incumbent.candidate, self._target)
        seen = {own.hash} if isinstance(own, Artifact) else set()
        for point in worthy:
            candidate = contest.render(point)
            artifact = build(candidate, self._target)
            if isinstance(artifact, Artifact) and artifact.hash not in seen:  # same machine code, same kernel
                seen.add(artifact.hash)
                finalists[candidate.hash] = candidate
            if len(finalists) == FINALISTS:
                break
        return list(finalists.values())

    def _judge(
        self, contest: Contest, candidate: Candidate, incumbent: Incumbent, bucket: Bucket, rows: int, finalists: int
    ) -> Verdict:
        workload = contest.task.workload(bucket, rows)
        for data in self._folder.of(Event.VERDICT):
            if (data["workload"], data["verdict"]["candidate_hash"], data["verdict"]["incumbent_hash"]) == (
                workload.key,
                candidate.hash,
                incumbent.candidate.hash,
            ):
                return verdict_from_json(data["verdict"])
        rules = Rules(finalists=finalists, noise=self._noise)
        verdict = self._harness.judge(candidate, incumbent.candidate, bucket_shapes(workload), rules=rules)
        self._folder.write(
            Event.VERDICT,
            {
                "task": contest.task.problem.key,
                "workload": workload.key,
                "bucket": bucket.workload.key,
                "rows": rows,
                "verdict": dataclasses.asdict(verdict),
            },
        )
        return verdict

    def _store(
        self, contest: Contest, candidate: Candidate, verdict: Verdict, incumbent: Incumbent, bucket: Bucket, rows: int
    ) -> KernelRecord:
        artifact = build(candidate, self._target)
        assert isinstance(artifact, Artifact)  # it was measured a moment ago
        workload = contest.task.workload(bucket, rows)
        space = contest.main.space
        default = space.render(space.default(rows))
        seconds = Seconds(self._seconds(candidate, workload), self._seconds(default, workload))
        kernel = record_of(
            candidate, artifact, verdict, incumbent.kernel, workload, self._target, self._folder.id, seconds
        )
        evidence: dict[str, object] = {
            "verdict": dataclasses.asdict(verdict),
            "sandbox": dataclasses.asdict(self._harness.provenance),
        }
        number = self._registry.accept(kernel, artifact.data, candidate.source, evidence)
        return dataclasses.replace(kernel, id=number)

    def _seconds(self, candidate: Candidate, workload: Workload) -> float:
        """The search's timing of a candidate at a workload; 0 when it was not timed in this run."""
        for data in self._folder.of(Event.TRIAL):
            trial = data["trial"]
            if trial["candidate_hash"] == candidate.hash and trial["workload"] == workload.key and trial["timing"]:
                return float(trial["timing"]["seconds"])
        return 0.0


def bucket_shapes(workload: Workload) -> Sequence[Workload]:
    """The tuning point and, for a bucket of several row counts, its smallest member: a kernel must not lose there."""
    axes = workload.axes
    for axis in ("M", "T", "B"):
        if axis in axes and axes[axis] > 2 and len(axes) == 1:
            smallest = min(shape.axes[axis] for shape in get(workload.problem.operator).shapes(workload, 0))
            if smallest < axes[axis]:
                return (workload, Workload(workload.problem, ((axis, smallest),), workload.count, workload.phase))
    return (workload,)
