"""A model behind an official SDK: attempts, pauses between them, limits of time and size."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from kforge.agent.calls import CallFailure, CallFailureKind, Reply, Request, Role, Usage
from kforge.agent.providers.access import Access
from kforge.agent.providers.apart import GivenUp, run_apart
from kforge.agent.providers.dialect import Dialect
from kforge.agent.providers.heard import Fault, Heard, answer
from kforge.agent.providers.patience import Patience
from kforge.agent.providers.trouble import Trouble

_MOST_BYTES, _MOST_BYTES_A_TOKEN = 1 << 20, 1 << 10  # of a stream: an event wraps a few bytes of text into hundreds
_ASK_FOR_CALL = "Answer with one call of the tool {name} and nothing else."


class SdkProvider:
    """Attempts that cost nothing are repeated here. One that broke off after the server had begun to answer costs
    something, so it is the caller's to repeat: its failure says what it cost.
    """

    def __init__(self, model: str, dialect: Dialect, patience: Patience | None = None):
        self.name = dialect.provider
        self._model = model
        self._dialect = dialect
        self._patience = patience or Patience()
        self._refused: frozenset[str] = frozenset()  # optional fields that this server does not take for this model

    def model_for(self, role: Role) -> str:
        return self._model

    def missing_key(self) -> str:
        """A sentence where the environment holds no key, else ""."""
        found = self._dialect.access()
        return found if isinstance(found, str) else ""

    def complete(self, request: Request, cancel: threading.Event) -> Reply | CallFailure:
        access = self._dialect.access()
        if isinstance(access, str):
            return CallFailure(CallFailureKind.UNAUTHORISED, access)
        return _Call(self, request, access, cancel).answer()

    def body(self, request: Request) -> dict[str, Any]:
        """What is sent, without what the server did not take before."""
        if "tool_choice" in self._refused:
            system = f"{request.system}\n\n{_ASK_FOR_CALL.format(name=request.tool.name)}".strip()
            request = replace(request, system=system)
        body = self._dialect.body(request, self._model)
        return {name: value for name, value in body.items() if name not in self._refused}

    def leave_away(self, message: str, body: dict[str, Any]) -> bool:
        """Whether a server's complaint names optional fields of the body; they are not sent again."""
        named = {name for name in self._dialect.optional & body.keys() if name in message}
        self._refused |= named
        return bool(named)

    def attempt(
        self, body: dict[str, Any], request: Request, access: Access, cancel: threading.Event, seconds: float
    ) -> _Attempt:
        import httpx2

        from kforge.agent.providers.transport import BoundedClient
        from kforge.agent.providers.trouble import trouble

        heard = Heard()
        patience = self._patience
        timeout = httpx2.Timeout(patience.silence, connect=patience.connect)
        most = _MOST_BYTES + _MOST_BYTES_A_TOKEN * request.max_tokens

        async def converse() -> None:
            async with BoundedClient(most, timeout) as client:
                await self._dialect.converse(body, access, client, heard)

        try:
            return _Attempt(heard, run_apart(converse, cancel, seconds))
        except Exception as error:  # whatever a server or a network does ends as a value
            return _Attempt(heard, trouble(error, access))

    @property
    def patience(self) -> Patience:
        return self._patience


@dataclass(frozen=True)
class _Attempt:
    heard: Heard
    ended: GivenUp | Trouble | None  # None: at the end of the answer


class _Call:
    def __init__(self, provider: SdkProvider, request: Request, access: Access, cancel: threading.Event):
        self._provider = provider
        self._request = request
        self._access = access
        self._cancel = cancel
        self._began = time.monotonic()
        self._deadline = self._began + provider.patience.seconds
        self._attempts = 0

    def answer(self) -> Reply | CallFailure:
        failed = 0
        while not self._cancel.is_set():
            body = self._provider.body(self._request)
            left = self._deadline - time.monotonic()
            attempt = self._provider.attempt(body, self._request, self._access, self._cancel, left)
            self._attempts += 1
            match attempt.ended:
                case None:
                    return self._judged(attempt.heard)
                case GivenUp():
                    return self._given_up(attempt.ended, attempt.heard)
                case Trouble() as trouble:
                    if self._provider.leave_away(trouble.message, body):
                        continue
                    failed += 1
                    if failure := self._paused(trouble, attempt.heard, failed):
                        return failure
        return CallFailure(CallFailureKind.CANCELLED, "the call was stopped", attempts=self._attempts)

    def _paused(self, trouble: Trouble, heard: Heard, failed: int) -> CallFailure | None:
        """Waits for the next attempt; a failure where there is to be none."""
        patience = self._provider.patience
        if heard.begun or not trouble.again:
            return self._failure(trouble.kind, trouble.reason, heard)
        if failed >= patience.attempts:
            return self._failure(trouble.kind, f"{trouble.reason} ({failed} attempts)", heard)
        delay = patience.delay(failed, trouble.wait)
        if time.monotonic() + delay > self._deadline:
            why = f"it asks to wait {delay:.0f} s, longer than there is" if trouble.wait else f"{failed} attempts"
            return self._failure(trouble.kind, f"{trouble.reason} ({why})", heard)
        self._cancel.wait(delay)
        return None

    def _judged(self, heard: Heard) -> Reply | CallFailure:
        words = self._access.words
        for call in heard.calls.values():
            call.parts = [words("".join(call.parts))]
        heard.text = [words("".join(heard.text))]
        found = answer(heard, self._request)
        if isinstance(found, Fault):
            return self._failure(found.kind, self._access.reason(found.reason), heard)
        usage, assumed = heard.cost(self._request)
        model = words(heard.model) or self._provider.model_for(self._request.role)
        seconds = time.monotonic() - self._began
        text = "".join(heard.text).strip()
        return Reply(self._provider.name, model, found, text, usage, seconds, self._attempts, assumed)

    def _given_up(self, why: GivenUp, heard: Heard) -> CallFailure:
        if why is GivenUp.CANCELLED:
            return self._failure(CallFailureKind.CANCELLED, "the call was stopped", heard)
        seconds = self._provider.patience.seconds
        reason = f"{self._access.server} did not finish its answer within {seconds:.0f} s"
        return self._failure(CallFailureKind.TIMEOUT, reason, heard)

    def _failure(self, kind: CallFailureKind, reason: str, heard: Heard) -> CallFailure:
        """Servers bill what they began to answer, and may bill what they were still thinking about."""
        billed = heard.begun or kind in (CallFailureKind.TIMEOUT, CallFailureKind.CANCELLED)
        usage, assumed = heard.cost(self._request) if billed else (Usage(), False)
        return CallFailure(kind, reason, usage, self._access.words(heard.said), assumed, self._attempts)
