"""What was found while a job was done, as the answer that a client gets."""

from __future__ import annotations

from kforge.agent.failures import told
from kforge.backends.cpp.disassembly import Listing, Loop
from kforge.core.errors import KforgeError
from kforge.core.trial import CompilerReport, Failure
from kforge.mcp import measured
from kforge.mcp.failures import CallFailed
from kforge.tuner.attempt import Attempt
from kforge.tuner.contenders import Incumbent

_MOST_WARNINGS = 4000  # characters
_MOST_LOOPS = 16
_MUCH_SPREAD = 0.1


def failed(failure: Failure) -> CallFailed:
    """As a proposer may know it: nothing of the shapes and seeds that checks use."""
    return CallFailed(
        failure.kind, failure.reason, told(failure).removeprefix(failure.reason).removeprefix(". ").strip("\n")
    )


def loop_facts(loop: Loop) -> measured.LoopFacts:
    return measured.LoopFacts(
        first=loop.first, last=loop.last, depth=loop.depth, innermost=loop.innermost, mix=dict(loop.mix)
    )


def busiest(listing: Listing) -> list[measured.LoopFacts]:
    inner = sorted((loop for loop in listing.loops if loop.innermost), key=lambda loop: -loop.work)
    return [loop_facts(loop) for loop in inner[:_MOST_LOOPS]]


def report_of(report: CompilerReport) -> measured.Build:
    return measured.Build(
        compiler=report.compiler,
        flags=" ".join(report.flags),
        seconds=report.seconds,
        text_bytes=report.text_bytes,
        spills=report.spills,
        mix=dict(report.instruction_mix),
        warnings=report.warnings[:_MOST_WARNINGS],
    )


def measured_of(done: Attempt, subject: measured.Subject) -> measured.Measured:
    if done.report is None or done.trial is None or done.trial.timing is None:
        raise KforgeError(f"{subject.candidate} was not timed although nothing failed")
    timing, limit = done.trial.timing, done.limit
    roofline = (
        measured.Roofline(
            seconds=limit.seconds, bound_by=limit.bound_by, bandwidth=limit.bandwidth, share=done.share or 0.0
        )
        if limit
        else None
    )
    return measured.Measured(
        subject=subject,
        seconds=timing.seconds,
        spread=timing.spread,
        batches=timing.batches,
        calls_per_batch=timing.calls_per_batch,
        max_error_ratio=done.trial.max_error_ratio,
        spills=done.report.spills,
        roofline=roofline,
        doubts=_doubts(done),
    )


def _doubts(done: Attempt) -> list[str]:
    """Of a machine that was disturbed while it measured."""
    timing = done.trial.timing if done.trial else None
    found = []
    if timing and not timing.seconds:
        found.append("too short to be told beside the cost of a command, now: measure again when the machine is idle")
    if timing and timing.spread > _MUCH_SPREAD:
        found.append("the machine was disturbed: its batches differ much; measure again, or compare")
    if (done.share or 0.0) > 1:
        found.append("above the limit: the machine changed while it was measured; measure again when it is idle")
    return found


def compared_of(done: Attempt, subject: measured.Subject, rival: Incumbent) -> measured.Compared:
    answer = measured.Compared(
        measured=measured_of(done, subject),
        against=rival.label,
        incumbent=rival.candidate.hash,
        unmeasured=done.unmeasured,
    )
    if done.ratio is None:
        return answer
    ratio = done.ratio
    return answer.model_copy(
        update={
            "ratio": ratio.value,
            "lower": ratio.lower,
            "upper": ratio.upper,
            "pairs": ratio.pairs,
            "incumbent_seconds": ratio.incumbent_seconds,
            "told": ratio.told,
        }
    )
