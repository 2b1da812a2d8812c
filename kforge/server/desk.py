"""The event loop's side of the engine: who is let in, and who gets what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

from kforge.server.engine_thread import Delivery, EngineThread, Snapshot
from kforge.server.errors import ApiError
from kforge.server.exchange import Event, Exchange
from kforge.server.metrics import Metrics

_RETRY_AFTER = 1  # seconds


class Desk:
    """Admits exchanges up to ``capacity`` answers at once, delivers their events, and counts. All on one event loop.

    ``on_failure``: called when the engine ended before its time, with the exception in ``failure``.
    """

    def __init__(self, thread: EngineThread, capacity: int, metrics: Metrics) -> None:
        self.capacity = capacity
        self.failure: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self.cut_off = 0  # answers that were dropped because the server ended
        self._thread, self._metrics = thread, metrics
        self._exchanges: set[Exchange] = set()
        self._admitted = 0  # answers that are open
        self._closed = False
        self._ended = False
        loop = asyncio.get_running_loop()
        thread.post = lambda deliveries: _call(loop, self._deliver, deliveries)
        thread.ended = lambda error: _call(loop, self._end, error)

    @property
    def serving(self) -> bool:
        return not self._closed and not self._ended

    @property
    def snapshot(self) -> Snapshot | None:
        return self._thread.snapshot

    def submit(self, exchange: Exchange) -> None:
        """Raises ``ApiError``: 429 when the queue is full, 503 when the server ends, 400 for more than it holds."""
        count = len(exchange.jobs)
        if not self.serving:
            raise _stopping()
        if count > self.capacity:
            raise ApiError(400, f"The request asks for {count} answers, but this server holds {self.capacity} at once.",
                           param="n", code="too_many_answers")
        if self._admitted + count > self.capacity:
            raise ApiError(429, f"The server's queue is full: {self._admitted} answers run or wait, and it holds "
                           f"{self.capacity}. Ask again later.", code="queue_full", retry_after=_RETRY_AFTER)
        self._metrics.admitted(exchange)
        self._admitted += count
        self._exchanges.add(exchange)
        self._thread.submit(exchange)

    def drop(self, exchange: Exchange, reason: ApiError | None = None) -> None:
        """Ends what is still open of an exchange: its client went away, unless ``reason`` says otherwise."""
        if exchange in self._exchanges:
            self._thread.drop(exchange, reason or ApiError(499, "The client went away."))

    def close(self) -> None:
        """Lets nobody in any more; who is in goes on."""
        self._closed = True

    def drop_all(self) -> None:
        """Tells everybody that the server ends, at once: the engine hears of it after its step, which may take long."""
        for exchange in self._exchanges:
            self.cut_off += len(exchange.open)
            self.drop(exchange, _stopping())
        self._tell_all(_stopping())

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for exchange, event in deliveries:
            if event.index not in exchange.open:  # ended in the meantime
                continue
            if event.output is not None and event.error is None:
                self._metrics.token(exchange, event)
            if event.last:
                self._admitted -= 1
                self._metrics.ended(event)
            exchange.put(event)
            if not exchange.open:
                self._exchanges.discard(exchange)

    def _end(self, error: BaseException | None) -> None:
        """The engine is gone: whoever still waits for it is told."""
        self._ended = True
        self.failure = error
        self._tell_all(_stopping() if error is None else ApiError(500, f"The engine failed: {error}"))
        if error is not None:
            self.on_failure()

    def _tell_all(self, reason: ApiError) -> None:
        """Ends all that is open with ``reason``."""
        now = perf_counter()
        self._deliver([Delivery(exchange, Event(index, now, error=reason, last=True))
                       for exchange in self._exchanges for index in sorted(exchange.open)])


def _stopping() -> ApiError:
    return ApiError(503, "The server is shutting down; ask again later.", code="shutting_down",
                    retry_after=_RETRY_AFTER)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], argument: object) -> None:
    """``call_soon_threadsafe``, unless the loop has ended and nobody is left to hear of it."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, argument)
