"""How a call of a tool fails: a class from a closed list, one sentence, and detail for whoever mends it."""

from __future__ import annotations

from enum import StrEnum

from kforge.core.trial import Failure, FailureClass


class Refusal(StrEnum):
    """Why there is no answer although no kernel failed. A kernel's own failures are ``FailureClass``."""

    BAD_INPUT = "bad_input"  # a name, an axis, a size or a file that there is not, or may not be
    BUSY = "busy"  # the queue is full, or another process measures: try again later
    LIMIT = "limit"  # the call took longer than it may
    INCUMBENT = "incumbent"  # what a kernel was to be held against failed


class CallFailed(Exception):
    """A call of a tool that ends in an error, which the client sees as it is."""

    def __init__(self, kind: FailureClass | Refusal, reason: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason
        self.detail = detail

    @classmethod
    def of(cls, failure: Failure, detail: str = "") -> CallFailed:
        return cls(failure.kind, failure.reason, detail)

    @classmethod
    def named(cls, kind: str, reason: str, detail: str) -> CallFailed:
        """From what another process wrote down."""
        known: FailureClass | Refusal = Refusal(kind) if kind in set(Refusal) else FailureClass(kind)
        return cls(known, reason, detail)


def bad_input(reason: str) -> CallFailed:
    return CallFailed(Refusal.BAD_INPUT, reason)
