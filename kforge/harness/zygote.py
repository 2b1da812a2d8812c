"""The parent's side of the runner: a zygote that holds a workload's inputs, and its children, one per candidate."""

from __future__ import annotations

import array
import contextlib
import ctypes
import mmap
import os
import secrets
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from kforge.core.drafts import draft_folder
from kforge.core.errors import KforgeError
from kforge.core.image import Loadable
from kforge.core.trial import Failure, FailureClass
from kforge.harness.binaries import clock, runner_of
from kforge.harness.control import FAULT_EXIT, LOAD_EXIT, SURVIVED_EXIT, ControlPage, Fault, SharedMemory, State
from kforge.harness.slots import STACK_BYTES, SlotFile

_REPLY_SECONDS = 60.0
_DEATH_SECONDS = 10.0


class HarnessError(KforgeError):
    """The runner itself went away or could not do its work: never the candidate's fault."""


class _Verb(IntEnum):
    ARENA = 1
    SPAWN = 2
    KILL = 3
    ATTEMPT = 4
    ARENA_REPLY = 11
    SPAWN_REPLY = 12
    DEAD = 13
    ERROR = 14


@dataclass(frozen=True)
class ArenaSegment:
    """``copies`` of ``size`` bytes at ``source`` of the arena's file, from ``destination`` of the arena on."""

    destination: int
    source: int
    size: int
    copies: int
    copy_stride: int


@dataclass(frozen=True)
class Ending:
    """How a child ended that tried one thing that a candidate must not do (``attempts.h``)."""

    name: str
    status: int  # wait status
    attempts: int  # how many there are
    result: int  # layers that were seen to hold, of the attempt that looks at them

    @property
    def forbidden(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGSYS

    @property
    def survived(self) -> bool:
        return os.WIFEXITED(self.status) and os.WEXITSTATUS(self.status) == SURVIVED_EXIT


class Zygote:
    """One runner process. Close it: its children die with it, and nothing of it is left."""

    def __init__(
        self, arena_bytes: int, reserve_bytes: int, source: SharedMemory, segments: Sequence[ArenaSegment],
        backend: str = "cpp",
    ) -> None:
        program = runner_of(backend)  # first, because it may not be to be had: then nothing is left open
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Where a device's driver may unpack what it is given. A runner of native kernels needs no folder.
        self._folders = contextlib.ExitStack()
        folder = "/" if backend == "cpp" else str(self._folders.enter_context(draft_folder()))
        with theirs:
            self._process = subprocess.Popen(
                [str(program), str(theirs.fileno())], env={}, cwd=folder, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        self._socket = ours
        self._socket.settimeout(_REPLY_SECONDS)
        self._deaths: dict[int, int] = {}
        self.spawned = 0
        words = [int(_Verb.ARENA), arena_bytes, reserve_bytes, len(segments)]
        for s in segments:
            words += [s.destination, s.source, s.size, s.copies, s.copy_stride]
        try:
            self._send(words, [source.fd])
            reply = self._expect(_Verb.ARENA_REPLY)
        except BaseException:
            self.close()
            raise
        self.arena_address, self.reserve_address = reply[1], reply[2]

    @classmethod
    @contextlib.contextmanager
    def empty(cls, reserve_bytes: int, backend: str = "cpp") -> Iterator[Zygote]:
        """One that holds no inputs: for ``attempt``, and for candidates that are only checked."""
        source = SharedMemory("kforge-inputs", mmap.PAGESIZE)
        try:
            zygote = cls(0, reserve_bytes, source, (), backend)
        finally:
            source.close()
        try:
            yield zygote
        finally:
            zygote.close()

    def attempt(self, number: int, cpus: Sequence[int]) -> Ending:
        """Forks a child that is locked down as for a candidate and tries what candidates must not."""
        control = SharedMemory("kforge-control", mmap.PAGESIZE)
        try:
            self._send([int(_Verb.ATTEMPT), number, len(cpus), *cpus], [control.fd])
            reply = self._expect(_Verb.SPAWN_REPLY)
            pid, attempts = reply[1], reply[2]
            page = ControlPage.from_buffer(control.map)
            if clock().kf_harness_wait_start(ctypes.addressof(page), int(_DEATH_SECONDS * 1e9)) != State.DEAD:
                raise HarnessError(f"a child of the harness's runner hangs that only had {page.message.decode()}")
            status = self.death_status(pid)
            if status is None:
                raise HarnessError("the harness's runner does not say how its child ended")
            ending = Ending(bytes(page.message).split(b"\0")[0].decode(), status, attempts, int(page.result))
            del page
            return ending
        finally:
            control.close()

    def spawn(self, image: Loadable, slots: SlotFile, cpus: Sequence[int], cpu_seconds: int,
              needed: int) -> Child | Failure:
        """Forks a child that has mapped ``image`` and is locked down, or says why the image could not be loaded.

        ``needed``: layers of confinement (``proof.Layer``) without which it must not run.
        """
        control = SharedMemory("kforge-control", mmap.PAGESIZE)
        blob = SharedMemory("kforge-image", len(data := image.blob()))
        try:
            blob.map[:] = data
            number = self.spawned
            stacks = slots.stacks_offset(number)
            words = [int(_Verb.SPAWN), len(cpus), cpu_seconds, needed, stacks, len(slots.slots)]
            for slot in slots.slots:
                words += [slot.address_offset, slot.file_offset, slot.size, int(slot.writable)]
            self._send([*words, *cpus], [control.fd, slots.memory.fd, blob.fd])
            pid = self._expect(_Verb.SPAWN_REPLY)[1]
        except BaseException:
            control.close()
            raise
        finally:
            blob.close()
        self.spawned += 1
        child = Child(self, pid, control, number)
        failure = child.wait_ready()
        if failure is not None:
            child.close()
            return failure
        return child

    def death_status(self, pid: int) -> int | None:
        """The wait status of a child, which is killed unless it is dead; None when the runner will not say."""
        if pid not in self._deaths:
            self._send([int(_Verb.KILL), pid], [])
        self._socket.settimeout(_DEATH_SECONDS)
        try:
            while pid not in self._deaths:
                self._note(self._receive())
        except (TimeoutError, HarnessError):
            return None
        finally:
            self._socket.settimeout(_REPLY_SECONDS)
        return self._deaths.pop(pid)

    def close(self) -> None:
        """Ends the runner, which kills its children first."""
        self._socket.close()
        try:
            self._process.wait(timeout=_DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folders.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _send(self, words: Sequence[int], files: Sequence[int]) -> None:
        data = array.array("q", words).tobytes()
        try:
            socket.send_fds(self._socket, [data], list(files))
        except OSError as error:
            raise HarnessError(f"the harness's runner went away: {error.strerror}") from error

    def _receive(self) -> list[int]:
        try:
            data = self._socket.recv(4096)
        except ConnectionError:
            data = b""
        if not data:
            raise HarnessError(f"the harness's runner went away (status {self._process.poll()})")
        return list(struct.unpack(f"<{len(data) // 8}q", data))

    def _note(self, words: list[int]) -> None:
        if words[0] == _Verb.DEAD:
            self._deaths[words[1]] = words[2]
        elif words[0] == _Verb.ERROR:
            raise HarnessError(f"the harness's runner failed at step {_Verb(words[2]).name}: {os.strerror(words[1])}")

    def _expect(self, verb: _Verb) -> list[int]:
        """The answer to a request; deaths that come before it are kept."""
        while True:
            try:
                words = self._receive()
            except TimeoutError as error:
                raise HarnessError("the harness's runner did not answer: is the machine overloaded?") from error
            if words[0] == verb:
                return words
            self._note(words)


@dataclass(frozen=True)
class Usage:
    """Seconds that each of a child's threads ran, and seconds that they and this one waited for a processor."""

    threads: tuple[float, ...]
    waited: float

    @property
    def ran(self) -> float:
        return sum(self.threads)


class Keeper(Protocol):
    """Who started a child, and buries it: a zygote, or what stands in for one."""

    def death_status(self, pid: int) -> int | None:
        """The child's wait status, None where nobody knows it; it is killed unless it is dead."""


class Child:
    """A candidate's process. ``call`` runs the command that stands in ``page``."""

    def __init__(self, keeper: Keeper, pid: int, control: SharedMemory, number: int) -> None:
        self._keeper = keeper
        self.number = number  # among its keeper's
        self.pid = pid
        self._control = control
        self.page = ControlPage.from_buffer(control.map)
        self._address = ctypes.addressof(self.page)
        self._buried = False
        self._posted = 0
        self._schedstats: list[int] = []  # open files: of each thread, then of this one

    def wait_ready(self, seconds: float = 20.0) -> Failure | None:
        if clock().kf_harness_wait_start(self._address, int(seconds * 1e9)) == State.READY:
            tasks = f"/proc/{self.pid}/task"
            # This thread's too: a parent that wakes up late reads its clock late.
            for task in [*(f"{tasks}/{task}" for task in os.listdir(tasks)), "/proc/thread-self"]:
                self._schedstats.append(os.open(f"{task}/schedstat", os.O_RDONLY))
            return None
        status = self._keeper.death_status(self.pid)
        self._buried = True
        message = bytes(self.page.message).split(b"\0")[0].decode(errors="replace")
        if status is not None and os.waitstatus_to_exitcode(status) == LOAD_EXIT:
            return Failure(FailureClass.LOAD, f"the loader refused the kernel: {message}")
        return Failure(FailureClass.HARNESS, f"a child did not start: {message or f'wait status {status}'}")

    def call(self, seconds: float) -> float | Failure:
        """Seconds from hand-over to completion on this process's clock, or why there are none. The child is gone
        then.
        """
        last = self._posted
        while self._posted == last:
            self._posted = 1 + secrets.randbelow((1 << 32) - 1)
        nanoseconds = clock().kf_harness_call(self._address, self._posted, int(seconds * 1e9))
        if nanoseconds >= 0:
            return nanoseconds * 1e-9
        self._buried = True
        if nanoseconds == -2:
            self._keeper.death_status(self.pid)
            return Failure(FailureClass.TIMEOUT, f"the kernel did not come back within {seconds:.3g} s")
        # Killed although it is said to be dead: a candidate that forges that would go on disturbing the others.
        return self._death(self._keeper.death_status(self.pid))

    def usage(self) -> Usage:
        """What the child's threads have had of the processors in all, as the kernel counts."""
        ran: list[float] = []
        waited = 0
        for file in self._schedstats:
            with contextlib.suppress(OSError):  # it has died
                fields = os.pread(file, 64, 0).split()
                ran.append(int(fields[0]) * 1e-9)
                waited += int(fields[1])
        return Usage(tuple(ran[:-1]), waited * 1e-9)

    def _death(self, status: int | None) -> Failure:
        if status is not None and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number == signal.SIGSYS:
                return Failure(FailureClass.FORBIDDEN, "the kernel made a system call", "SIGSYS")
            if number in {signal.SIGXCPU, signal.SIGKILL}:
                return Failure(FailureClass.TIMEOUT, "the kernel used up its processor time", _signal_name(number))
            return Failure(FailureClass.CRASH, f"the kernel crashed with {_signal_name(number)}")
        if status is None or os.waitstatus_to_exitcode(status) != FAULT_EXIT:
            return Failure(FailureClass.CRASH, "the kernel ended its process", f"wait status {status}")
        # The fault handler's record is the child's own word: a candidate that forges it only misnames its failure.
        name = _signal_name(self.page.signal)
        at = f"{name} at address {self.page.fault_address:#x}"
        if self.page.fault == Fault.INPUT:
            return Failure(FailureClass.INPUT_MODIFIED, "the kernel wrote to an input", at)
        if self.page.fault == Fault.GUARD:
            return Failure(FailureClass.FENCE, "the kernel left its tensors: it touched a guard page", at)
        if self.page.fault == Fault.STACK:
            reason = f"the kernel needs more stack than the {STACK_BYTES >> 10} KiB that it has"
            return Failure(FailureClass.CRASH, reason, at)
        return Failure(FailureClass.CRASH, f"the kernel crashed with {name}", at)

    def close(self) -> None:
        if not self._buried:
            with contextlib.suppress(HarnessError):  # the runner has gone, and took the child with it
                self._keeper.death_status(self.pid)
            self._buried = True
        for file in self._schedstats:
            os.close(file)
        self._schedstats.clear()
        del self.page
        self._control.close()


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
