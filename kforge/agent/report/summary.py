"""The same facts as JSON values. Prompts and answers stay in their files, which each call names."""

from __future__ import annotations

import dataclasses
from typing import Any

from kforge.agent.report.facts import AgentReport, Call, IdeaReport, Measured
from kforge.agent.report.money import Money, Payment


def to_json(report: AgentReport) -> dict[str, Any]:
    return {
        "agent": report.agent,
        "money": _money(report.money),
        "predictions": dataclasses.asdict(report.calibration) if report.calibration else None,
        "ideas": [_idea(idea) for idea in report.ideas],
        "calls": [_call(call) for call in report.calls],
    }


def _money(money: Money) -> dict[str, Any]:
    """``usd`` is null where some tokens have no price; ``saved`` are percents of a step, averaged over the modes."""
    unit = "usd" if money.priced else "tokens"
    return {
        "calls": money.spent.calls,
        "tokens": money.spent.usage.total,
        "usd": money.spent.usd if money.priced else None,
        "usd_of_calls_without_an_answer": max(money.spent.usd - money.recorded, 0.0) if money.priced else None,
        "accepted_percent": 100 * money.saved,
        "promoted_percent": 100 * money.promoted,
        f"{unit}_per_accepted_percent": money.per_percent,
        f"{unit}_per_promoted_percent": money.per_promoted_percent,
        "accepted": [dataclasses.asdict(won) for won in money.won],
        "by_role": [_payment(payment) for payment in money.payments],
    }


def _payment(payment: Payment) -> dict[str, Any]:
    spent = payment.spent
    usd = spent.usd if payment.priced else None
    return {**dataclasses.asdict(payment.payee), "calls": spent.calls, **dataclasses.asdict(spent.usage), "usd": usd,
            "assumed_usd": spent.assumed_usd if payment.priced else None, "assumed_tokens": spent.assumed_tokens}


def _idea(report: IdeaReport) -> dict[str, Any]:
    return {
        "idea": report.idea.id,
        "problem": report.idea.task,
        "began_at": report.idea.branch.parent or None,
        "mends": report.idea.mends or None,
        "state": report.state.value,
        "why": report.why,
        "bottleneck": report.bottleneck,
        "move": report.move,
        "template": report.template or None,
        "made_from": report.made_from or None,
        "predicted": report.predicted,
        "measured": report.gain,
        "points": report.points,
        "trials": report.trials,
        "usd": report.usd,
        "tokens": report.tokens,
        "buckets": [_measured(measured) for measured in report.measured],
        "calls": [call.file for call in report.calls],
    }


def _measured(measured: Measured) -> dict[str, Any]:
    verdict = measured.verdict
    return {
        "bucket": measured.bucket,
        "share": measured.share,
        "before_seconds": measured.before,
        "best_seconds": measured.best,
        "others_seconds": measured.shipped,
        "decision": verdict.decision.value if verdict else None,
        "gain": verdict.gain if verdict else None,
    }


def _call(call: Call) -> dict[str, Any]:
    t = call.transcript
    return {
        "file": call.file,
        "idea": call.idea or None,
        "role": t.request.role.value,
        "provider": t.provider,
        "model": t.model,
        "outcome": call.outcome,
        "usage": dataclasses.asdict(call.usage),
        "usd": t.usd,
        "seconds": t.seconds,
        "started": t.started.isoformat(timespec="seconds"),
    }
