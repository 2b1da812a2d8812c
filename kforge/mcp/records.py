"""The registry and the reports of tuning runs, read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord
from kforge.core.lesson import Lesson, Standing
from kforge.core.target import Target
from kforge.core.workload import Attr
from kforge.mcp import known
from kforge.mcp.failures import bad_input
from kforge.operators.axes import USUAL
from kforge.registry import lesson_text
from kforge.registry.ask import ask, open_snapshot
from kforge.registry.database import Registry
from kforge.registry.naming import kernel_named
from kforge.registry.relevance import by_support
from kforge.tuner.report import failure_rows, problem_rows, verdict_rows
from kforge.tuner.report_text import told
from kforge.tuner.run_view import runs_in, view_of

_MOST_KERNELS = 100
_MOST_LESSONS = 50
_MOST_RUNS = 100
_MOST_VERDICTS = 50


def lookup(operator: str, axes: Mapping[str, Attr], host: Target) -> known.Found:
    """Raises KforgeError for a question that makes no sense."""
    answer = ask(open_snapshot(), operator, {**USUAL.get(operator, {}), **axes}, host)
    return known.Found(
        tier=answer.tier.value,
        promised=answer.promised,
        stale=list(answer.stale),
        kernel=_kernel(answer.kernel) if answer.kernel else None,
        trace=[known.TraceStep(tier=s.tier.value, entry=s.entry, taken=s.taken, reason=s.reason) for s in answer.trace],
    )


def kernels(operator: str, state: str) -> known.Kernels:
    """The newest first."""
    found = [
        k
        for k in reversed(open_snapshot().kernels)
        if operator in ("", k.problem.operator) and state in ("", k.state.value)
    ]
    return known.Kernels(
        kernels=[_kernel(k) for k in found[:_MOST_KERNELS]], left_out=max(len(found) - _MOST_KERNELS, 0)
    )


def kernel(name: str) -> known.KernelHistory:
    """Raises KforgeError for a name that names none, or several."""
    found = kernel_named(name, open_snapshot().kernels)
    with Registry.open() as registry:
        history = [known.KernelEvent(state=e.state, reason=e.reason, at=e.created) for e in registry.events(found.id)]
        source = registry.store.get(found.source_hash).decode()
    return known.KernelHistory(kernel=_kernel(found), history=history, source=source)


def _kernel(k: KernelRecord) -> known.KernelFacts:
    return known.KernelFacts(
        number=k.id,
        state=k.state.value,
        problem=k.problem.key,
        bucket=dict(k.bucket),
        target=k.target_name,
        candidate=k.candidate_hash,
        template=k.template,
        params=dict(k.params),
        numerics=k.numerics.value,
        compiler=k.compiler,
        search_seconds=k.seconds,
        gain=k.gain,
        gain_lower=k.gain_lower,
        proposer=k.proposer,
        run=k.run,
        created=k.created,
    )


def lessons(operator: str) -> known.Lessons:
    """Those that are held first, the best supported of them first."""
    with Registry.open() as registry:
        found = [
            lesson
            for lesson in by_support(registry.lessons())
            if operator in ("", lesson.subject.operator) and lesson.standing is not Standing.REMOVED
        ]
    return known.Lessons(
        lessons=[_lesson(lesson) for lesson in found[:_MOST_LESSONS]], left_out=max(len(found) - _MOST_LESSONS, 0)
    )


def _lesson(lesson: Lesson) -> known.LessonFacts:
    about = lesson.subject
    return known.LessonFacts(
        number=lesson.id,
        standing=lesson.standing.value,
        says=lesson.claim.value,
        supports=lesson.supports,
        contradictions=lesson.contradictions,
        operator=about.operator,
        backend=about.backend,
        family=about.family,
        bottleneck=about.bottleneck,
        told=lesson_text.told(lesson),
    )


def tuning_runs(root: Path) -> known.TuningRuns:
    """The newest first."""
    return known.TuningRuns(runs=[_run(path) for path in reversed(runs_in(root)[-_MOST_RUNS:])])


def _run(path: Path) -> known.TuningRun:
    try:
        view = view_of(path)
    except KforgeError as error:
        return known.TuningRun(run=path.name, error=str(error))
    return known.TuningRun(
        run=view.id,
        model=Path(view.options.subject).name,
        finished=view.finished,
        trials=len(view.tried),
        accepted=view.accepted,
    )


def report(name: str, root: Path) -> known.Report:
    """Raises KforgeError for a run that cannot be read."""
    found = runs_in(root)
    path = next((p for p in reversed(found) if name in (p.name, "last")), None)
    if path is None:
        raise bad_input(f"there is no tuning run {name!r}; list_tuning_runs has their ids")
    view = view_of(path)
    return known.Report(
        run=view.id,
        told=list(told(view)),
        problems=[
            known.ReportProblem(
                problem=p.problem,
                bucket=p.bucket,
                share=p.share,
                trials=p.trials,
                first=p.first,
                best=p.best,
                limit=p.limit,
                micro=p.micro,
                engine=p.engine,
                outcome=p.outcome,
            )
            for p in problem_rows(view)
        ],
        failures=[known.ReportFailure(kind=f.kind, count=f.count, reasons=list(f.reasons)) for f in failure_rows(view)],
        verdicts=[f"{v.problem} {v.bucket}: {v.decision}, {v.text}" for v in verdict_rows(view)[:_MOST_VERDICTS]],
    )
