"""Files and folders that are still being made. Each is locked by its maker: what a killed process left has no lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from kforge.core.paths import cache_dir, data_dir

MARK = ".kforge-draft-"  # what the name of a draft begins with: nothing else is ever swept away
_NOBODY = 65534  # as root, the sandbox gives its folders to nobody


@contextlib.contextmanager
def draft_folder(parent: Path | None = None) -> Iterator[Path]:
    """A folder for this block alone, by default among the temporary files. Gone at the end, unless it was renamed.

    Raises OSError.
    """
    place = parent or Path(tempfile.gettempdir())
    path, lock = _claimed(lambda: _folder_in(place))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def write_whole(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Readers see the old file or the new one, never a part; ``durable``: on the disk before it has its name.

    Raises OSError, and leaves nothing then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft, handle = _claimed(lambda: _file_in(path.parent))
    try:
        with open(handle, "wb") as out:
            out.write(data)
            out.flush()
            if durable:
                os.fsync(handle)
            os.replace(draft, path)  # while it is locked
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def left(path: Path, most: int) -> bytes:
    """What a child left there, at most so many bytes. The folder was its to write: a link must not lead the reader
    elsewhere, nor a pipe hold it up. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        return file.read(most)


def sweep() -> int:
    """Removes the drafts of processes that are gone, from the temporary files, the cache and the data; how many."""
    places = [Path(tempfile.gettempdir())]
    for root in (cache_dir(), data_dir()):
        places += [Path(folder) for folder, _, _ in os.walk(root) if MARK not in folder]
    return sum(_remove_abandoned(path) for place in places for path in _drafts_in(place))


def _drafts_in(place: Path) -> list[Path]:
    try:
        return [place / name for name in os.listdir(place) if name.startswith(MARK)]
    except OSError:
        return []


def _remove_abandoned(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its maker lives
        if os.fstat(handle).st_uid not in ({os.geteuid(), _NOBODY} if os.geteuid() == 0 else {os.geteuid()}):
            return False
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def _claimed(make: Callable[[], tuple[Path, int]]) -> tuple[Path, int]:
    """A new draft with its lock. One that another process swept away before it was locked is made again."""
    while True:
        path, handle = make()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(handle), os.lstat(path)):
                return path, handle
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _file_in(place: Path) -> tuple[Path, int]:
    handle, name = tempfile.mkstemp(prefix=MARK, dir=place)
    return Path(name), handle


def _folder_in(place: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=MARK, dir=place))
        with contextlib.suppress(FileNotFoundError):
            return path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
