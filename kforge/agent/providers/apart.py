"""Network calls that can be given up: each runs on a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

_GLANCE = 0.2  # seconds between two looks at the cancel event: rare, as kernels are timed meanwhile
_GOODBYE = 0.5  # seconds that a call gets to close its connection

Make = Callable[[], Coroutine[Any, Any, None]]


class GivenUp(StrEnum):
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


def run_apart(make: Make, cancel: threading.Event, seconds: float) -> GivenUp | None:
    """Runs a coroutine to its end and raises what it raises; returns early once ``cancel`` is set or time is up.

    Works inside another event loop as well. An exception here, such as a KeyboardInterrupt, gives the call up, too.
    """
    call = _Apart(make)
    threading.Thread(target=call.run, name="kforge-model-call", daemon=True).start()
    deadline = time.monotonic() + seconds
    try:
        while not call.done.wait(_GLANCE):
            if cancel.is_set():
                return GivenUp.CANCELLED
            if time.monotonic() >= deadline:
                return GivenUp.TIMED_OUT
    finally:
        if not call.done.is_set():
            call.stop()
    if call.error is not None:
        raise call.error
    return None


class _Apart:
    def __init__(self, make: Make):
        self._make = make
        self._lock = threading.Lock()
        self._stop: Callable[[], object] | None = None  # while there is something to stop
        self._stopped = False
        self.done = threading.Event()  # after ``error`` was set
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # no loop could be made, or it did not end well
            if not self.done.is_set():
                self.error = error
        finally:
            self.done.set()

    async def _main(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with self._lock:
            if self._stopped:
                return
            self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            await self._make()
        except BaseException as error:  # for the thread that waits, if one still does
            self.error = error
        finally:
            with self._lock:
                self._stop = None
            self.done.set()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._stop:
                self._stop()
        self.done.wait(_GOODBYE)
