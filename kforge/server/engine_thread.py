"""The thread that owns the engine: everything that touches it happens there."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from kforge.core.errors import KforgeError
from kforge.engine.engine import Engine
from kforge.engine.stats import EngineStats
from kforge.engine.steps import StepLimits
from kforge.server.errors import ApiError, bad_request
from kforge.server.exchange import Event, Exchange


class Delivery(NamedTuple):
    exchange: Exchange
    event: Event


@dataclass(frozen=True)
class Snapshot:
    """The engine after a step: see its properties of these names."""

    stats: EngineStats
    waiting: int
    running: int
    pages_in_use: int
    pages_kept: int


@dataclass(frozen=True)
class _Place:
    exchange: Exchange
    index: int


@dataclass(frozen=True)
class _Submit:
    exchange: Exchange


@dataclass(frozen=True)
class _Drop:
    exchange: Exchange
    reason: ApiError


class _Stop:
    pass


class EngineThread(threading.Thread):
    """Takes exchanges, steps the engine while there is work, and posts what happened.

    ``make`` builds the engine, on this thread. ``post`` is called on this thread with each step's deliveries, ``ended``
    once at the end, with what ended the engine if it was not ``stop``: jobs that are open then get no event.
    """

    def __init__(self, make: Callable[[], Engine]) -> None:
        super().__init__(name="engine", daemon=True)
        self._make = make
        self._ready: Future[StepLimits] = Future()
        self._commands: queue.SimpleQueue[_Submit | _Drop | _Stop] = queue.SimpleQueue()
        self._open: dict[int, _Place] = {}  # by the engine's id of the sequence
        self.post: Callable[[list[Delivery]], None] = lambda deliveries: None
        self.ended: Callable[[BaseException | None], None] = lambda error: None
        self.snapshot: Snapshot | None = None

    # For other threads

    def limits(self) -> StepLimits:
        """Waits for the engine; raises what kept it from being made."""
        return self._ready.result()

    def submit(self, exchange: Exchange) -> None:
        self._commands.put(_Submit(exchange))

    def drop(self, exchange: Exchange, reason: ApiError) -> None:
        """Ends the exchange's open jobs with ``reason``."""
        self._commands.put(_Drop(exchange, reason))

    def stop(self) -> None:
        """Ends the thread; returns when it has ended."""
        self._commands.put(_Stop())
        self.join()

    # On the thread

    def run(self) -> None:
        try:
            engine = self._make()
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._look_at(engine)
        self._ready.set_result(engine.limits)
        failure: BaseException | None = None
        try:
            while self._obey(engine):
                self._step(engine)
        except BaseException as error:  # whoever waits must hear of it, whatever it was
            failure = error
        self.ended(failure)
        engine.close()

    def _obey(self, engine: Engine) -> bool:
        """Carries out what was asked for since the last step; waits while there is nothing else to do. False: stop."""
        block = engine.idle
        while True:
            try:
                command = self._commands.get(block=block)
            except queue.Empty:
                return True
            block = False
            match command:
                case _Submit(exchange):
                    self._add(engine, exchange)
                case _Drop(exchange, reason):
                    self._drop(engine, exchange, reason)
                case _Stop():
                    return False

    def _add(self, engine: Engine, exchange: Exchange) -> None:
        for index, job in enumerate(exchange.jobs):
            place = _Place(exchange, index)
            try:
                self._open[engine.add(job.prompt, job.params)] = place
            except KforgeError as error:
                self._end([place], bad_request(str(error)))
        self._look_at(engine)

    def _step(self, engine: Engine) -> None:
        outputs = engine.step()
        now = perf_counter()
        deliveries = []
        for output in outputs:
            last = output.finish is not None
            place = self._open.pop(output.sequence) if last else self._open[output.sequence]
            error = None if output.error is None else ApiError(500, output.error)
            deliveries.append(Delivery(place.exchange, Event(place.index, now, output, error, last)))
        self._look_at(engine)
        if deliveries:
            self.post(deliveries)

    def _drop(self, engine: Engine, exchange: Exchange, reason: ApiError) -> None:
        inside = [sequence for sequence, place in self._open.items() if place.exchange is exchange]
        for sequence in inside:
            engine.abort(sequence)
        self._look_at(engine)
        self._end([self._open.pop(sequence) for sequence in inside], reason)

    def _end(self, places: Iterable[_Place], reason: ApiError) -> None:
        now = perf_counter()
        deliveries = [Delivery(p.exchange, Event(p.index, now, error=reason, last=True)) for p in places]
        if deliveries:
            self.post(deliveries)

    def _look_at(self, engine: Engine) -> None:
        self.snapshot = Snapshot(engine.stats, engine.waiting, engine.running, engine.pages_in_use, engine.pages_kept)
