"""Jobs done: rendering, building, checking, timing, comparing, judging. Runs in a process of its own (``worker``)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kforge.backends.building import build
from kforge.backends.cpp.disassembly import disassemble
from kforge.core.paths import store_path
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure, NumericsClass
from kforge.core.workload import Workload
from kforge.harness import Harness
from kforge.mcp import jobs, measured
from kforge.mcp.answers import busiest, compared_of, failed, loop_facts, measured_of, report_of
from kforge.mcp.failures import CallFailed, Refusal, bad_input
from kforge.mcp.jobs import Subject
from kforge.mcp.subjects import candidate_of, measurable, template_of, workload_at
from kforge.mcp.tuning import tune
from kforge.models import load as load_model
from kforge.registry.ask import open_snapshot
from kforge.registry.database import Registry, RegistryBusy
from kforge.registry.naming import kernel_named
from kforge.registry.snapshot import Snapshot
from kforge.registry.store import Store
from kforge.targets.files import load_target
from kforge.tuner import attempt as trying
from kforge.tuner.attempt import Attempt
from kforge.tuner.contenders import incumbent
from kforge.tuner.journal import RunFolder
from kforge.tuner.options import TuneOptions
from kforge.tuner.progress import Silent
from kforge.tuner.promoting import least, promote, refusal
from kforge.tuner.tune_operator import hand_in, imported

Tell = Callable[[str], None]
_LOCK = "kforge mcp"


@dataclass(frozen=True)
class _At:
    """A subject as it was found: the registry at that moment, its workload, its candidate."""

    snapshot: Snapshot
    workload: Workload
    candidate: Candidate
    subject: measured.Subject


class Workbench:
    """One job at a time. Its harness, which keeps inputs and processes ready, stays open from job to job."""

    def __init__(self) -> None:
        self._target: Target | None = None
        self._store = Store(store_path())
        self._harness: Harness | None = None

    def close(self) -> None:
        if self._harness is not None:
            self._harness.close()
            self._harness = None

    def do(self, job: jobs.Job, tell: Tell) -> measured.Answer:
        """Raises CallFailed, and KforgeError for what is wrong with this machine or the request."""
        match job:
            case jobs.HostJob():
                tell("probing this machine")
                self._host()
                return measured.Answer()
            case jobs.RenderJob():
                at = self._at(job.subject)
                return measured.Rendered(subject=at.subject, source=at.candidate.source)
            case jobs.BuildJob():
                return self._built(job, tell)
            case jobs.DisassembleJob():
                return self._disassembled(job, tell)
            case jobs.CheckJob():
                return self._checked(job, tell)
            case jobs.MeasureJob():
                at = self._at(job.subject)
                with self._measuring():
                    return measured_of(self._timed(at, job.subject, tell), at.subject)
            case jobs.CompareJob():
                return self._compared(job, tell)
            case jobs.TuneJob():
                return self._tuned(job, tell)
            case jobs.SubmitJob():
                return self._submitted(job, tell)
            case jobs.PromoteJob():
                return self._promoted(job, tell)

    def _host(self) -> Target:
        if self._target is None:
            self._target = load_target("host")
        return self._target

    def _at(self, subject: Subject) -> _At:
        target, snapshot = self._host(), open_snapshot()
        workload = measurable(workload_at(subject.operator, subject.axes, snapshot, target), target)
        candidate = candidate_of(subject, workload, snapshot, self._store, target)
        shown = measured.Subject(
            candidate=candidate.hash,
            template=candidate.template,
            params=dict(candidate.params),
            numerics=candidate.numerics.value,
            workload=workload.key,
        )
        return _At(snapshot, workload, candidate, shown)

    def _harness_of(self, threads: int) -> Harness:
        wanted = threads or self._host().cores
        if self._harness is None or self._harness.threads != wanted:
            self.close()
            self._harness = Harness(self._host(), wanted)
        return self._harness

    @contextlib.contextmanager
    def _measuring(self) -> Iterator[Registry]:
        """Nothing else measures for this registry meanwhile. Raises CallFailed where something does."""
        with Registry.open() as registry, _as_busy(), registry.tuning_lock(_LOCK):
            yield registry

    def _artifact(self, at: _At, tell: Tell) -> Artifact:
        tell("building")
        made = build(at.candidate, self._host())
        if isinstance(made, Failure):
            raise failed(made)
        return made

    def _built(self, job: jobs.BuildJob, tell: Tell) -> measured.Built:
        at = self._at(job.subject)
        artifact = self._artifact(at, tell)
        listing = disassemble(artifact.data)
        hot = loop_facts(listing.hot) if listing.hot else None
        return measured.Built(
            subject=at.subject,
            build=report_of(artifact.report),
            instructions=len(listing.lines),
            loops=len(listing.loops),
            hot=hot,
        )

    def _disassembled(self, job: jobs.DisassembleJob, tell: Tell) -> measured.Disassembly:
        at = self._at(job.subject)
        listing = disassemble(self._artifact(at, tell).data)
        first, count = job.first, job.count
        if job.hot and listing.hot is not None:
            first, count = listing.hot.first, min(count, listing.hot.last - listing.hot.first + 1)
        lines = listing.lines[first : first + count]
        return measured.Disassembly(
            subject=at.subject,
            instructions=len(listing.lines),
            first=first,
            shown=len(lines),
            loops=busiest(listing),
            text="\n".join(f"{line.address:6x}  {line.text}" for line in lines),
        )

    def _checked(self, job: jobs.CheckJob, tell: Tell) -> measured.Checked:
        at = self._at(job.subject)
        self._artifact(at, tell)
        with self._measuring():
            tell("checking")
            found = self._harness_of(job.subject.threads).check(at.candidate, at.workload)
        if isinstance(found, Failure):
            raise failed(found)
        return measured.Checked(subject=at.subject, cases=found.cases, max_error_ratio=found.max_error_ratio)

    def _timed(self, at: _At, subject: Subject, tell: Tell) -> Attempt:
        self._artifact(at, tell)
        tell("checking and timing")
        done = trying.timed(at.candidate, at.workload, self._harness_of(subject.threads))
        if done.failure is not None:
            raise failed(done.failure)
        return done

    def _compared(self, job: jobs.CompareJob, tell: Tell) -> measured.Compared:
        at = self._at(job.subject)
        rival = incumbent(job.against, at.workload, at.snapshot, self._store, self._host())
        with self._measuring():
            done = self._timed(at, job.subject, tell)
            tell(f"comparing with {rival.label}")
            done = trying.compared(done, rival, self._harness_of(job.subject.threads))
        if done.failure is not None:
            raise failed(done.failure)
        if done.unmeasured.startswith("the incumbent failed"):
            raise CallFailed(Refusal.INCUMBENT, f"{rival.label}: {done.unmeasured}")
        return compared_of(done, at.subject, rival)

    def _tuned(self, job: jobs.TuneJob, tell: Tell) -> measured.Tuned:
        target, snapshot = self._host(), open_snapshot()
        subject = job.subject
        workload = measurable(workload_at(subject.operator, subject.axes, snapshot, target), target)
        with template_of(subject, workload) as template, self._measuring():
            harness = self._harness_of(subject.threads)
            return tune(template, workload, harness, trials=job.trials, seconds=job.seconds, tell=tell)

    def _submitted(self, job: jobs.SubmitJob, tell: Tell) -> measured.Submitted:
        at = self._at(job.subject)
        alone = imported(at.workload.problem.operator) is not None
        if at.candidate.numerics is not NumericsClass.EXACT and not alone:
            raise bad_input("only exact kernels are judged: the engine's tokens must not depend on the kernel")
        with self._measuring():
            self._timed(at, job.subject, tell)
        bucket = trying.bucket_workload(at.workload)
        serving = incumbent("tuned", measurable(bucket, self._host()), at.snapshot, self._store, self._host())
        tell(f"judging against {serving.label}")
        with Registry.open() as registry, _as_busy():  # which takes the lock itself
            submit = hand_in if alone else trying.submit
            handed = submit(at.candidate, at.workload, serving, self._harness_of(job.subject.threads), registry)
        verdict = handed.verdict
        return measured.Submitted(
            decision=verdict.decision.value,
            text=verdict.text,
            bucket=dict(handed.bucket),
            incumbent=handed.incumbent,
            gain=verdict.gain,
            lower=verdict.lower,
            upper=verdict.upper,
            pairs=verdict.pairs,
            kernel=handed.kernel,
        )

    def _promoted(self, job: jobs.PromoteJob, tell: Tell) -> measured.Promoted:
        target, kernel = self._host(), kernel_named(job.kernel, open_snapshot().kernels)
        if why := refusal(kernel, target):
            raise bad_input(f"kernel {kernel.id}: {why}")
        self.close()  # its processes keep memory and awake cores that the engines are to have
        name = Path(job.model).stem
        options = TuneOptions(model=job.model, batches=tuple(job.batches), context=job.context, prefill=job.prefill,
                              threads=job.threads or target.cores)
        model = load_model(job.model)
        with Registry.open() as registry, RunFolder.create(Path(job.runs), f"{name}-promote") as folder, _as_busy():
            done = promote(kernel, model, options, folder, registry, target, _Telling(tell), least(model))
        engine = [
            measured.EngineMode(
                mode=v.mode,
                gain=v.gain,
                lower=v.lower,
                upper=v.upper,
                same_tokens=v.same_tokens,
                calls=v.calls,
                pairs=v.pairs,
                floor=v.floor,
                promotes=v.promotes,
            )
            for v in done.verdicts
        ]
        return measured.Promoted(
            kernel=done.kernel, state=done.state.value, reason=done.reason, run=folder.id, engine=engine
        )


class _Telling(Silent):
    """A watcher that passes stages and notes on."""

    def __init__(self, tell: Tell):
        self._tell = tell

    def stage(self, text: str) -> None:
        self._tell(text)

    def note(self, text: str) -> None:
        self._tell(text)


@contextlib.contextmanager
def _as_busy() -> Iterator[None]:
    try:
        yield
    except RegistryBusy as error:
        raise CallFailed(Refusal.BUSY, str(error)) from error
