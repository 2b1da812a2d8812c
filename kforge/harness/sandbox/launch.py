"""Running a command confined: no network, one folder to write to, nothing to read but the toolchain, and bounds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kforge.core.drafts import draft_folder
from kforge.core.errors import KforgeError
from kforge.harness.sandbox.remembered import remembered
from kforge.native.build import build_program

_HERE = Path(__file__).resolve().parent
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/etc/ld.so.cache", "/nix/store")
_NOBODY = 65534
_LAUNCHER_FAILED = 125
_TEXT = 256 << 10  # bytes of output kept


@dataclass(frozen=True)
class Limits:
    seconds: float  # of wall time for all, and of CPU time for each process
    memory_bytes: int  # address space of each process
    file_bytes: int  # of any file written, the command's output included


@dataclass(frozen=True)
class Outcome:
    """How it ended: ``code`` is the exit status, negative for a signal, ``text`` the start of stdout and stderr."""

    code: int
    text: str
    timed_out: bool


@dataclass(frozen=True)
class Facts:
    """What a confined child was seen to be kept from on this machine."""

    landlock: bool  # cannot read or write files outside its folders
    seccomp: bool  # cannot make a socket, trace a process, make a namespace
    rlimits: bool  # cannot map more memory than its limit, nor write a larger file
    privileges: bool  # has no capability and cannot gain any
    unprivileged: bool  # runs under another uid than root's
    namespaces: bool  # own network and process ids: killed as a whole, whatever it starts

    @property
    def needed(self) -> int:
        """What every further child must have, as the launcher's bits: what was seen to hold must go on holding."""
        return int(self.namespaces) * 1 | int(self.landlock) * 2 | int(self.seccomp) * 4


_FACTS = [field.name for field in dataclasses.fields(Facts)]


def launcher() -> Path:
    """Path of ``kforge-confine``. Raises KforgeError when there is no compiler."""
    return build_program("kforge-confine", [_HERE / "confine.cc"], include_dirs=[_HERE, _HERE.parent])


def run(command: Sequence[str], work: Path, limits: Limits, readable: Sequence[str] = ()) -> Outcome:
    """Runs ``command`` (the first word an absolute path) in ``work``, the only folder that it may write to.

    It reads the system's programs and libraries and ``readable``. As root it runs as nobody, who is given ``work``,
    unless nobody cannot reach the command; then as root without capabilities. All that it started is dead on return
    (without namespaces, all that stayed in its process group).
    Raises KforgeError when it cannot be started, or without a layer of confinement that was seen to hold here before.
    """
    return _run(command, work, limits, readable, describe().needed)


def _run(command: Sequence[str], work: Path, limits: Limits, readable: Sequence[str], needed: int) -> Outcome:
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(confined(command, work, limits, readable, needed), cwd=work,
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env=environment(command), start_new_session=True)
        timed_out = False
        try:
            process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            kill_group(process)
        output.seek(0)
        text = output.read(_TEXT).decode(errors="replace")
    refuse_unstarted(process, command, text)
    return Outcome(process.returncode, text, timed_out)


def confined(command: Sequence[str], work: Path, limits: Limits, readable: Sequence[str], needed: int) -> list[str]:
    """The launcher's command line, once ``work`` has been given to nobody where root can do that."""
    drop = os.geteuid() == 0 and all(_reachable(path) for path in (command[0], *readable)) and _give_away(work)
    return [str(launcher()), str(int(limits.seconds) + 1), str(limits.memory_bytes), str(limits.file_bytes),
            str(int(drop)), str(needed), str(work), *_SYSTEM, *readable, "--", *command]


def environment(command: Sequence[str]) -> dict[str, str]:
    """All that a confined command has of one."""
    path = os.pathsep.join(dict.fromkeys([str(Path(command[0]).parent), "/usr/bin", "/bin"]))
    return {"PATH": path, "TMPDIR": ".", "HOME": ".", "LC_ALL": "C", "CCACHE_DISABLE": "1"}


def refuse_unstarted(process: subprocess.Popen[bytes], command: Sequence[str], text: str) -> None:
    """Raises KforgeError where it was the launcher that failed."""
    if process.returncode == _LAUNCHER_FAILED:
        raise KforgeError(f"cannot run {command[0]} in the sandbox: {text.strip() or 'the launcher failed'}")


@functools.cache
def describe() -> Facts:
    """What holds here, proven by a confined child that tries, once a boot. Raises KforgeError when there is no
    compiler."""
    return Facts(**remembered("build", [launcher()], _prove, dict.fromkeys(_FACTS, True)))


def _prove() -> dict[str, bool]:
    with draft_folder() as base:
        base.chmod(0o777)  # what keeps the child out must not be the folder's mode, nor that of a folder above it:
        (work := base / "work").mkdir()
        (base / "secret").write_text("readable by anybody\n")
        (base / "secret").chmod(0o644)
        text = _run(("--probe", "../secret"), work, Limits(10, 1 << 30, 1 << 20), (), 0).text
    holds = {name: value == "1" for name, _, value in (line.partition(" ") for line in text.splitlines())}
    return {name: holds.get(name, False) for name in _FACTS}


def _reachable(path: str) -> bool:
    """Whether any user may reach ``path`` (a word that is no path is)."""
    if not path.startswith("/"):
        return True
    real = Path(path).resolve()
    return all(folder.stat().st_mode & 0o001 for folder in real.parents)


def _give_away(work: Path) -> bool:
    """Makes nobody the owner, so that a compiler without privileges can write there. False in a container whose root
    may not: its root has no more rights than a user."""
    try:
        for item in (work, *work.rglob("*")):
            os.chown(item, _NOBODY, _NOBODY, follow_symlinks=False)
    except OSError:
        return False
    return True


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the launcher's process group; its process-id namespace takes along whatever left the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
