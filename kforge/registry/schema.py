"""Tables. Append-only: trials, kernels and events are inserted, never changed."""

from __future__ import annotations

from sqlalchemy import JSON, Float, ForeignKey, Index, Integer, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class RunRow(Base):
    __tablename__ = "run"
    id: Mapped[str] = mapped_column(String, primary_key=True)
    model: Mapped[str] = mapped_column(String)
    target_identity: Mapped[str] = mapped_column(String)
    folder: Mapped[str] = mapped_column(String)
    created: Mapped[str] = mapped_column(String)


class TrialRow(Base):
    """Losers and failures are knowledge too."""

    __tablename__ = "trial"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    run: Mapped[str] = mapped_column(ForeignKey("run.id"))
    target_identity: Mapped[str] = mapped_column(String)
    problem: Mapped[str] = mapped_column(String)
    workload: Mapped[str] = mapped_column(String)
    candidate_hash: Mapped[str] = mapped_column(String)
    template: Mapped[str] = mapped_column(String)
    params: Mapped[dict] = mapped_column(JSON)
    seconds: Mapped[float | None] = mapped_column(Float)
    spread: Mapped[float | None] = mapped_column(Float)
    failure: Mapped[str | None] = mapped_column(String)
    reason: Mapped[str] = mapped_column(String, default="")
    created: Mapped[str] = mapped_column(String)
    __table_args__ = (
        UniqueConstraint("run", "workload", "candidate_hash", name="trial_once"),
        Index("trial_by_problem", "problem", "target_identity"),
    )


class KernelRow(Base):
    __tablename__ = "kernel"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    candidate_hash: Mapped[str] = mapped_column(String)
    operator: Mapped[str] = mapped_column(String)
    problem: Mapped[str] = mapped_column(String)
    static: Mapped[dict] = mapped_column(JSON)
    bucket: Mapped[dict] = mapped_column(JSON)
    bucket_key: Mapped[str] = mapped_column(String)
    target_identity: Mapped[str] = mapped_column(String)
    target_name: Mapped[str] = mapped_column(String)
    operator_version: Mapped[int] = mapped_column(Integer)
    abi_version: Mapped[int] = mapped_column(Integer)
    numerics: Mapped[str] = mapped_column(String)
    layouts: Mapped[dict] = mapped_column(JSON)
    backend: Mapped[str] = mapped_column(String)
    template: Mapped[str] = mapped_column(String)
    template_hash: Mapped[str] = mapped_column(String)
    params: Mapped[dict] = mapped_column(JSON)
    source_hash: Mapped[str] = mapped_column(String)
    artifact_hash: Mapped[str] = mapped_column(String)
    compiler: Mapped[str] = mapped_column(String)
    seconds: Mapped[float] = mapped_column(Float)
    default_seconds: Mapped[float] = mapped_column(Float)
    gain: Mapped[float] = mapped_column(Float)
    gain_lower: Mapped[float] = mapped_column(Float)
    run: Mapped[str] = mapped_column(ForeignKey("run.id"))
    proposer: Mapped[str] = mapped_column(String)
    created: Mapped[str] = mapped_column(String)
    __table_args__ = (
        UniqueConstraint("run", "bucket_key", "problem", "candidate_hash", name="kernel_once"),
        Index("kernel_by_problem", "problem", "target_identity"),
    )


class EventRow(Base):
    """A kernel's history; the last event is its state."""

    __tablename__ = "event"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    kernel: Mapped[int] = mapped_column(ForeignKey("kernel.id"), index=True)
    state: Mapped[str] = mapped_column(String)
    reason: Mapped[str] = mapped_column(String)
    evidence: Mapped[dict] = mapped_column(JSON, default=dict)
    created: Mapped[str] = mapped_column(String)


class SettledRow(Base):
    """What a run settled for a problem: its weight's layout, jointly over all buckets, and with which templates.

    The last row of a problem on a target wins.
    """

    __tablename__ = "settled"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    target_identity: Mapped[str] = mapped_column(String)
    problem: Mapped[str] = mapped_column(String)  # key of the problem without its layout
    rows: Mapped[int] = mapped_column(Integer)  # panel height; 0 for operators without a packed weight
    buckets: Mapped[list] = mapped_column(JSON)  # keys of the buckets that were tuned
    templates: Mapped[str] = mapped_column(String)  # hash over the templates that competed
    run: Mapped[str] = mapped_column(ForeignKey("run.id"))
    created: Mapped[str] = mapped_column(String)


class LessonRow(Base):
    """What a move against a bottleneck is about; what it came to is in its events."""

    __tablename__ = "lesson"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    operator: Mapped[str] = mapped_column(String)
    backend: Mapped[str] = mapped_column(String)
    family: Mapped[str] = mapped_column(String)
    bottleneck: Mapped[str] = mapped_column(String)
    move: Mapped[str] = mapped_column(String)
    created: Mapped[str] = mapped_column(String)


class LessonEventRow(Base):
    """An outcome that speaks for or against a lesson, or its removal. The last one of an idea is what it came to."""

    __tablename__ = "lesson_event"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    lesson: Mapped[int] = mapped_column(ForeignKey("lesson.id"), index=True)
    kind: Mapped[str] = mapped_column(String)  # what was found, or "removed"
    run: Mapped[str | None] = mapped_column(ForeignKey("run.id"))
    idea: Mapped[str] = mapped_column(String, default="")
    evidence: Mapped[dict] = mapped_column(JSON, default=dict)
    created: Mapped[str] = mapped_column(String)
    __table_args__ = (Index("lesson_event_by_idea", "run", "idea"),)


class SeedRow(Base):
    """Parameters that somebody measured elsewhere: where a search begins, never what is served."""

    __tablename__ = "seed"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    operator: Mapped[str] = mapped_column(String)
    where: Mapped[dict] = mapped_column(JSON)  # attributes that a problem must have
    bucket: Mapped[dict] = mapped_column(JSON)
    backend: Mapped[str] = mapped_column(String)
    template: Mapped[str] = mapped_column(String)
    params: Mapped[dict] = mapped_column(JSON)
    target_identity: Mapped[str] = mapped_column(String)  # whose searches may begin with it; "": anybody's
    measured_on: Mapped[str] = mapped_column(String)
    source: Mapped[str] = mapped_column(String)
    seconds: Mapped[float | None] = mapped_column(Float)
    created: Mapped[str] = mapped_column(String)
    __table_args__ = (Index("seed_by_operator", "operator", "target_identity"),)
