"""A client that means harm: every call ends in a clear error, the server goes on, and no process is left."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_host import (
    AXES,
    LOOPS,
    SOURCE,
    Place,
    answer,
    children_of,
    failure,
    gone,
    http_client,
    http_server,
    over_stdio,
    text_of,
)

from kforge.mcp.server import MOST_AT_ONCE, make_server

AT = {"operator": "silu_mul", "axes": AXES}
ENDLESS = SOURCE.replace("for (int64_t t", 'for (;;) asm volatile("");\n    for (int64_t t')
CALLS, WAITING = 30, 8  # of which the server lets wait
TRICKS = [
    "../x.cc",
    "/etc/passwd",
    "..",
    "a/../../x.cc",
    "x.cc\0",
    "%2e%2e/x.cc",
    "....//x.cc",
    "x.cc/",
    "~/x.cc",
    "x.cc\n",
]


def test_path_tricks_and_huge_inputs_end_in_errors(place: Place):
    async def body(client: Client) -> None:
        async def refused(tool: str, arguments: dict) -> None:
            result = await client.call_tool(tool, arguments)
            assert result.is_error, (tool, arguments)
            assert "Traceback" not in text_of(result)

        for name in TRICKS:
            await refused("write_source", {"name": name, "text": "x"})
            await refused("read_source", {"name": name})
            await refused("build", {"kernel": name, **AT})
            await refused("open_run", {"name": name})
            await refused("get_template", {"path": name})
            await refused("describe_target", {"name": name})
            await refused("read_report", {"run": name})
            await refused("list_workloads", {"model": name})
            await refused("read_reference", {"topic": name})
        for uri in ("kforge://templates/../../pyproject.toml", "kforge://templates/%2e%2e/x", "file:///etc/passwd"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)

        await refused("write_source", {"name": "big.cc", "text": "x" * 100_001})
        with pytest.raises(MCPError, match="at most"):
            await client.call_tool("write_source", {"name": "big.cc", "text": "x" * (2 << 20)})
        await refused("write_source", {"name": "nul.cc", "text": "a\0b"})
        await refused("check", {"kernel": "default", "operator": "silu_mul", "axes": {"I": 1 << 41, "T": 1}})
        await refused("check", {"kernel": "default", "operator": "silu_mul", "axes": {f"a{n}": 1 for n in range(99)}})
        await refused("check", {"kernel": "default", **AT, "threads": -1})
        await refused("check", {"kernel": "default", **AT, "trust_candidates": True})
        await refused("tune", {"kernel": "mine.cc.j2", **AT, "trials": 10_000})
        await refused("list_workloads", {"model": "llama-3.2-1b:q4_0", "batch": [1] * 1000})
        await refused("no_such_tool", {})
        too_large = failure(
            await client.call_tool(
                "check", {"kernel": "default", "operator": "silu_mul", "axes": {"I": 1 << 30, "T": 1 << 20}}
            )
        )
        assert (too_large["class"], "at most" in too_large["reason"]) == ("bad_input", True)
        assert answer(await client.call_tool("list_operators", {}))

    over_stdio(place, body)
    assert not (place.home.parent / "x.cc").exists()
    assert list(place.home.parent.rglob("big.cc")) == []


def test_a_template_that_loops_ends_and_the_next_call_is_answered(place: Place):
    async def body(client: Client) -> None:
        answer(await client.call_tool("write_source", {"name": "loops.cc.j2", "text": LOOPS}))
        told = failure(await client.call_tool("render_template", {"kernel": "loops.cc.j2", **AT}))
        assert told["class"] == "template"
        assert "5 s" in told["reason"]
        answer(await client.call_tool("write_source", {"name": "endless.cc", "text": ENDLESS}))
        assert (
            failure(await client.call_tool("check", {"kernel": "endless.cc", **AT, "threads": 1}))["class"] == "timeout"
        )
        assert answer(await client.call_tool("render_template", {"kernel": "default", **AT}))["source"]

    over_stdio(place, body)


def test_floods_are_told_that_the_bench_is_busy_and_cancelled_calls_leave_nothing(place: Place):
    async def storm(client: Client, server: int) -> None:
        answer(await client.call_tool("write_source", {"name": "endless.cc", "text": ENDLESS}))
        outcomes: list[str] = []

        async def one() -> None:
            result = await client.call_tool("check", {"kernel": "endless.cc", **AT, "threads": 1})
            outcomes.append(failure(result)["class"])

        async with anyio.create_task_group() as tasks:
            for _ in range(CALLS):
                tasks.start_soon(one)
            with anyio.fail_after(120):
                while outcomes.count("busy") < CALLS - WAITING - 1:
                    await anyio.sleep(0.1)
            working = children_of(server)
            tasks.cancel_scope.cancel()
        assert working
        await gone(working)
        assert answer(await client.call_tool("render_template", {"kernel": "default", **AT}))["source"]

    async def body(client: Client) -> None:
        await storm(client, next(p.pid for p in children_of(os.getpid()) if "mcp" in p.cmdline()))

    over_stdio(place, body)

    with http_server(place) as (url, process):

        async def over_http() -> None:
            async with http_client(url) as client:
                await storm(client, process.pid)

        anyio.run(over_http)
        left = children_of(process.pid)
    anyio.run(gone, left)


def test_a_server_that_is_killed_takes_its_bench_along(place: Place):
    async def measure(url: str) -> None:
        async with http_client(url) as client:
            answer(await client.call_tool("write_source", {"name": "endless.cc", "text": ENDLESS}))
            await client.call_tool("check", {"kernel": "endless.cc", **AT, "threads": 1})

    async def kill(url: str, process: subprocess.Popen[str]) -> None:
        with pytest.raises(ExceptionGroup):  # what a client makes of a dead server
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(measure, url)
                while len(children_of(process.pid)) < 3:  # bench, runner, kernel
                    await anyio.sleep(0.05)
                left.update(children_of(process.pid))
                process.kill()
        await gone(left)

    left: set[psutil.Process] = set()
    command = place.command("--http", "--port", "0")
    process = subprocess.Popen(command, env=place.env, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        anyio.run(kill, process.stderr.readline().split()[-1], process)
    finally:
        process.kill()
        process.wait()
    assert len(left) >= 3


def test_hundreds_of_requests_at_once_are_all_answered(place: Place):
    async def body(client: Client) -> None:
        outcomes: list[str] = []

        async def one() -> None:
            try:
                answer(await client.call_tool("list_templates", {"operator": "argmax"}))
                outcomes.append("answered")
            except MCPError as error:
                outcomes.append("busy" if "busy" in str(error) else str(error))

        async with anyio.create_task_group() as tasks:
            for _ in range(150):
                tasks.start_soon(one)
        assert set(outcomes) <= {"answered", "busy"}
        assert "answered" in outcomes
        answer(await client.call_tool("list_operators", {}))

    over_stdio(place, body)


def test_so_many_requests_are_answered_at_once_and_no_more(tmp_path: Path):
    """With the server in this process, where they are held until all have come."""

    async def main() -> None:
        server = make_server(tmp_path)
        waiting, go = 0, anyio.Event()

        async def hold(ctx: Any, call_next: Any) -> Any:
            nonlocal waiting
            if ctx.method == "tools/call":
                waiting += 1
                await go.wait()
            return await call_next(ctx)

        server.middleware.append(hold)
        refused = 0

        async def one(client: Client) -> None:
            nonlocal refused
            try:
                answer(await client.call_tool("list_operators", {}))
            except MCPError as error:
                assert "busy" in str(error)
                refused += 1

        async with Client(server, cache=None) as client:
            await client.list_tools()
            async with anyio.create_task_group() as tasks:
                for _ in range(MOST_AT_ONCE + 10):
                    tasks.start_soon(one, client)
                with anyio.fail_after(60):
                    while waiting < MOST_AT_ONCE or refused < 10:
                        await anyio.sleep(0.01)
                go.set()
            assert (waiting, refused) == (MOST_AT_ONCE, 10)
            answer(await client.call_tool("list_operators", {}))

    anyio.run(main)
