"""One call of a model as the loop sees it: through the budget to a provider, and onto the disk."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kforge.agent.budget import Ledger, Payee
from kforge.agent.calls import CallFailure, CallFailureKind, Message, Provider, Reply, Request
from kforge.agent.providers.replay import Replay
from kforge.agent.providers.router import Router
from kforge.agent.transcripts import Transcript, Transcripts

_CORRECTED = frozenset(
    {
        CallFailureKind.MALFORMED,
        CallFailureKind.EMPTY,
        CallFailureKind.TRUNCATED,
        CallFailureKind.PROSE,
        CallFailureKind.WRONG_TOOL,
    }
)
_REPEATED = frozenset({CallFailureKind.UNAVAILABLE, CallFailureKind.RATE_LIMITED})
_MOST_SHOWN = 20_000  # characters of a bad answer that the model sees again


class Caller:
    """What the loop asks models through. Thread-safe.

    An answer that is no answer, or that broke off, costs one more attempt, which has to fit the budget by itself.
    Without ``ledger`` and ``transcripts``: a replay, which costs nothing and is on disk already.
    """

    def __init__(
        self, router: Router, ledger: Ledger | None = None, transcripts: Transcripts | None = None, pause: float = 2.0
    ):
        self._router = router
        self._ledger = ledger
        self._transcripts = transcripts
        self._pause = pause  # seconds before what broke off is asked again

    def call(self, request: Request, cancel: threading.Event) -> Reply | CallFailure:
        """Answers; at once, and for nothing, what was answered before the run was resumed.

        Raises KforgeError where the run's folder cannot be written.
        """
        if self._transcripts and (known := self._transcripts.reply_to(request)):
            return known
        provider = self._router.provider(request.role)
        started, began = datetime.now(UTC), time.monotonic()
        result = self._tried(provider, request, cancel)
        if self._transcripts:
            model, seconds = provider.model_for(request.role), time.monotonic() - began
            self._transcripts.write(
                Transcript(request, provider.name, model, result.answer, result.first, result.usd, started, seconds)
            )
        return result.answer

    def _tried(self, provider: Provider, request: Request, cancel: threading.Event) -> _Result:
        once = self._paid(provider, request, cancel)
        first = once.answer
        if not isinstance(first, CallFailure) or isinstance(provider, Replay):  # which recorded what came in the end
            return once
        if first.kind in _CORRECTED:
            request = corrected(request, first)
        elif first.kind not in _REPEATED or not first.usage.total or cancel.wait(self._pause):
            return once
        twice = self._paid(provider, request, cancel)
        second = twice.answer
        if isinstance(second, CallFailure) and second.kind is CallFailureKind.BUDGET:
            return once
        usage, attempts = first.usage + second.usage, first.attempts + second.attempts
        total = replace(second, usage=usage, attempts=attempts, assumed=first.assumed or second.assumed)
        usd = None if once.usd is None or twice.usd is None else once.usd + twice.usd
        return _Result(total, first, usd)

    def _paid(self, provider: Provider, request: Request, cancel: threading.Event) -> _Result:
        if self._ledger is None:
            return _Result(provider.complete(request, cancel))
        payee = Payee(request.role, provider.name, provider.model_for(request.role))
        reservation = self._ledger.reserve(payee, request.bound, cancel)
        if isinstance(reservation, CallFailure):
            return _Result(reservation)
        try:
            answer = provider.complete(request, cancel)
        except BaseException:  # Ctrl-C: what was used is not known
            self._ledger.settle(reservation, request.bound, assumed=True)
            raise
        return _Result(answer, usd=self._ledger.settle(reservation, answer.usage, assumed=answer.assumed))


@dataclass(frozen=True)
class _Result:
    answer: Reply | CallFailure
    first: CallFailure | None = None
    usd: float | None = 0.0


def corrected(request: Request, failure: CallFailure) -> Request:
    """The request once more, with what came back and what was wrong with it."""
    said = failure.answer.strip()
    shown = said[:_MOST_SHOWN] if said and failure.kind is not CallFailureKind.TRUNCATED else ""
    wrong = f"That was no usable answer: {failure.reason}."
    if failure.kind is CallFailureKind.TRUNCATED:
        wrong = f"Your answer was not used: {failure.reason}. Give a shorter one."
    ask = f"{wrong}\n\nAnswer with exactly one call of the tool {request.tool.name}, whose arguments fit its schema."
    back = (Message("assistant", shown),) if shown else ()
    return replace(request, messages=(*request.messages, *back, Message("user", ask)))
