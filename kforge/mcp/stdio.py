"""The server over standard input and output: nothing but protocol on the latter, and no line without an end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import re
import signal
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, ErrorData, JSONRPCError

MOST_LINE = 1 << 20  # bytes of one message
_CHUNK = 1 << 16
_VALUE = rb'"id"\s*:\s*("[^"\\]{0,100}"|\d{1,18})'
_ID_FIRST, _ID_LAST = re.compile(_VALUE), re.compile(_VALUE + rb"\s*\}\s*\Z")
_HEAD, _TAIL = 4096, 256  # bytes of a message that is too long in which its id is looked for


class Lines:
    """Lines of a descriptor that a thread reads, so that the server can end while a read goes on.

    Of a line that is longer than it may be only the id is kept, in ``refused``.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        lines = anyio.create_memory_object_stream[str](16)
        refused = anyio.create_memory_object_stream[str | int | None](16)
        self._send, self._lines = lines
        self._refuse, self.refused = refused

    def start(self) -> None:
        threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True).start()

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in self._lines:
            yield line

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Waits for the event loop to take each line: whoever floods fills a pipe, not memory."""

        def pass_on(line: _Line) -> None:
            if line.too_long:
                sending = self._refuse.send(line.id)
            elif line.text.strip():
                sending = self._send.send(line.text)
            else:
                return
            asyncio.run_coroutine_threadsafe(sending, loop).result()

        line = _Line()
        with contextlib.suppress(
            RuntimeError, concurrent.futures.CancelledError, anyio.BrokenResourceError, anyio.ClosedResourceError
        ):  # the server has ended
            while chunk := os.read(self._fd, _CHUNK):
                first, *more = chunk.split(b"\n")
                line.add(first)
                for piece in more:
                    pass_on(line)
                    line = _Line()
                    line.add(piece)
            loop.call_soon_threadsafe(self._send.close)


class _Line:
    """A line on its way, of bounded size."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._tail = b""
        self.too_long = False

    def add(self, piece: bytes) -> None:
        if not self.too_long and len(self._kept) + len(piece) > MOST_LINE:
            self.too_long = True
            self._tail = bytes(self._kept[-_TAIL:])
            del self._kept[_HEAD:]
        if self.too_long:
            self._kept += piece[: max(_HEAD - len(self._kept), 0)]
            self._tail = (self._tail + piece)[-_TAIL:]
        else:
            self._kept += piece

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")

    @property
    def id(self) -> str | int | None:
        """Of the message, which some clients write first and others last; None where neither is to be seen."""
        found = _ID_LAST.search(self._tail) or _ID_FIRST.search(self._kept)
        if found is None:
            return None
        word = found.group(1).decode(errors="replace")
        return word.strip('"') if word.startswith('"') else int(word)


async def serve_stdio(server: MCPServer[None]) -> bool:
    """Until the client closes our standard input, or a signal ends it: returns whether one did.

    Children read nothing from standard input and print to standard error.
    """
    wire = os.dup(0)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    lines = Lines(wire)
    lines.start()
    inner = server._lowlevel_server
    stopped = False

    async def until_signal(scope: anyio.CancelScope) -> None:
        nonlocal stopped
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for _ in signals:
                stopped = True
                scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_signal, tasks.cancel_scope)
        async with stdio_server(stdin=lines) as (read, write):  # type: ignore[arg-type]  # it only iterates over it
            tasks.start_soon(_refuse, lines, write)
            await inner.run(read, write, inner.create_initialization_options())
        tasks.cancel_scope.cancel()
    return stopped


async def _refuse(lines: Lines, write: Any) -> None:
    async for number in lines.refused:
        error = ErrorData(code=INVALID_REQUEST, message=f"a message has at most {MOST_LINE} bytes")
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await write.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error)))
