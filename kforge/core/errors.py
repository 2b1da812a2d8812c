"""Errors for the person who has to act."""

from __future__ import annotations

import errno
import os


class KforgeError(Exception):
    """Bad input or a broken environment: one sentence that names the thing and what to do. The CLI exits with 2."""

    exit_code = 2


class Stopped(KforgeError):
    """Somebody stopped the command; the sentence says how to go on."""

    exit_code = 130


_ADVICE = {
    errno.ENOSPC: "free some space, or choose another folder",
    errno.EDQUOT: "free some space, or choose another folder",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.EROFS: "choose a folder that you may write to (KFORGE_HOME, KFORGE_CACHE)",
    errno.EACCES: "choose a folder that you may use (KFORGE_HOME, KFORGE_CACHE)",
    errno.EPERM: "choose a folder that you may use (KFORGE_HOME, KFORGE_CACHE)",
    errno.ENOTDIR: "a file stands where a folder is needed",
    errno.ENOMEM: "close other programs, or use a smaller model",
}


def sentence_of(error: OSError) -> str:
    """An operating system's error as a sentence: the file, what is wrong, what to do."""
    what = error.strerror or str(error)
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes | os.PathLike) else ""
    advice = _ADVICE.get(error.errno or 0)
    return f"{where}{what}{f'; {advice}' if advice else ''}"
