"""Answers that were recorded: a run again, without a network and without cost."""

from __future__ import annotations

import json
import threading
from itertools import zip_longest
from pathlib import Path

from kforge.agent.calls import CallFailure, CallFailureKind, Reply, Request, Role
from kforge.agent.transcripts import Transcript, load
from kforge.core.errors import KforgeError

_MOST_QUOTED = 160


class Replay:
    """Finds the answer by role, parent and ordinal; the request must be the recorded one, byte for byte.

    Where a resumed run asked the same thing twice, its last answer counts: that is the one it went on with.
    """

    name = "replay"

    def __init__(self, folder: Path):
        """Raises KforgeError for a folder without calls."""
        recorded = load(folder)
        if not recorded:
            raise KforgeError(f"{folder} holds no recorded calls; give the folder of a run that asked a model")
        self._recorded = {_key(t.request): t for t in recorded}
        self._models: dict[Role, str] = {t.request.role: t.model for t in recorded}

    def model_for(self, role: Role) -> str:
        return self._models.get(role, "")

    def complete(self, request: Request, cancel: threading.Event) -> Reply | CallFailure:
        if cancel.is_set():
            return CallFailure(CallFailureKind.CANCELLED, "the call was stopped")
        found = self._recorded.get(_key(request))
        if found is None:
            return _diverged(request, f"it was not recorded, {self._of_role(request)}")
        if found.request.hash != request.hash:
            return _diverged(request, first_difference(found, request))
        return found.answer

    def _of_role(self, request: Request) -> str:
        calls = sum(role is request.role and parent == request.parent for role, parent, _ in self._recorded)
        return f"{calls} of this {request.role} about this template were"


def _diverged(request: Request, why: str) -> CallFailure:
    return CallFailure(CallFailureKind.DIVERGED, f"call {request.key}: {why}")


def first_difference(recorded: Transcript, request: Request) -> str:
    """Where a request leaves what was recorded."""
    place, number = "", 0
    for before, now in zip_longest(_lines(recorded.request), _lines(request), fillvalue=("the end", "")):
        number = number + 1 if now[0] == place else 1
        place = now[0]
        if before != now:
            was = f"{_shown(before[1])}" if before[0] == now[0] else f"{before[0]}: {_shown(before[1])}"
            return f"line {number} of {place} is {_shown(now[1])}, recorded was {was}"
    return "the requests differ in nothing that can be shown"


def _lines(request: Request) -> list[tuple[str, str]]:
    """Everything that the model is shown, as lines with the name of the part that they are of."""
    tool = request.tool
    parts = [("the system text", request.system)]
    parts += [(f"message {i} ({m.by})", m.text) for i, m in enumerate(request.messages, 1)]
    parts += [("the tool's name", tool.name), ("the tool's description", tool.description)]
    parts += [("the tool's schema", json.dumps(dict(tool.schema), indent=1, sort_keys=True))]
    parts += [("max_tokens", str(request.max_tokens))]
    return [(name, line) for name, text in parts for line in text.split("\n")]


def _shown(line: str) -> str:
    return repr(line if len(line) <= _MOST_QUOTED else f"{line[:_MOST_QUOTED]} ...")


def _key(request: Request) -> tuple[Role, str, int]:
    return request.role, request.parent, request.ordinal
