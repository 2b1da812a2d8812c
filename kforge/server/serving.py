"""From a model's name to a server that listens, and its end."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from kforge.core.errors import KforgeError
from kforge.engine.engine import Engine
from kforge.models.fetch import SOURCES
from kforge.models.model import Model
from kforge.server.app import Door, Server
from kforge.server.connections import Connection
from kforge.server.desk import Desk
from kforge.server.engine_thread import EngineThread
from kforge.server.metrics import Metrics
from kforge.server.plan import Planner

KEY_VARIABLE = "KFORGE_API_KEY"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_KEEP_ALIVE = 60  # seconds that a connection stays open without a request
_LAST_WORDS = 5  # seconds that answers which were cut off have to say so
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Between two steps the engine's thread waits for the interpreter until another thread gives it up: at most this long.
_SWITCH_SECONDS = 0.0005


@dataclass(frozen=True)
class Options:
    """``port`` 0: any free one. ``capacity``: answers that may run or wait at once. ``grace``: seconds that answers
    have to come to their end when the server is told to end."""

    host: str
    port: int
    capacity: int
    grace: float


def served_name(model: str) -> str:
    """What clients call the model: the name that it was asked for by, or its file's or folder's."""
    path = Path(model).resolve()
    return model if model in SOURCES else path.name if path.is_dir() else path.stem


def serve(name: str, model: Model, make_engine: Callable[[], Engine], options: Options) -> None:
    """Serves until a signal ends it. Raises ``KforgeError`` for an address that cannot be had, or what broke it."""
    if not math.isfinite(options.grace):
        raise KforgeError(f"--grace {options.grace} is no number of seconds: answers must come to an end some time")
    key = os.environ.pop(KEY_VARIABLE, None) or None  # no child process needs it
    listener = _listener(options.host, options.port)
    local = options.host in _LOOPBACK
    if key is None and not local:
        print(f"kforge: whoever reaches {options.host} can use this server; set {KEY_VARIABLE} to ask for a key.",
              file=sys.stderr, flush=True)
    sys.setswitchinterval(_SWITCH_SECONDS)
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    thread = EngineThread(make_engine)
    thread.start()
    limits = thread.limits()

    async def main() -> Desk:
        metrics = Metrics()
        desk = Desk(thread, options.capacity, metrics)
        metrics.watch(lambda: desk.snapshot, limits.pages)
        app = Server(name, Planner(model, limits.context), desk, metrics, Door(key, local)).app()
        config = uvicorn.Config(app, http=Connection, ws="none", lifespan="off", log_level="error", access_log=False,
                                server_header=False, timeout_keep_alive=_KEEP_ALIVE,
                                timeout_graceful_shutdown=int(options.grace) + _LAST_WORDS)
        ready = f"kforge serves {name} on {_url(listener)}"
        await _Graceful(config, desk, options.grace, ready).serve(sockets=[listener])
        await asyncio.to_thread(thread.stop)
        return desk

    desk = asyncio.run(main())
    if desk.cut_off:
        print(f"kforge: {desk.cut_off} answers were cut off after {options.grace:g} s; --grace gives them longer.",
              file=sys.stderr, flush=True)
    if desk.failure is not None:
        raise desk.failure


class _Graceful(uvicorn.Server):
    """Says when it is ready; when told to end it lets nobody in, and lets answers come to their end for a while."""

    def __init__(self, config: uvicorn.Config, desk: Desk, grace: float, ready: str) -> None:
        super().__init__(config)
        self._desk, self._grace, self._ready = desk, grace, ready
        self._ending: asyncio.Task[None] | None = None
        desk.on_failure = self._give_up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self._ready, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._desk.close()
        if self.force_exit:
            return
        deadline = asyncio.get_running_loop().call_later(self._grace, self._desk.drop_all)
        self._ending = asyncio.create_task(super().shutdown(sockets))
        try:
            await asyncio.wait((self._ending,))  # until it is done, or a second Ctrl-C cancels it
        finally:
            deadline.cancel()
        if not self._ending.cancelled():
            self._ending.result()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.force_exit and self._ending is not None:
            self._ending.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A first signal ends gracefully, and with exit code 0; a second Ctrl-C at once."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
        for number in before:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)
        if self.force_exit:
            raise KeyboardInterrupt

    def _give_up(self) -> None:
        self.should_exit = True


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Whether to log it. Requests are cancelled only at the end, when their clients do not read what they are told, or
    nobody waits for them any more: no mistake of the server's, which says for itself how it ended."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _listener(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ``KforgeError`` when it cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise KforgeError(f"port {port} of {host} cannot be used: {error.strerror}; choose another --port or --host"
                          ) from error


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
