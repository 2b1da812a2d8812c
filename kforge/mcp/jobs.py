"""What the server asks of the process that builds and measures, one JSON line each; and what comes back."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter

from kforge.core.workload import Attr


class Subject(BaseModel):
    """A kernel at a workload. ``text``: the source of a file of the client's; None for one that kforge knows by
    ``kernel``. ``threads`` 0: all cores."""

    operator: str
    axes: dict[str, Attr]
    kernel: str
    text: str | None
    params: dict[str, Attr]
    relaxed: bool = False
    threads: int = 0


class HostJob(BaseModel):
    """Have this machine probed, if it has not been."""

    kind: Literal["host"] = "host"


class RenderJob(BaseModel):
    kind: Literal["render"] = "render"
    subject: Subject


class BuildJob(BaseModel):
    kind: Literal["build"] = "build"
    subject: Subject


class DisassembleJob(BaseModel):
    """``hot``: only the hot loop; else ``count`` lines from ``first`` on."""

    kind: Literal["disassemble"] = "disassemble"
    subject: Subject
    hot: bool
    first: int
    count: int


class CheckJob(BaseModel):
    kind: Literal["check"] = "check"
    subject: Subject


class MeasureJob(BaseModel):
    kind: Literal["measure"] = "measure"
    subject: Subject


class CompareJob(BaseModel):
    kind: Literal["compare"] = "compare"
    subject: Subject
    against: str


class TuneJob(BaseModel):
    kind: Literal["tune"] = "tune"
    subject: Subject
    trials: int
    seconds: float


class SubmitJob(BaseModel):
    kind: Literal["submit"] = "submit"
    subject: Subject


class PromoteJob(BaseModel):
    """``kernel``: as the client names it; ``model`` and ``runs``: paths of the server's own."""

    kind: Literal["promote"] = "promote"
    kernel: str
    model: str
    runs: str
    batches: list[int]
    context: int
    prefill: int
    threads: int = 0


Job = Annotated[
    HostJob
    | RenderJob
    | BuildJob
    | DisassembleJob
    | CheckJob
    | MeasureJob
    | CompareJob
    | TuneJob
    | SubmitJob
    | PromoteJob,
    Field(discriminator="kind"),
]
JOB: TypeAdapter[Job] = TypeAdapter(Job)


class Note(BaseModel):
    """News of a job that is still going on."""

    kind: Literal["note"] = "note"
    text: str


class Done(BaseModel):
    """``answer``: of the job, as JSON."""

    kind: Literal["done"] = "done"
    answer: str


class Failed(BaseModel):
    """``failure``: a ``FailureClass`` or ``Refusal``."""

    kind: Literal["failed"] = "failed"
    failure: str
    reason: str
    detail: str = ""


Reply = Annotated[Note | Done | Failed, Field(discriminator="kind")]
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)
