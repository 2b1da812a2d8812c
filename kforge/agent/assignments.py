"""What an idea's prompts depend on, as a run's folder keeps it: enough to think the idea again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from kforge.agent.drafting import Source, source_of
from kforge.agent.evidence import Sheet
from kforge.agent.ideas import Idea
from kforge.agent.thinking import Assignment, Mend
from kforge.backends import templates
from kforge.backends.templates import Template, TemplateError
from kforge.core.drafts import write_whole
from kforge.core.errors import KforgeError
from kforge.core.target import Target
from kforge.core.trial import Failure
from kforge.core.workload import Phase, Problem, Workload
from kforge.tuner.plan import Bucket, Task
from kforge.tuner.proposals import Proposal

FOLDER = "known"  # of a run's: one folder for each template that a prompt showed or that must not be written again
_TARGET = TypeAdapter(Target)
_SHEET, _FAILURE = TypeAdapter(Sheet | None), TypeAdapter(Failure)


def to_json(job: Assignment, run: Path) -> dict[str, Any]:
    """The templates that it names are put into the run's folder first. Raises OSError and TemplateError."""
    mended = [job.mend.proposal.template] if job.mend else []
    for template in [*job.known, *([job.shown] if job.shown else []), *mended]:
        _keep(template, run)
    return {
        "task": _task_to_json(job.task),
        "target": _TARGET.dump_python(job.target, mode="json"),
        "threads": job.threads,
        "shown": _named(job.shown) if job.shown else None,
        "known": [_named(template) for template in job.known],
        "sheet": _SHEET.dump_python(job.sheet, mode="json"),
        "mend": _mend_to_json(job.mend) if job.mend else None,
    }


def from_json(data: dict[str, Any], idea: Idea, run: Path) -> Assignment:
    """Raises KforgeError where a template is gone or was edited, or another version wrote it."""
    try:
        shown = template_of(data["shown"], run) if data["shown"] else None
        known = [template_of(one, run) for one in data["known"]]
        mend = _mend(data["mend"], run) if data["mend"] else None
        return Assignment(idea, _task(data["task"]), _TARGET.validate_python(data["target"]),
                          data["threads"], shown, known, _SHEET.validate_python(data["sheet"]), mend)
    except (KeyError, TypeError, ValueError) as error:
        raise KforgeError(f"{idea.id} of {run} was written by another kforge: {error}") from None


def _task_to_json(task: Task) -> dict[str, Any]:
    buckets = [{"workload": b.workload.key, "count": b.workload.count, "phase": b.workload.phase.value,
                "calls": [list(call) for call in b.calls]} for b in task.buckets]
    return {"problem": task.problem.key, "buckets": buckets}


def _task(data: dict[str, Any]) -> Task:
    buckets = []
    for one in data["buckets"]:
        bare = Workload.parse(one["workload"])
        workload = Workload(bare.problem, bare.dynamic, one["count"], Phase(one["phase"]))
        buckets.append(Bucket(workload, tuple((mode, calls) for mode, calls in one["calls"])))
    return Task(Problem.parse(data["problem"]), tuple(buckets))


def _keep(template: Template, run: Path) -> None:
    folder = run / FOLDER / template.hash
    if (folder / template.path).is_file():
        return
    source: Source = source_of(template)
    for name, text in reversed(list(source.texts.items())):  # the template last: where it is, all of it is
        write_whole(folder / name, text.encode())


def _named(template: Template) -> list[str]:
    return [template.path, template.hash]


def template_of(named: Sequence[str], run: Path) -> Template:
    """The template of this path and hash, as the run kept it. Raises KforgeError."""
    path, wanted = named
    folder = run / FOLDER / wanted
    try:
        found = next((t for t in templates.load(path.split("/")[1], folder) if t.path == path), None)
    except TemplateError:
        found = None
    if found is None or found.hash != wanted:
        raise KforgeError(f"{path} in {folder} is gone or was edited")
    return found


def target_of(data: Mapping[str, Any]) -> Target:
    """Of a job as ``to_json`` wrote it. Raises KforgeError."""
    try:
        return _TARGET.validate_python(data["target"])
    except (KeyError, ValueError) as error:
        raise KforgeError(f"the job was written by another kforge: {error}") from None


def _mend_to_json(mend: Mend) -> dict[str, Any]:
    p = mend.proposal
    return {"id": p.id, "task": p.task, "template": _named(p.template), "parent": p.parent, "bottleneck": p.bottleneck,
            "move": p.move, "predicted": p.predicted, "author": p.author,
            "failure": _FAILURE.dump_python(mend.failure, mode="json")}


def _mend(data: dict[str, Any], run: Path) -> Mend:
    template = template_of(data["template"], run)
    proposal = Proposal(data["id"], data["task"], template, data["parent"], data["bottleneck"], data["move"],
                        data["predicted"], data["author"])
    return Mend(proposal, _FAILURE.validate_python(data["failure"]))
