"""What an SDK raises, as a reason and a decision: whether to try again, and when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2

from kforge.agent.calls import CallFailureKind
from kforge.agent.providers.access import Access
from kforge.agent.providers.patience import asked_delay
from kforge.agent.providers.transport import TooLong

_NO_MONEY = ("insufficient_quota", "billing_error", "billing_hard_limit_reached", "credit balance")
_NOT_ALLOWED = ("authentication_error", "permission_error", "invalid_api_key", *_NO_MONEY)
_TOO_MANY = ("rate_limit", "too_many_requests", "tokens_per_min", "requests_per_min")
_WRONG = ("invalid_request", "not_found", "request_too_large", "context_length")


class StreamFault(Exception):
    """A stream that breaks off, or tells of a failure, in a way that the SDK passes on as an ordinary event."""

    def __init__(self, body: object):
        super().__init__()
        self.body = body


@dataclass(frozen=True)
class Trouble:
    """``again``: another attempt may go better; ``wait``: seconds that the server asks for first.

    ``message``: what the server said, to be looked through for fields that it does not take; not to be shown.
    """

    kind: CallFailureKind
    reason: str
    again: bool = False
    wait: float | None = None
    message: str = ""


def trouble(error: Exception, access: Access) -> Trouble:
    """Both SDKs raise errors of the same make; those of the HTTP client come through them or stand behind them."""
    chain = list(_chain(error))
    if any(isinstance(e, TooLong) for e in chain):
        return Trouble(CallFailureKind.TRUNCATED, "the server sent far more than the answer may be long")
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status != httpx2.codes.OK:
        return _of_status(error, status, access)
    for e in chain:
        if isinstance(e, httpx2.HTTPError | httpx2.InvalidURL):
            return _of_transport(e, access)
    body = getattr(error, "body", None)
    if body is not None or isinstance(error, StreamFault):
        return _of_stream(body, access)
    what = access.reason(f"{type(error).__name__}: {error}")
    return Trouble(CallFailureKind.UNAVAILABLE, f"{access.server} sent what is no answer of this protocol ({what})")


def _of_status(error: Exception, status: int, access: Access) -> Trouble:
    body = getattr(error, "body", None)
    message, words = _message(body), _words(body)
    response = getattr(error, "response", None)
    headers = {k.lower(): v for k, v in response.headers.items()} if response is not None else {}
    said = f": {access.reason(message)}" if message else ""
    told = f"{access.server} answers {status}"
    if status == 401:  # what is said of the key is not repeated
        return Trouble(CallFailureKind.UNAUTHORISED, f"{told}: the key in {access.variable} is wrong")
    if status == 403:
        return Trouble(CallFailureKind.UNAUTHORISED, f"{told}: the key in {access.variable} may not do this{said}")
    if status == 402 or (status == 429 and any(word in words for word in _NO_MONEY)):
        return Trouble(CallFailureKind.UNAUTHORISED, f"{told}: the account of {access.variable} cannot pay{said}")
    wait = asked_delay(headers)
    if status == 429:
        return Trouble(CallFailureKind.RATE_LIMITED, f"{told}, too many requests{said}", again=True, wait=wait)
    if status in (408, 409, 425) or status >= 500:
        return Trouble(CallFailureKind.UNAVAILABLE, f"{told}{said}", again=True, wait=wait)
    return Trouble(CallFailureKind.REJECTED, f"{told}{said}", message=message)


def _of_transport(error: httpx2.HTTPError | httpx2.InvalidURL, access: Access) -> Trouble:
    what = access.reason(str(error) or type(error).__name__)
    if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError | httpx2.PoolTimeout | httpx2.ProxyError):
        return Trouble(CallFailureKind.UNAVAILABLE, f"no connection to {access.server}: {what}", again=True)
    if isinstance(error, httpx2.TimeoutException):
        return Trouble(CallFailureKind.TIMEOUT, f"{access.server} fell silent")
    if isinstance(error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError | httpx2.InvalidURL):
        return Trouble(CallFailureKind.REJECTED, f"{access.server} cannot be called so: {what}")
    return Trouble(CallFailureKind.UNAVAILABLE, f"the connection to {access.server} dropped: {what}", again=True)


def _of_stream(body: object, access: Access) -> Trouble:
    """An error in the middle of an answer: there is no status, only what the server calls it."""
    words, message = _words(body), access.reason(_message(body))
    told = f"{access.server} broke the answer off{f': {message}' if message else ''}"
    if any(word in words for word in _NOT_ALLOWED):
        return Trouble(CallFailureKind.UNAUTHORISED, told)
    if any(word in words for word in _TOO_MANY):
        return Trouble(CallFailureKind.RATE_LIMITED, told, again=True)
    if any(word in words for word in _WRONG):
        return Trouble(CallFailureKind.REJECTED, told)
    return Trouble(CallFailureKind.UNAVAILABLE, told, again=True)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    next_one: BaseException | None = error
    while next_one is not None and id(next_one) not in seen:
        seen.add(id(next_one))
        yield next_one
        next_one = next_one.__cause__ or next_one.__context__


def _fields(body: object) -> dict[str, Any]:
    inner = body.get("error", body) if isinstance(body, dict) else body
    return inner if isinstance(inner, dict) else {"message": inner}


def _message(body: object) -> str:
    message = _fields(body).get("message")
    return message if isinstance(message, str) else ""


def _words(body: object) -> str:
    """What an error is called, in one text: servers put it into its type, its code or its message."""
    fields = _fields(body)
    return json.dumps([fields.get(name) for name in ("type", "code", "message")], default=str).lower()
