"""One isolated executor: started, given commands, and asked how it died."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kforge.backends.opencl.programs import HERE as OPENCL
from kforge.core.drafts import draft_folder
from kforge.core.errors import KforgeError
from kforge.engine.isolation.page import PAGE_BYTES, Command, Page
from kforge.engine.isolation.plan import Plan
from kforge.harness import sandbox
from kforge.harness.control import SharedMemory
from kforge.native.build import build_library, build_program, executor_sources, source_dir

_HERE = Path(__file__).resolve().parent
_JAIL = Path(sandbox.__file__).resolve().parent.parent
_REFUSED_EXIT, _FAULT_EXIT = 98, 99  # executor.cc
_START_SECONDS = 60.0
_DONE, _DEAD = 0, 1


@dataclass(frozen=True)
class Death:
    """Why no answer comes: in words, and the launch that was running by the executor's own account."""

    reason: str
    program: int
    launch: int


@functools.cache
def _program() -> Path:
    return build_program("kforge-executor", [_HERE / "executor.cc", *executor_sources()],
                         include_dirs=[source_dir(), _JAIL])


@functools.cache
def _opencl_program() -> Path:
    return build_program("kforge-opencl-executor", [_HERE / "opencl_executor.cc", *executor_sources()], ["-rdynamic"],
                         include_dirs=[source_dir(), _JAIL, OPENCL, _HERE])


@functools.cache
def _handover() -> ctypes.CDLL:
    sources = [_HERE / "handover.cc", source_dir() / "team.cc", source_dir() / "wait.cc"]
    library = ctypes.CDLL(str(build_library("kforge_handover", sources, include_dirs=[source_dir(), _JAIL])))
    library.kf_isolated_start.restype = ctypes.c_int32
    library.kf_isolated_start.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64]
    library.kf_isolated_call.restype = ctypes.c_int32
    library.kf_isolated_call.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int32, ctypes.c_int32,
                                         ctypes.c_int32, ctypes.c_int32, ctypes.c_int64]
    return library


class IsolatedProcess:
    """Ready when made; KforgeError when it cannot be. ``files``: of the plan's blocks, in their order; ``needed``:
    layers of confinement (``kforge.harness.proof.Layer``) without which it must not run. ``backend``: "opencl" has a
    device beside the threads. Close it."""

    def __init__(self, plan: Plan, files: Sequence[int], needed: int, backend: str = "cpp") -> None:
        self._number = 0
        program = _program() if backend == "cpp" else _opencl_program()
        self._folders = contextlib.ExitStack()
        # Where a device's driver may unpack what it is given. Native kernels need no folder.
        folder = "/" if backend == "cpp" else str(self._folders.enter_context(draft_folder()))
        data = plan.to_bytes()
        self._control = SharedMemory("kforge-page", PAGE_BYTES)
        self.page = Page.from_buffer(self._control.map)
        self._address = ctypes.addressof(self.page)
        written = SharedMemory("kforge-plan", len(data))
        written.map[:] = data
        life, self._life = os.pipe()  # the other end closes when this process ends, however it does
        given = [self._control.fd, life, written.fd, *files]
        try:
            self._process = subprocess.Popen(
                [str(program), str(needed), *map(str, given)], env={}, cwd=folder, pass_fds=given,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )
        except BaseException:
            os.close(self._life)
            self._control.close()
            self._folders.close()
            raise
        finally:
            os.close(life)
            written.close()
        status = _handover().kf_isolated_start(self._address, self.pid, int(_START_SECONDS * 1e9))
        if status != _DONE:
            message = bytes(self.page.message).split(b"\0")[0].decode(errors="replace")
            self.close()
            raise KforgeError(f"the isolated executor did not start: {message or f'status {self._process.returncode}'}")
        self._core = int(self.page.core)

    def call(self, command: Command, program: int, seconds: float) -> Death | None:
        """Runs a command; None when it is done, and then ``page`` has what came of it."""
        self._number = self._number % 0x7FFFFFFF + 1
        status = _handover().kf_isolated_call(self._address, self._number, command, program, self._core,
                                              self.pid, int(seconds * 1e9))
        if status == _DONE:
            return None
        launch = int(self.page.launch)
        if status != _DEAD:
            self._kill()
            return Death(f"it did not come back within {seconds:g} s", program, launch)
        return Death(self._last_words(), program, launch)

    @property
    def pid(self) -> int:
        """Of the warden; the executor is its only child."""
        return self._process.pid

    def _last_words(self) -> str:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # it only said that it was dead
            self._kill()
            return "it feigned its death"
        if code == -signal.SIGSYS:
            return "SIGSYS: it made a system call"
        if code < 0:
            return f"{_name(-code)} ended its process"
        if code == _FAULT_EXIT:
            return f"{_name(int(self.page.signal))} at address {int(self.page.address):#x}"
        return f"it ended its process (status {code})"

    def _kill(self) -> None:
        """Has the warden kill the executor, and waits until both are gone."""
        with contextlib.suppress(BrokenPipeError):  # it has gone already
            os.write(self._life, b"x")
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the executor dies with it
            self._process.wait()

    def close(self) -> None:
        if self._life >= 0:
            self._kill()
            os.close(self._life)
            self._life = -1
            del self.page
            self._control.close()
            self._folders.close()


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
