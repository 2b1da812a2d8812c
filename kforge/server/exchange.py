"""One HTTP request on its way through the engine: jobs in, events out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kforge.engine.request import Output, SamplingParams
from kforge.server.errors import ApiError


@dataclass(frozen=True)
class Job:
    """One answer to compute."""

    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to job ``index``: a token, or an end that is none of its own (``error``).

    ``at``: ``perf_counter`` when it happened. ``last``: nothing more comes of this job.
    """

    index: int
    at: float
    output: Output | None = None
    error: ApiError | None = None
    last: bool = False


class Exchange:
    """Jobs and the queue of their events. Lives on the event loop; only ``jobs`` is read by the engine's thread."""

    def __init__(self, jobs: Sequence[Job], arrived: float) -> None:
        self.jobs = tuple(jobs)
        self.arrived = arrived  # ``perf_counter`` when the request came
        self.latest: list[float | None] = [None] * len(self.jobs)  # when each job had its last token
        self.open = set(range(len(self.jobs)))  # jobs whose last event has not come
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def put(self, event: Event) -> None:
        if event.last:
            self.open.discard(event.index)
        self._events.put_nowait(event)

    async def next(self) -> list[Event]:
        """The events since the last call, at least one; empty when there will be no more."""
        if not self.open and self._events.empty():
            return []
        events = [await self._events.get()]
        while not self._events.empty():
            events.append(self._events.get_nowait())
        return events
