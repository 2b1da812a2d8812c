"""The server's standard output byte by byte: nothing but protocol, whatever comes in."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mcp_host import AXES, SOURCE, Place

from kforge.mcp.stdio import MOST_LINE


class Wire:
    def __init__(self, place: Place, errors: Path):
        self._errors = errors.open("w")
        self.process = subprocess.Popen(
            place.command(), env=place.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data + b"\n")
        self.process.stdin.flush()

    def ask(self, number: int, method: str, params: dict[str, Any]) -> None:
        self.send(json.dumps({"method": method, "params": params, "jsonrpc": "2.0", "id": number}).encode())

    def answer(self, number: int) -> dict[str, Any]:
        """Notifications in between are well-formed, too."""
        assert self.process.stdout is not None
        while True:
            message = json.loads(self.process.stdout.readline())
            assert message["jsonrpc"] == "2.0"
            if message.get("id") == number:
                return message


@pytest.fixture
def wire(place: Place, tmp_path: Path):
    wire = Wire(place, tmp_path / "stderr.txt")
    yield wire
    wire.process.kill()
    wire.process.wait()


def test_only_protocol_comes_out_and_a_signal_ends_the_server(wire: Wire, tmp_path: Path):
    wire.ask(
        1,
        "initialize",
        {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
    )
    assert wire.answer(1)["result"]["serverInfo"]["name"] == "kforge"
    wire.send(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
    wire.send(b"this is no JSON")
    wire.send(b'{"jsonrpc": "2.0"}')
    wire.send(b"\xff\xfe\x00")
    wire.send(b"[" * 100_000)
    wire.ask(2, "tools/call", {"name": "write_source", "arguments": {"name": "a.cc", "text": "x" * MOST_LINE}})
    assert "at most" in wire.answer(2)["error"]["message"]  # although its id came last
    wire.ask(3, "tools/call", {"name": "write_source", "arguments": {"name": "mine.cc", "text": SOURCE}})
    assert not wire.answer(3)["result"]["isError"]
    check = {"kernel": "mine.cc", "operator": "silu_mul", "axes": AXES, "threads": 1}
    wire.ask(4, "tools/call", {"name": "check", "arguments": check, "_meta": {"progressToken": "p"}})
    assert wire.answer(4)["result"]["structuredContent"]["cases"] > 5
    wire.ask(5, "no/such/method", {})
    assert wire.answer(5)["error"]["code"] == -32601

    wire.process.send_signal(signal.SIGTERM)  # its standard input is still open
    assert wire.process.wait(60) == 130
    assert wire.process.stdout is not None and wire.process.stdout.read() == b""
    assert "Traceback" not in (tmp_path / "stderr.txt").read_text()
