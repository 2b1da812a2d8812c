"""A verdict from measuring: looks at paired batches until the judge decides, then the audit of what it would accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kforge.core.trial import Candidate, Decision, RejectReason, Verdict
from kforge.core.workload import Workload
from kforge.harness.agreement import Agreement, Audited, Claim, agree
from kforge.harness.audit import AUDIT_ZYGOTES, AuditSample, joined_audits
from kforge.harness.judge import Rules, ShapeSample, decide
from kforge.harness.pairs import ContestantFailure, PairedSample, joined
from kforge.harness.timing import Plan

_AUDIT_LOOKS = 3  # at AUDIT_ZYGOTES more each, while an audit is unclear


class Measuring(Protocol):
    """What a verdict needs measured; the harness."""

    def compare(self, candidate: Candidate, incumbent: Candidate, workload: Workload, *, pairs: int, zygotes: int,
                first_zygote: int, plan: Plan) -> PairedSample | ContestantFailure: ...

    def audit(self, candidate: Candidate, incumbent: Candidate, workload: Workload, *, seconds: float, zygotes: int,
              first_zygote: int, thorough: bool) -> AuditSample | ContestantFailure: ...

    def limit_seconds(self, workload: Workload, *, fresh: bool = False) -> float: ...


@dataclass(frozen=True)
class Question:
    """Is ``candidate`` faster than ``incumbent`` at these workloads, the shapes of a bucket?"""

    candidate: Candidate
    incumbent: Candidate
    workloads: Sequence[Workload]
    rules: Rules
    pairs: int
    plan: Plan


class Judging:
    """One question on its way to a verdict."""

    def __init__(self, measuring: Measuring, question: Question) -> None:
        self._measuring = measuring
        self._question = question
        self._samples: list[PairedSample] = []
        self._limits = [measuring.limit_seconds(w) for w in question.workloads]
        self._above_limit = False  # the machine's limit as it is now, too

    def verdict(self) -> Verdict:
        """In as many looks as it takes and the rules allow."""
        seen = 0
        verdict: Verdict | None = None
        for look in self._question.rules.looks:
            if (failed := self._compare(seen, look)) is not None:
                return self._failed(failed)
            seen = look
            verdict = self._decide()
            if verdict.decision is not Decision.UNDECIDED:
                break
        if verdict is None:
            raise ValueError("rules without a look decide nothing")
        return self._audited(verdict) if verdict.decision is Decision.ACCEPTED else verdict

    def _compare(self, first: int, last: int) -> ContestantFailure | None:
        q = self._question
        for i, workload in enumerate(q.workloads):
            more = self._measuring.compare(q.candidate, q.incumbent, workload, pairs=q.pairs, zygotes=last - first,
                                           first_zygote=first, plan=q.plan)
            if isinstance(more, ContestantFailure):
                return more
            if first:
                self._samples[i] = joined(self._samples[i], more)
            else:
                self._samples.append(more)
        return None

    def _decide(self) -> Verdict:
        """The judge's word. What it calls too fast is held against limits measured now, since those of a shared machine
        change between minutes; what is faster than these too is for the audit to believe or not.
        """
        verdict = self._told_by_judge()
        if verdict.reason is RejectReason.ABOVE_ROOFLINE:
            self._limits = [self._measuring.limit_seconds(w, fresh=True) for w in self._question.workloads]
            verdict = self._told_by_judge()
        if verdict.reason is RejectReason.ABOVE_ROOFLINE:
            self._above_limit = True
            self._limits = [0.0 for _ in self._limits]
            verdict = self._told_by_judge()
        return verdict

    def _told_by_judge(self) -> Verdict:
        q = self._question
        shapes = [ShapeSample(s, max(w.count * s.incumbent_seconds, 1e-12), limit)
                  for w, s, limit in zip(q.workloads, self._samples, self._limits, strict=True)]
        return decide(q.candidate.hash, q.incumbent.hash, shapes, q.rules)

    def _audited(self, verdict: Verdict) -> Verdict:
        """An accepted one after its audit, which must agree."""
        q = self._question
        claims = [Claim(sample.seconds, sample.seconds * gain, max(w.count, 1e-12)) for w, sample, (_, gain)
                  in zip(q.workloads, self._samples, verdict.per_shape, strict=True)]
        samples: list[list[AuditSample]] = [[] for _ in q.workloads]
        found: Audited | None = None
        for look in range(_AUDIT_LOOKS):
            for i, workload in enumerate(q.workloads):
                more = self._measuring.audit(
                    q.candidate, q.incumbent, workload, seconds=self._samples[i].seconds, zygotes=AUDIT_ZYGOTES,
                    first_zygote=look * AUDIT_ZYGOTES, thorough=self._above_limit)
                if isinstance(more, ContestantFailure):
                    return self._failed(more)
                samples[i].append(more)
            found = agree(claims, [joined_audits(each) for each in samples])
            if found.agreement is not Agreement.UNCLEAR:
                break
        assert found is not None
        return after_audit(verdict, found, self._above_limit)

    def _failed(self, failed: ContestantFailure) -> Verdict:
        q = self._question
        return failed_verdict(q.candidate.hash, q.incumbent.hash, failed)


def after_audit(verdict: Verdict, found: Audited, above_limit: bool) -> Verdict:
    """What becomes of an accepted verdict: it stands when the audit confirms it."""
    audit = found.audit
    bounds = f"[{found.share_lower:.0%}, {found.share_upper:.0%}]"
    shown = f"the audit shows {found.share:.0%} {bounds} of what was claimed, in {audit.pairs} pairs of single calls"
    if found.agreement is Agreement.CONFIRMED:
        known = "; faster than the hardware's limit measured just now, which the audit bears out" if above_limit else ""
        return replace(verdict, audit=audit, text=f"{verdict.text}; {shown}{known}")
    if above_limit:
        text = f"faster than the hardware's limit measured just now, and not confirmed: {shown}"
        return replace(verdict, decision=Decision.UNDECIDED, reason=RejectReason.ABOVE_ROOFLINE, audit=audit, text=text)
    if found.agreement is Agreement.REFUTED:
        text = f"single calls on inputs that it never saw do not show a gain of {verdict.gain:+.2%}: {shown}"
        return replace(verdict, decision=Decision.REJECTED, reason=RejectReason.AUDIT, audit=audit, text=text)
    text = f"the machine is too noisy to audit a gain of {verdict.gain:+.2%}: {shown}"
    return replace(verdict, decision=Decision.UNDECIDED, reason=RejectReason.TOO_NOISY, audit=audit, text=text)


def failed_verdict(candidate: str, incumbent: str, failed: ContestantFailure) -> Verdict:
    """A candidate that fails while it is timed is rejected; without its incumbent nothing can be said of it."""
    mine = failed.hash == candidate
    text = f"the {'candidate' if mine else 'incumbent'} failed: {failed.failure.reason}"
    decision = Decision.REJECTED if mine else Decision.UNDECIDED
    return Verdict(decision, candidate, incumbent, 0.0, 0.0, 0.0, 0, 0, 0.0, RejectReason.FAILED, (), text)
