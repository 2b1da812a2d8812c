"""How the command ends: whatever happens, at most one sentence on standard error, and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from types import FrameType
from typing import TextIO

from kforge.core.errors import KforgeError, Stopped, sentence_of

_INTERRUPTED, _PIPE = 130, 1


def ended(command: object) -> int:
    """Runs a typer command on the process's arguments; returns its exit code.

    Bad input ends in 2, Ctrl-C and SIGTERM in 130, a reader of standard output that went away in 1.
    """
    _open_missing_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)
    try:
        code = _run(command)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _silence(sys.stdout)
        return _PIPE
    except KforgeError as error:
        _say(str(error))
        return error.exit_code
    except OSError as error:
        shown = not error.filename and (_by_a_printer(error) or not _flushes(sys.stdout))
        where = "standard output: " if shown else ""
        _silence(sys.stdout)  # what is still buffered cannot be written either
        _say(f"{where}{sentence_of(error)}")
        return KforgeError.exit_code
    except MemoryError:
        _say("there is not enough memory for this: close other programs, or use a smaller model or batch")
        return KforgeError.exit_code
    except KeyboardInterrupt:
        _say("stopped")
        return _INTERRUPTED


def _by_a_printer(error: OSError) -> bool:
    """Whether it was rich or typer that wrote: of a text longer than the stream's buffer nothing is left to flush."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return str(module).split(".")[0] in ("rich", "typer", "click")


def _run(command: object) -> int:
    from typer.exceptions import Abort  # typer is slow to load, so not before the streams are sound
    from typer.main import get_command

    try:
        code = get_command(command).main(prog_name="kforge", standalone_mode=False)  # type: ignore[arg-type]
    except Abort:
        raise Stopped("input ended before an answer was given") from None
    except Exception as error:
        said = getattr(error, "format_message", None)  # typer's errors of usage; their class is not public
        if said is None:
            raise
        return _usage(error, said())
    if code == _INTERRUPTED:  # typer turns the exception into this
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _usage(error: Exception, text: str) -> int:
    """``text`` in one sentence, with the command whose help says more."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "kforge"
    if type(error).__name__ == "NoArgsIsHelpError":
        return KforgeError.exit_code  # the help itself was shown
    _say(f"{' '.join(text.split()).rstrip('.')}; see: {path} --help")
    return int(getattr(error, "exit_code", KforgeError.exit_code))


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM and SIGHUP end as Ctrl-C does, with everything kept."""
    raise KeyboardInterrupt


def _open_missing_streams() -> None:
    """A closed stream's number would go to the next file opened, and what is printed into that file."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if (stream.encoding or "").lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a table's frame is no ASCII


def _flushes(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True


def _silence(stream: object) -> None:
    """Sends what is left in the buffer to nowhere, or the interpreter complains when it closes the stream."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[attr-defined]
    except (OSError, ValueError):
        return


def _say(sentence: str) -> None:
    try:
        print(f"kforge: {sentence}", file=sys.stderr, flush=True)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        _silence(sys.stderr)
