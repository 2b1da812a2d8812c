"""Continuous batching by the clock: the one loop that every engine's driver replays a trace with.

Standard library only: it runs in each peer's own environment.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypedDict


class Request(TypedDict):
    """``arrival``: seconds after the trace began. ``output``: tokens to generate, whatever they are."""

    arrival: float
    prompt: list[int]
    output: int


class Batcher(Protocol):
    """An engine that computes all its running requests together."""

    def add(self, index: int, prompt: list[int], output: int) -> None:
        """Takes up a request; it runs from the next step on."""

    def step(self) -> Sequence[int]:
        """Computes one step; the index of a request for every token that it got. Empty amid a long prompt."""


def replay(
    engine: Batcher,
    requests: Sequence[Request],
    slots: int,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[list[float]]:
    """When each request's tokens came, in seconds after the trace began. At most ``slots`` run at once, in the order of
    arrival; those behind them wait. A step that brings several tokens of a request brings them at one time.

    ``RuntimeError`` when the engine gives a request more tokens than it asked for.
    """
    waiting = deque(sorted(range(len(requests)), key=lambda i: requests[i]["arrival"]))
    times: list[list[float]] = [[] for _ in requests]
    running = 0
    began = clock()
    while waiting or running:
        now = clock() - began
        while waiting and running < slots and requests[waiting[0]]["arrival"] <= now:
            index = waiting.popleft()
            engine.add(index, requests[index]["prompt"], requests[index]["output"])
            running += 1
        if not running:
            sleep(max(requests[waiting[0]]["arrival"] - now, 0.0))
            continue
        got = engine.step()
        now = clock() - began
        for index in got:
            times[index].append(now)
            left = requests[index]["output"] - len(times[index])
            if left < 0:
                raise RuntimeError(f"request {index} got more than the {requests[index]['output']} tokens it asked for")
            running -= left == 0
    return times
