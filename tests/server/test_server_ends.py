"""How a server ends when something is in its way: a step that takes long, a client that does not read, no patience."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2
import openai
import psutil
import pytest
from served import NAME, ROOT, Served, server, user

from kforge.engine.request import Output, SamplingParams
from kforge.engine.steps import StepLimits
from kforge.server.desk import Desk
from kforge.server.engine_thread import EngineThread
from kforge.server.exchange import Exchange, Job
from kforge.server.metrics import Metrics


class SlowEngine:
    """Takes a step as long as it is told to."""

    limits = StepLimits(64, 4, 16, 64, 256)
    waiting = pages_in_use = pages_kept = 0
    stats: Any = None

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.stepping, self.go_on = threading.Event(), threading.Event()

    @property
    def running(self) -> int:
        return len(self.open)

    @property
    def idle(self) -> bool:
        return not self.open

    def add(self, prompt: Any, params: SamplingParams) -> int:
        self.open.add(len(self.open))
        return len(self.open) - 1

    def abort(self, sequence: int) -> None:
        self.open.discard(sequence)

    def step(self) -> list[Output]:
        self.stepping.set()
        assert self.go_on.wait(60)
        return [Output(sequence, 5, "x") for sequence in self.open]

    def close(self) -> None:
        pass


def test_amid_a_long_step_clients_are_told_and_metrics_are_true():
    engine = SlowEngine()

    async def main() -> None:
        thread = EngineThread(lambda: engine)  # type: ignore[arg-type, return-value]
        thread.start()
        thread.limits()
        desk = Desk(thread, 10, Metrics())
        exchange = Exchange([Job((1,), SamplingParams())] * 3, perf_counter())
        desk.submit(exchange)
        try:
            async with asyncio.timeout(20):
                assert await asyncio.to_thread(engine.stepping.wait, 20)
                assert desk.snapshot is not None and desk.snapshot.running == 3
                desk.close()
                desk.drop_all()
                events = await exchange.next()
                assert [(e.index, e.last, e.error and e.error.status) for e in events] == [
                    (i, True, 503) for i in range(3)]
                assert await exchange.next() == [] and desk.cut_off == 3
        finally:
            engine.go_on.set()
        await asyncio.to_thread(thread.stop)
        assert engine.idle and await exchange.next() == [], "what comes afterwards is for nobody"

    asyncio.run(main())


@contextmanager
def endless(model: Path, folder: Path, grace: str) -> Iterator[Served]:
    """A real server over an engine that never comes to an end."""
    log = folder / "stderr.txt"
    command = [sys.executable, str(Path(__file__).with_name("endless_server.py")), str(model), grace]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                                   env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        assert process.stdout is not None
        yield Served((process.stdout.readline().split() or [""])[-1], process, log)
    finally:
        process.kill()
        process.wait()


@contextmanager
def asked(running: Served) -> Iterator[socket.socket]:
    """A connection with a request whose stream has begun, of which nothing more is read."""
    host, port = running.url.removeprefix("http://").split(":")
    body = json.dumps({"model": NAME, "prompt": "on", "n": 4, "max_tokens": 2000, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        yield connection


def test_a_client_that_does_not_read_does_not_keep_the_server_from_ending(tiny: Path, tmp_path: Path):
    with endless(tiny, tmp_path, "0") as running, asked(running):
        running.wait_for(lambda seen: seen["kforge_generated_tokens_total"] > 8000)  # 16 MB, more than a socket takes
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
        said = running.log.read_text()
        assert "Traceback" not in said and "Error" not in said


def test_a_second_interrupt_ends_it_at_once_and_in_one_sentence(tiny: Path, tmp_path: Path):
    with endless(tiny, tmp_path, "60") as running, asked(running):
        running.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        with pytest.raises(httpx2.TransportError):  # the first one is heard when nobody else is let in
            while time.monotonic() - began < 30:
                httpx2.get(running.url + "/health", timeout=30)
        assert running.process.poll() is None, "the first one lets answers come to their end"
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(60) == 130
        assert time.monotonic() - began < 20
        assert running.log.read_text().strip().splitlines() == ["kforge: stopped"]


@pytest.mark.parametrize("grace", ["nan", "inf"])
def test_a_grace_that_is_no_time_is_refused(tiny: Path, tmp_path: Path, grace: str):
    with endless(tiny, tmp_path, grace) as running:
        assert running.process.wait(60) == 2
        (line,) = running.log.read_text().strip().splitlines()
        assert line.startswith("kforge: --grace ")


@pytest.mark.slow
def test_when_the_kernels_warden_is_killed_clients_are_told_soon(tiny: Path, home: Path):
    with server(tiny, home, "--isolate") as isolated:
        stream = isolated.client().chat.completions.create(model=NAME, messages=user("on"), max_tokens=1900, n=2,
                                                           stream=True)
        next(stream)
        (warden,) = psutil.Process(isolated.process.pid).children()
        warden.kill()
        began = time.monotonic()
        with pytest.raises(openai.APIError, match="The engine failed"):
            list(stream)
        assert time.monotonic() - began < 30
        assert isolated.process.wait(60) == 2
        (line,) = isolated.log.read_text().strip().splitlines()
        assert line.startswith("kforge: ") and "SIGKILL" in line
