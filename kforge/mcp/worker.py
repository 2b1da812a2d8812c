"""The process that builds and measures for an MCP server: one job after the other, one JSON line each way.

It ends when its server does, however that ends, and takes everything along that it started.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from kforge.core.errors import KforgeError, sentence_of
from kforge.core.trial import FailureClass
from kforge.mcp.failures import CallFailed, Refusal
from kforge.mcp.jobs import JOB, Done, Failed, Note, Reply

if TYPE_CHECKING:
    from kforge.mcp.workbench import Workbench

GRACE = 1.5  # seconds from the first word to the last


def main() -> None:
    """Serves standard input until it ends. What any library prints goes to standard error."""
    wire = os.dup(1)
    os.dup2(2, 1)
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's business
    threading.Thread(target=_read, args=(os.dup(0), lines), daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _serve(lines, wire)


def _read(wire: int, lines: queue.SimpleQueue[bytes | None]) -> None:
    kept = b""
    while chunk := os.read(wire, 1 << 16):
        *whole, kept = (kept + chunk).split(b"\n")
        for line in whole:
            lines.put(line)
    lines.put(None)
    # The server is gone: whatever goes on here is for nobody.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    if os.getpgid(0) == os.getpid():  # a group of its own, with all that it started
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _serve(lines: queue.SimpleQueue[bytes | None], wire: int) -> None:
    from kforge.mcp.workbench import Workbench  # with all that measuring needs

    bench = Workbench()

    def send(reply: Reply) -> None:
        data = reply.model_dump_json().encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(wire, data) :]

    try:
        while (line := lines.get()) is not None:
            send(_reply(bench, line, send))
    finally:
        bench.close()


def _reply(bench: Workbench, line: bytes, send: Callable[[Reply], None]) -> Reply:
    from kforge.backends.templates import TemplateError
    from kforge.harness.zygote import HarnessError

    try:
        answer = bench.do(JOB.validate_json(line), lambda text: send(Note(text=text)))
        return Done(answer=answer.model_dump_json())
    except CallFailed as error:
        return Failed(failure=error.kind.value, reason=error.reason, detail=error.detail)
    except TemplateError as error:
        return Failed(failure=FailureClass.TEMPLATE.value, reason=str(error))
    except HarnessError as error:
        return Failed(failure=FailureClass.HARNESS.value, reason=str(error))
    except KforgeError as error:
        return Failed(failure=Refusal.BAD_INPUT.value, reason=str(error))
    except OSError as error:
        return Failed(failure=FailureClass.HARNESS.value, reason=sentence_of(error))
    except MemoryError:
        return Failed(failure=Refusal.BAD_INPUT.value, reason="there is not enough memory for this workload")
    except Exception as error:
        bench.close()  # what state its processes are in is not known
        print(f"kforge mcp: {type(error).__name__}: {error}", file=sys.stderr)
        return Failed(failure=FailureClass.HARNESS.value, reason=f"{type(error).__name__} in kforge itself: {error}")


if __name__ == "__main__":
    main()
