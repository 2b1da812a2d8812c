"""The zoo's grounds: throw-away folders that specimens may harm, and the search for what they left behind."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from kforge.core.paths import cache_dir, shipped

MARKER = "kforge-zoo-was-here"  # what specimens call the files that they try to make
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_CACHE = frozenset({"artifacts", "models", "native", "prelude", "sandbox"})  # kforge's own folders in the cache
_TEMPORARY = f"kforge-native-{os.getuid()}"  # kforge's own, beside the cache
_ELSEWHERE = ("/tmp", "/var/tmp", "/dev/shm", ".")  # where a marker would be looked for, beside the grounds
_RUNNER = "kforge-runner"
_SETTLE_SECONDS = 2.0  # a killed process is a child until it has been waited for


class Grounds:
    """One throw-away folder with a home, a cache, a registry and room for temporary files, for this whole process.

    A secret is planted in it three times: in a key in the home, in a file that anybody may read, and in the
    environment. Orphans of anything started meanwhile become children of this process, so none goes unseen.
    ``cold``: with an empty cache; otherwise the user's is used.
    """

    def __init__(self, *, cold: bool = True) -> None:
        self.secret = f"secret{secrets.token_hex(12)}"
        self._temporary = tempfile.tempdir
        self.root = Path(tempfile.mkdtemp(prefix="kforge-zoo-"))
        for name in ("home/.ssh", "data/store", "tmp", "outside", "cache"):
            (self.root / name).mkdir(parents=True)
        for open_to_all in (self.root, self.root / "tmp"):
            open_to_all.chmod(0o755)
        (self.root / "outside").chmod(0o777)  # only the sandbox stands between a specimen and this folder
        self.key_file, self.open_file = self.root / "home/.ssh/id_ed25519", self.root / "outside/secret.h"
        for file in (self.key_file, self.open_file, self.root / "data/registry.db"):
            file.write_text(f"{self.secret}\n")
            file.chmod(0o644)
        folders = {"HOME": "home", "KFORGE_HOME": "data", "TMPDIR": "tmp"}
        new = {name: str(self.root / folder) for name, folder in folders.items()} | {"KFORGE_ZOO_SECRET": self.secret}
        new["KFORGE_CACHE"] = str(self.root / "cache" if cold else cache_dir())  # by default it is below the old home
        self._environment = {name: os.environ.get(name) for name in new}
        os.environ.update(new)
        tempfile.tempdir = None  # looked up again
        self._reaped = _subreaper(True)
        self._children = {child.pid for child in _descendants()}
        cache_dir().mkdir(parents=True, exist_ok=True)
        self._cached = _CACHE | {path.name for path in cache_dir().iterdir()}  # what was there before is nobody's trace
        self._files = dict(self._kept())
        self._shared = set(_shared_memory())

    def fill_in(self, text: str) -> str:
        """A specimen's text with the places that it attacks."""
        places = {"@SECRET_FILE@": self.open_file, "@KEY_FILE@": self.key_file, "@OUTSIDE@": self.root / "outside",
                  "@REGISTRY@": self.root / "data/registry.db", "@CACHE@": cache_dir(),
                  "@TEMPLATES@": shipped("templates")}
        for name, place in places.items():
            text = text.replace(name, str(place))
        return text

    def traces(self) -> list[str]:
        """What is here that should not be, one sentence each. What was made is removed, so that it is told once."""
        return [*self._processes(), *self._changed_files(), *self._strays(), *self._new_shared_memory()]

    def _processes(self) -> Iterator[str]:
        """Anything but idle zygotes that descends from this process."""
        end = time.monotonic() + _SETTLE_SECONDS
        while (found := self._unexpected()) and time.monotonic() < end:
            time.sleep(0.02)
        for process in found:
            yield f"process {process.pid} ({_name(process)}) is still there"
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _unexpected(self) -> list[psutil.Process]:
        return [child for child in _descendants() if child.pid not in self._children
                and not (_name(child) == _RUNNER and child.ppid() == os.getpid())]

    def _changed_files(self) -> Iterator[str]:
        now = dict(self._kept())
        for path in sorted(self._files.keys() | now.keys()):
            if self._files.get(path) != now.get(path):
                how = "is new" if path not in self._files else "is gone" if path not in now else "was changed"
                yield f"{path} {how}"
        self._files = now

    def _strays(self) -> Iterator[str]:
        for folder in (*map(Path, _ELSEWHERE), self.root / "outside"):
            for path in folder.glob(f"*{MARKER}*"):
                yield f"{path} was made"
                path.unlink()
        for path in (self.root / "tmp").iterdir():
            if path.name == _TEMPORARY:
                continue
            yield f"{path} was left among the temporary files"
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for path in cache_dir().iterdir():
            if path.name not in self._cached:
                yield f"{path} is none of the cache's folders"

    def _new_shared_memory(self) -> Iterator[str]:
        now = set(_shared_memory())
        for name in sorted(now - self._shared):
            yield f"shared memory {name} is still there"
        self._shared |= now

    def _kept(self) -> Iterator[tuple[str, str]]:
        """Files that nobody may touch, with their contents' hash; a link counts as where it leads."""
        for folder in (self.root / "home", self.root / "data", self.root / "outside", shipped("templates")):
            for path in sorted(folder.rglob("*")):
                if path.is_symlink():
                    yield str(path), f"-> {path.readlink()}"
                elif path.is_file() and MARKER not in path.name:
                    yield str(path), f"{path.stat().st_mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"

    def close(self) -> None:
        """Puts the environment back and removes the folder."""
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        tempfile.tempdir = self._temporary
        _subreaper(self._reaped)
        shutil.rmtree(self.root)


def _descendants() -> list[psutil.Process]:
    """Living descendants of this process; orphans that have died are buried."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
            elif child.ppid() == os.getpid():
                os.waitpid(child.pid, os.WNOHANG)
    return found


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return "gone"


def _subreaper(wanted: bool) -> bool:
    """Sets whether orphans become this process's children; returns what held before."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    libc.prctl(_SUBREAPER + 1, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_SUBREAPER, int(wanted), 0, 0, 0)
    return bool(before.value)


def _shared_memory() -> Iterator[str]:
    """System V segments, semaphores and queues, and POSIX shared memory, of this user or of nobody."""
    users = {str(os.geteuid()), "65534"}
    for kind in ("shm", "sem", "msg"):
        table = Path("/proc/sysvipc") / kind
        lines = [line.split() for line in table.read_text().splitlines()] if table.is_file() else [[]]
        owner = lines[0].index("uid") if "uid" in lines[0] else 0
        yield from (f"{kind} {' '.join(line[:2])}" for line in lines[1:] if line[owner] in users)
    for path in Path("/dev/shm").glob("*"):
        if path.lstat().st_uid == 65534:
            yield str(path)
