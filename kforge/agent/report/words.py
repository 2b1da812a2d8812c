"""Figures and foreign texts in the form in which a page or a terminal shows them."""

from __future__ import annotations

from dataclasses import dataclass

from kforge.agent.calls import Usage
from kforge.agent.report.facts import AgentReport, IdeaReport, State
from kforge.agent.report.money import Money, Payment
from kforge.core.words import counted, percent, plain
from kforge.tuner.report_names import microseconds

MOST_TITLE = 160  # characters of a line that names something
_GOOD = (State.ACCEPTED, State.PROMOTED)
_BAD = (State.FAILED, State.UNUSABLE, State.UNANSWERED, State.REJECTED)


@dataclass(frozen=True)
class Cut:
    """``left``: characters beyond ``text``, which nobody is shown here."""

    text: str
    left: int


def cut(text: str, most: int) -> Cut:
    return Cut(plain(text[:most]), max(len(text) - most, 0))


def line(text: str, most: int) -> str:
    """In one line."""
    said = " ".join(text[: 4 * most].split())
    return plain(said) if len(said) <= most and len(text) <= 4 * most else f"{plain(said[:most])} ..."


def usd(value: float | None) -> str:
    if value is None:
        return "no price known"
    return f"${value:.2f}" if value >= 1 or not value else f"${value:.4f}"


def gain(ratio: float | None) -> str:
    return "-" if ratio is None else percent(ratio)


def us(seconds: float | None) -> str:
    return "-" if seconds is None else microseconds(seconds)


def tokens(usage: Usage) -> str:
    """What went in and out, the prompt's part that the provider's cache gave in brackets."""
    prompt = usage.input + usage.cache_read + usage.cache_written
    cached = f" ({usage.cache_read:,} cached)" if usage.cache_read else ""
    return f"{prompt:,}{cached} in, {usage.output:,} out"


def paid(payment: Payment) -> str:
    """What went to one model in one role."""
    spent, payee = payment.spent, payment.payee
    most = f", at most {usd(spent.assumed_usd)} of it unknown" if spent.assumed_usd and payment.priced else ""
    return (f"{payee.role} {payee.provider}:{plain(payee.model)}: {counted(spent.calls, 'call')}, "
            f"{tokens(spent.usage)}, {usd(spent.usd if payment.priced else None)}{most}")


def money(report: AgentReport) -> list[str]:
    """What was spent, what it bought, and what each percent cost; a sentence each."""
    bill = report.money
    if not bill.payments:
        free = f"Nothing was spent: no call is on the bill{f' of {plain(report.agent)}' if report.agent else ''}."
        return [free, _bought(report)] if bill.won else [free]
    spent = bill.spent
    lines = [f"{counted(spent.calls, 'call')} of models, {spent.usage.total:,} tokens, "
             f"{usd(spent.usd) if bill.priced else 'no price known'}{_limits(report)}."]
    lost = spent.usd - bill.recorded
    if lost > 1e-6 and bill.priced:
        lines.append(f"{usd(lost)} of it is set down for calls whose process ended before their answer: at most that.")
    return [*lines, _bought(report)]


def _bought(report: AgentReport) -> str:
    bill = report.money
    if not bill.won:
        amount = usd(bill.spent.usd) if bill.priced else f"{bill.spent.usage.total:,} tokens"
        if not report.run.finished:
            return f"No kernel of a model is accepted yet; {amount} so far."
        return f"No kernel of a model was accepted: {amount} bought nothing that serves."
    promoted = (f", {100 * bill.promoted:.2f} % of it promoted" if bill.promoted else ", nothing of it promoted"
                f"{'' if report.run.finished else ' yet'}")
    cost = [f"{_each(bill, bill.per_percent)} for each accepted percent"] if bill.per_percent is not None else []
    if bill.per_promoted_percent is not None and bill.promoted < bill.saved:
        cost.append(f"{_each(bill, bill.per_promoted_percent)} for each promoted one")
    return (f"Accepted kernels of models ({counted(len(bill.won), 'bucket')}) save {100 * bill.saved:.2f} % of a "
            f"step{promoted}{': ' if cost else ''}{', '.join(cost)}.")


def predictions(report: AgentReport) -> str:
    found = report.calibration
    if found is None:
        return "No prediction was measured."
    return (f"{counted(found.count, 'prediction')} measured, {found.right_sign} came to a gain of 1 % or more; the "
            f"median of (1 + measured) / (1 + predicted) is {found.ratio:.2f}.")


def facts_of(idea: IdeaReport) -> list[str]:
    """An idea in a few words each: what it promised, what it came to, what it took."""
    said = [f"predicted {gain(idea.predicted)}"] if idea.predicted is not None else []
    if idea.gain is not None:
        said.append(f"measured {gain(idea.gain)}")
    if idea.trials:
        said.append(f"{counted(idea.points, 'point')}, {counted(idea.trials, 'trial')}")
    if idea.calls:
        said.append(f"{counted(len(idea.calls), 'call')}, {usd(idea.usd)}")
    return said


def kind_of(idea: IdeaReport) -> str:
    """What sort of attempt it is."""
    if idea.idea.mends:
        return f"repair of {idea.idea.mends}"
    if idea.template:
        return "edit" if idea.made_from else "new"
    return "edit" if idea.idea.branch.parent else "new"


def title(idea: IdeaReport) -> str:
    """An idea in one line of the tree."""
    return line(", ".join(filter(None, [kind_of(idea), idea.bottleneck])), MOST_TITLE)


def tone(state: State) -> str:
    """Class of a state's colour."""
    return "good" if state in _GOOD else "bad" if state in _BAD else "open"


def _each(bill: Money, value: float) -> str:
    return usd(value) if bill.priced else f"{value:,.0f} tokens"


def _limits(report: AgentReport) -> str:
    options = report.run.options
    given = [f"{usd(options.max_usd)}" if options.max_usd else "",
             f"{options.max_tokens:,} tokens" if options.max_tokens else "",
             counted(options.max_calls, "call") if options.max_calls else ""]
    said = ", ".join(filter(None, given))
    return f" (at most {said} were allowed)" if said else ""
