"""A real server with the SDK's own client: over standard input and output, or over HTTP on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import psutil
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult

from kforge.targets.files import save_target
from tests.cli.cli_host import host_target

ROOT = Path(__file__).resolve().parents[2]
BEFORE: set[psutil.Process] = set()  # of other tests: zygotes of a harness that is still open
PATIENCE = 250.0  # seconds, on a machine that does other things

AXES = {"I": 64, "T": 4}
# silu_mul, as plain as its order specification.
SOURCE = """#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *launch) {
    const kf_tensor &in = launch->tensors[0], &out = launch->tensors[1];
    for (int64_t t = launch->thread; t < launch->axes[0]; t += launch->threads) {
        const float *gate = static_cast<const float *>(in.data) + t * in.strides[0];
        float *to = static_cast<float *>(out.data) + t * out.strides[0];
        for (int64_t i = 0; i < 64; ++i) to[i] = kf::silu(gate[i]) * gate[64 + i];
    }
}
"""
LOOPS = """{#- kforge
operator = "silu_mul"
version = 1
numerics = "exact"
-#}
{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}
"""


@dataclass(frozen=True)
class Place:
    """A data folder with a probed host, and a folder of runs."""

    home: Path
    runs: Path

    @classmethod
    def below(cls, folder: Path) -> Place:
        save_target(host_target(), folder / "home" / "targets" / "host.toml")
        return cls(folder / "home", folder / "runs")

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "KFORGE_HOME": str(self.home), "PYTHONPATH": str(ROOT)}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "kforge.cli.main", "mcp", "--runs-dir", str(self.runs), *words]


def over_stdio(place: Place, body: Callable[[Client], Awaitable[None]], *more: str) -> None:
    """Runs ``body`` with a client of a server that is its child; nothing of the server is left afterwards. ``more``:
    words of its command."""
    command, *words = place.command(*more)
    log = place.home / "stderr.txt"

    async def main() -> None:
        with log.open("w") as errors, anyio.fail_after(PATIENCE):
            parameters = StdioServerParameters(command=command, args=words, env=place.env)
            async with Client(stdio_client(parameters, errlog=errors), cache=None) as client:
                mine = children_of(os.getpid())
                await body(client)
                mine |= children_of(os.getpid())
            await gone(mine)

    anyio.run(main)
    assert "Traceback" not in log.read_text()


@contextmanager
def http_server(place: Place, *more: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address and process. It ends by SIGTERM, with exit code 130."""
    command = place.command("--http", "--port", "0", *more)
    process = subprocess.Popen(command, env=place.env, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/mcp", line)
        assert found, line
        yield found.group(), process
        process.terminate()
        assert process.wait(60) == 130, process.stderr.read()
    finally:
        process.kill()
        process.wait()


def over_http(place: Place, body: Callable[[Client], Awaitable[None]], *more: str) -> None:
    """The same over HTTP on loopback."""

    async def main(url: str) -> None:
        async with http_client(url) as client:
            await body(client)

    with http_server(place, *more) as (url, _):
        anyio.run(main, url)


@asynccontextmanager
async def http_client(url: str, **settings: Any) -> AsyncIterator[Client]:
    with anyio.fail_after(PATIENCE):
        async with Client(url, cache=None, **settings) as client:
            yield client


def children_of(pid: int) -> set[psutil.Process]:
    """What it and its children have started, of this process since its test began."""
    return set(psutil.Process(pid).children(recursive=True)) - BEFORE


async def gone(processes: set[psutil.Process], seconds: float = 30.0) -> None:
    """Waits until none of them runs."""
    with anyio.fail_after(seconds):
        while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
            await anyio.sleep(0.1)


def answer(result: CallToolResult) -> dict[str, Any]:
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


def failure(result: CallToolResult) -> dict[str, str]:
    """Class, reason and detail of a call that failed as it should."""
    assert result.is_error, result.structured_content
    assert result.structured_content is not None, result.content
    return result.structured_content["failure"]


def text_of(result: CallToolResult) -> str:
    return " ".join(getattr(block, "text", "") for block in result.content)
