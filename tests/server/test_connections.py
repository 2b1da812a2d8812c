"""Connections of which nothing comes are closed; those that wait for an answer are not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from kforge.server.connections import Connection

SECONDS = 1
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def slow_app(scope: Any, receive: Any, send: Any) -> None:
    """Answers /slow after longer than connections are waited for, everything else at once, and reads no body."""
    if scope["path"] == "/slow":
        await asyncio.sleep(2.5 * SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def talk(client: Client) -> float:
    """Seconds that the client was let talk."""
    config = uvicorn.Config(slow_app, http=Connection, lifespan="off", log_level="critical", timeout_keep_alive=SECONDS)
    config.load()
    state = ServerState()
    listener = await asyncio.get_running_loop().create_server(
        lambda: Connection(config=config, server_state=state, app_state={}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname()[:2])
    began = monotonic()
    try:
        async with asyncio.timeout(30):
            await client(reader, writer)
        return monotonic() - began
    finally:
        writer.close()
        listener.close()
        for _ in range(100):
            if not state.connections:
                break
            await asyncio.sleep(0.05)
        assert not state.connections and not state.tasks


async def closed(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, part: bytes) -> None:
    """Sends for as long as the other side lets it."""
    end = asyncio.ensure_future(closed(reader))
    while not end.done():
        writer.write(part)
        await asyncio.sleep(0.1)
    await asyncio.gather(end, return_exceptions=True)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await closed(reader)


async def slow_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    await dribble(reader, writer, b"A: b\r\n")


async def slow_second_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"Content-Length: 0\r\n\r\n")
    await reader.readuntil(b"ok")
    writer.write(HEAD)
    await dribble(reader, writer, b"A: b\r\n")


async def endless_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    await reader.readuntil(b"ok")
    await dribble(reader, writer, b"3\r\nabc\r\n")


@pytest.mark.parametrize("client", [silent, slow_head, slow_second_head, endless_body])
def test_a_connection_of_which_nothing_comes_is_closed(client: Client):
    assert 0.9 * SECONDS < asyncio.run(talk(client)) < 20 * SECONDS


def test_rubbish_behind_an_answered_request_ends_its_connection_without_a_fault():
    faults: list[dict[str, Any]] = []

    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        await reader.readuntil(b"ok")
        writer.write(b"rubbish\r\n\r\n")
        await closed(reader)

    assert asyncio.run(talk(rude)) < 0.9 * SECONDS
    assert not faults


def test_what_is_no_http_is_told_so():
    answers = []

    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"rubbish\r\n\r\n")
        answers.append(await reader.read())

    asyncio.run(talk(rude))
    assert answers[0].startswith(b"HTTP/1.1 400")


def test_one_that_waits_for_an_answer_is_not():
    answers = []

    async def patient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for path in (b"/", b"/slow", b"/"):
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            answers.append(await reader.readuntil(b"ok"))

    asyncio.run(talk(patient))
    assert [answer.split()[1] for answer in answers] == [b"200"] * 3
