"""The bench as a server sees it: one job at a time in a process of its own, a short queue, an end to every job."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from kforge.core.trial import FailureClass
from kforge.mcp.failures import CallFailed, Refusal
from kforge.mcp.jobs import REPLY, Done, Job, Note
from kforge.mcp.measured import Answer
from kforge.mcp.worker import GRACE

A = TypeVar("A", bound=Answer)
Watch = Callable[[float, str], Awaitable[None]]  # seconds since the call began, what goes on

_BEAT = 1.0  # seconds between two words to whoever waits
_IDLE = 120.0  # seconds after which inputs and processes are let go
_MOST_REPLY = 8 << 20  # bytes


@dataclass
class _Call:
    """One call on its way through the queue."""

    began: float = field(default_factory=time.monotonic)
    now: str = ""
    news: anyio.Event = field(default_factory=anyio.Event)

    def say(self, text: str) -> None:
        self.now = text
        self.news.set()


class _Worker:
    """The process that does the jobs."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None and process.stdout is not None  # it is opened with pipes
        self._process = process
        self._input = process.stdin
        self._output = BufferedByteReceiveStream(process.stdout)

    @classmethod
    async def start(cls) -> _Worker:
        """In a session of its own, so that a signal to the server's group does not end it half-way."""
        command = [sys.executable, "-P", "-m", "kforge.mcp.worker"]  # nothing is imported from where an agent works
        return cls(await anyio.open_process(command, stderr=None, start_new_session=True))

    async def do(self, job: Job, tell: Callable[[str], None]) -> str:
        """The answer as JSON. Raises CallFailed."""
        try:
            await self._input.send(job.model_dump_json().encode() + b"\n")
            while True:
                reply = REPLY.validate_json(await self._output.receive_until(b"\n", _MOST_REPLY))
                if isinstance(reply, Done):
                    return reply.answer
                if not isinstance(reply, Note):
                    raise CallFailed.named(reply.failure, reply.reason, reply.detail)
                tell(reply.text)
        except (
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
            anyio.EndOfStream,
            anyio.IncompleteRead,
            anyio.DelimiterNotFound,
        ) as error:
            raise CallFailed(
                FailureClass.HARNESS, "the process that measures went away: is there enough memory?"
            ) from error

    async def end(self) -> None:
        """With all that it started, in a few seconds at most."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with anyio.move_on_after(GRACE):
            await self._process.wait()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.aclose()


class Bench:
    """Jobs queue here. ``most_waiting``: beyond so many the next is told to come back later."""

    def __init__(self, most_waiting: int = 8) -> None:
        self._most_waiting = most_waiting
        self._waiting = 0
        self._turn = anyio.Lock()
        self._worker: _Worker | None = None
        self._rested = time.monotonic()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Bench]:
        """For this block; nothing is left of it afterwards."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._let_go)
                try:
                    yield self
                finally:
                    tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end()

    async def run(self, job: Job, answer: type[A], seconds: float, watch: Watch) -> A:
        """The job's answer. A call that is cancelled stops measuring at once, one that takes longer than ``seconds``
        too. ``watch`` hears of it every second. Raises CallFailed.
        """
        if self._waiting >= self._most_waiting:
            raise CallFailed(
                Refusal.BUSY,
                f"{self._waiting} calls wait for this machine already, which does one thing at a time: try again later",
            )
        call = _Call()
        found: A | None = None
        failure: CallFailed | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._beat, call, watch)
            try:
                found = answer.model_validate_json(await self._in_turn(call, job, seconds))
            except CallFailed as error:
                failure = error
            tasks.cancel_scope.cancel()
        if found is None:
            raise failure or CallFailed(FailureClass.HARNESS, "the call was given up")
        return found

    async def _in_turn(self, call: _Call, job: Job, seconds: float) -> str:
        self._waiting += 1
        call.now = f"{self._waiting - 1} calls before this one" if self._turn.locked() else ""
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._within(call, job, seconds)
        finally:
            self._rested = time.monotonic()
            self._turn.release()

    async def _within(self, call: _Call, job: Job, seconds: float) -> str:
        """Anything but an answer or a failure that was told leaves a process of which nothing is known: it ends."""
        known = False

        try:
            with anyio.fail_after(seconds):
                if self._worker is None:
                    call.say("starting")
                    self._worker = await _Worker.start()
                try:
                    text = await self._worker.do(job, call.say)
                except CallFailed as error:
                    known = error.kind is not FailureClass.HARNESS
                    raise
                known = True
                return text
        except TimeoutError:
            raise CallFailed(Refusal.LIMIT, f"the call took longer than the {seconds:.0f} s that it may") from None
        finally:
            if not known:
                with anyio.CancelScope(shield=True):
                    await self._end()

    async def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.end()

    async def _beat(self, call: _Call, watch: Watch) -> None:
        while True:
            with contextlib.suppress(Exception):  # a client that has gone, which the call itself will notice
                await watch(round(time.monotonic() - call.began, 3), call.now)
            with anyio.move_on_after(_BEAT):
                await call.news.wait()
            call.news = anyio.Event()

    async def _let_go(self) -> None:
        """A bench that nobody uses holds no memory."""
        while True:
            await anyio.sleep(_IDLE / 8)
            if self._worker is not None and not self._turn.locked() and time.monotonic() - self._rested > _IDLE:
                async with self._turn:
                    with anyio.CancelScope(shield=True):
                        await self._end()
