"""A caller that answers from a script, and the answers that tests of the loop share."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kforge.agent.calls import CallFailure, CallFailureKind, Reply, Request, Role, Usage
from kforge.agent.loop import ModelProposer
from kforge.core.trial import Failure, FailureClass
from kforge.tuner.proposals import Proposal

Answer = Mapping[str, Any] | CallFailure
NEVER = 60.0  # seconds: an answer that is waited for comes sooner
FAILED = Failure(FailureClass.COMPILE, "g++: kernel.cc:3: expected ';'", ">    3 int x")


def analysis(move: str = "edit", **other: Any) -> Answer:
    return {"bottleneck": "edges", "evidence": "T=1 reaches 25.0 %", "move": move, "change": "more tokens in flight",
            "predicted_gain": 0.25, "difficulty": 1, **other}


fresh = itertools.count(10)


def edit(choices: str = "") -> Answer:
    """Other choices of tokens; no two calls give the same ones."""
    new = choices or f"[4, {next(fresh)}]"
    return {"name": "more", "hypothesis": "h", "edits": [{"find": "[1, 2, 4, 8]", "replace": new}]}


def breaking(to: str = "tokens >") -> Answer:
    return {"name": "broken", "hypothesis": "h", "edits": [{"find": "tokens > 1", "replace": to}]}


def mending() -> Answer:
    return {"name": "mended", "hypothesis": "h", "edits": [{"find": "tokens >", "replace": "tokens > 1"},
                                                           {"find": "[1, 2, 4, 8]", "replace": f"[4, {next(fresh)}]"}]}


class Script:
    """A caller that answers by role: the next answer of its list, the last one again and again. A callable answer is
    called with the request. ``hold`` keeps calls waiting until it is set, or until they are cancelled."""

    def __init__(self, **answers: Iterable[Answer | Callable[[Request], Answer]]) -> None:
        self.answers = {Role(role): list(given) for role, given in answers.items()}
        self.requests: list[Request] = []
        self.hold = threading.Event()
        self.hold.set()
        self._lock = threading.Lock()

    def call(self, request: Request, cancel: threading.Event) -> Reply | CallFailure:
        while not self.hold.wait(0.01):
            if cancel.is_set():
                return CallFailure(CallFailureKind.CANCELLED, "the call was stopped")
        with self._lock:
            self.requests.append(request)
            given = self.answers[request.role]
            answer = given.pop(0) if len(given) > 1 else given[0]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, CallFailure):
            return answer
        return Reply("script", "model-1", answer, "", Usage(10, 0, 0, 5), 0.1, 1)

    def of(self, role: Role) -> list[Request]:
        return sorted((r for r in self.requests if r.role is role), key=lambda r: (r.parent, r.ordinal))


class Scripted:
    """A provider that answers from a script."""

    name = "script"

    def __init__(self, script: Script) -> None:
        self._script = script

    def model_for(self, role: Role) -> str:
        return "model-1"

    def complete(self, request: Request, cancel: threading.Event) -> Reply | CallFailure:
        return self._script.call(request, cancel)


def plain(**other: Any) -> Script:
    """Analyst and generator that always find something new."""
    usual = {"analyst": [analysis()], "generator": [lambda _: edit()], "repairer": [lambda _: mending()]}
    return Script(**{**usual, **other})


def settle(proposer: ModelProposer) -> list[Proposal]:
    """Everything that is on its way."""
    taken = []
    until = time.monotonic() + NEVER
    while proposer.working:
        taken += proposer.take()
        assert time.monotonic() < until, "the proposer never came to an end"
        time.sleep(0.002)
    return taken
