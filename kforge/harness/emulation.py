"""A candidate of another architecture in an emulator: right or wrong, never fast or slow.

The emulator (qemu's user mode) translates the candidate and the harness's own child (``emulated.cc``, built for that
architecture) and makes their system calls on this machine. It needs memory that it can write and then execute, so the
filter that leaves a candidate nothing but to sleep and end cannot be put on it: around the whole emulator lies what a
compiler is confined by (``kforge.harness.sandbox``): no file but its own, no network, no privileges, bounds, and a list
of forbidden system calls. Admitted code makes no system call by itself; this is for the case that it finds a hole in
the emulator (docs/trust.md).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

from kforge.core.drafts import draft_folder
from kforge.core.errors import KforgeError
from kforge.core.image import Image
from kforge.core.trial import Failure
from kforge.harness.binaries import clock, emulated_child
from kforge.harness.callers import CPU_SECONDS, Running, SlotCaller
from kforge.harness.control import SharedMemory
from kforge.harness.sandbox import Facts, Limits, describe
from kforge.harness.sandbox.launch import confined, environment, kill_group
from kforge.harness.slots import SlotFile
from kforge.harness.zygote import Child
from kforge.native.compilers import find_cross

WHERE = "qemu"
_START_SECONDS = 60.0
_SAID = "said"  # file in the process's folder: what it wrote
_LIMITS = Limits(seconds=CPU_SECONDS, memory_bytes=32 << 30, file_bytes=1 << 20)  # memory: address space


def emulator(arch: str) -> str:
    """Path of the emulator for programs of ``arch``; "" where there is none."""
    found = (shutil.which(f"qemu-{arch}{suffix}") for suffix in ("-static", ""))
    return next((path for path in found if path), "")


def cannot_emulate(arch: str) -> str:
    """Why candidates of ``arch`` cannot be checked here, and what to install; "" when they can."""
    if not emulator(arch):
        return f"there is no emulator: install qemu-user-static (Debian, Ubuntu), which brings qemu-{arch}-static"
    if not any(c.name == "g++" for c in find_cross(arch)):
        return f"the emulated child cannot be built: install g++-{arch}-linux-gnu"
    return ""


def require_confined(facts: Facts) -> None:
    """Raises KforgeError where an emulator could not be confined."""
    held = {"landlock": facts.landlock, "seccomp": facts.seccomp, "rlimits": facts.rlimits,
            "capabilities": facts.privileges}
    if lost := [name for name, holds in held.items() if not holds]:
        raise KforgeError(f"an emulator cannot be confined here: {', '.join(lost)} does not hold (kforge doctor says "
                          "more), so candidates of another architecture are not run")


class EmulatedCaller(SlotCaller):
    """One candidate, called in an emulator. Raises KforgeError where nothing can be emulated or confined."""

    where = WHERE
    slower = 50.0

    def __init__(self, image: Image, operator: str, arch: str, threads: int = 2) -> None:
        if why := cannot_emulate(arch):
            raise KforgeError(f"{arch} kernels cannot be checked here: {why}")
        require_confined(describe())
        super().__init__(image, operator, threads)
        self._arch = arch

    def start(self, slots: SlotFile, held: ExitStack) -> Running | Failure:
        control = SharedMemory("kforge-control", mmap.PAGESIZE)  # its child closes it
        blob = SharedMemory("kforge-image", len(data := self._image.blob()))
        blob.map[:] = data
        try:
            work = held.enter_context(draft_folder())
            command = _command(self._arch, control, slots, blob, self._threads)
            inherited = (control.fd, slots.memory.fd, blob.fd)
            keeper = _Emulating(command, work, emulated_child(self._arch), control, inherited)
        except BaseException:
            control.close()
            raise
        finally:
            blob.close()
        held.callback(keeper.close)
        child = Child(keeper, keeper.pid, control, 0)
        held.callback(child.close)
        if (failure := child.wait_ready(_START_SECONDS)) is not None:
            return Failure(failure.kind, failure.reason, keeper.said() or failure.detail)
        return Running(child, slots, int(child.page.result), held)


def _command(arch: str, control: SharedMemory, slots: SlotFile, image: SharedMemory, threads: int) -> list[str]:
    words = [control.fd, slots.memory.fd, image.fd, CPU_SECONDS, slots.stacks_offset(0), slots.reserve_bytes,
             len(slots.slots)]
    for slot in slots.slots:
        words += [slot.address_offset, slot.file_offset, slot.size, int(slot.writable)]
    cpus = sorted(os.sched_getaffinity(0))
    words += [cpus[n % len(cpus)] for n in range(threads)]
    return [emulator(arch), "-cpu", "max", str(emulated_child(arch)), *map(str, words)]


class _Emulating:
    """In place of a zygote: the launched emulator with its one child. The process is the launcher's, which ends as the
    emulator does."""

    def __init__(self, command: list[str], work: Path, program: Path, control: SharedMemory,
                 inherited: tuple[int, ...]) -> None:
        self._work = work
        with open(work / _SAID, "wb") as output:
            self._launched = subprocess.Popen(
                confined(command, work, _LIMITS, (str(program.parent),), describe().needed), cwd=work,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment(command),
                pass_fds=inherited, start_new_session=True)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(control.map))
        self._closing = threading.Lock()
        self._gone = False
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Wakes the parent when the process ends: there is no runner that does."""
        self._launched.wait()
        with self._closing:
            if not self._gone:
                clock().kf_harness_bury(self._address)

    @property
    def pid(self) -> int:
        return self._launched.pid

    def said(self) -> str:
        """What the emulator or the launcher wrote."""
        try:
            return (self._work / _SAID).read_bytes()[:2000].decode(errors="replace").strip()
        except OSError:
            return ""

    def death_status(self, pid: int) -> int | None:
        """Its wait status; it is killed unless it is dead."""
        self._leave()
        code = self._launched.wait()
        return -code if code < 0 else code << 8

    def close(self) -> None:
        self._leave()

    def _leave(self) -> None:
        """Ends the process; nobody waits on the page any more, which may go."""
        with self._closing:
            self._gone = True
        if self._launched.poll() is None:
            kill_group(self._launched)
