"""A lesson in words: at most twenty lines, with the outcomes that it rests on."""

from __future__ import annotations

import textwrap

from kforge.core.lesson import Evidence, Finding, Judged, Lesson
from kforge.core.words import percent

MOST_LINES = 20
WIDTH = 120
_HEAD_LINES, _MOVE_LINES, _EVIDENCE_LINES, _MOST_EVIDENCE = 2, 5, 3, 4  # 2 + 5 + 4 * 3, and one for what is left out
_SAYS = {
    Finding.GAIN: "it gained",
    Finding.NO_GAIN: "it brought no gain",
    Finding.FAILED: "nothing of it was right",
    Finding.OPEN: "not told apart",
}


def told(lesson: Lesson) -> str:
    """The move, what it came to, and the newest outcomes; no line is wider than ``WIDTH``. Without times of day: the
    same evidence gives the same text."""
    about = lesson.subject
    counts = f"{lesson.supports} for it, {lesson.contradictions} against it"
    lines = _wrapped(f"{about.operator} on {about.family} ({about.backend}), against {about.bottleneck}: "
                     f"{_SAYS[lesson.claim]} ({counts})", _HEAD_LINES)
    lines += _wrapped(f"Move: {about.move}", _MOVE_LINES)
    for evidence in lesson.evidence[: -_MOST_EVIDENCE - 1 : -1]:
        lines += _wrapped(f"- {_outcome(evidence)}", _EVIDENCE_LINES)
    if (more := len(lesson.evidence) - _MOST_EVIDENCE) > 0:
        lines.append(f"({more} earlier outcome{'s' if more > 1 else ''})")
    return "\n".join(lines)


def _wrapped(text: str, most: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), WIDTH, subsequent_indent="  ", max_lines=most, placeholder=" [cut]")


def _outcome(evidence: Evidence) -> str:
    where = [f"run {evidence.run}", evidence.idea]
    if evidence.trials:
        where.append(f"trials {', '.join(str(number) for number in evidence.trials)}")
    parts = [f"{evidence.problem} on {evidence.target}: {_SAYS[evidence.finding]}",
             f"predicted {percent(evidence.predicted)}"]
    if evidence.gain is not None:
        each = ", ".join(f"{bucket} {ratio:.2f}x" for bucket, ratio in evidence.buckets)
        parts.append(f"search {percent(evidence.gain)} over the best before{f' ({each})' if each else ''}")
    parts += [_verdict(judged) for judged in evidence.judged]
    if evidence.failure:
        parts.append(f"failed ({evidence.failure})")
    return f"[{', '.join(where)}] {'; '.join(parts)}"


def _verdict(judged: Judged) -> str:
    least = f", at least {percent(judged.lower)}" if not judged.reason else ""
    reason = f" ({judged.reason})" if judged.reason else ""
    return (f"judged {judged.decision}{reason} at {judged.bucket}: {percent(judged.gain)} over the incumbent{least}, "
            f"{judged.pairs} pairs")
