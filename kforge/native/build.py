"""Compiles kforge's own C++ on first use and keeps the result by content hash.

For trusted sources only: candidates are compiled in the sandbox (``kforge.backends.cpp.build``).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kforge.core.drafts import draft_folder
from kforge.core.errors import KforgeError
from kforge.core.paths import cache_dir
from kforge.core.target import Compiler
from kforge.native.compilers import default_compiler

_HERE = Path(__file__).resolve().parent
_BASE_FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-pthread")
_LIMIT_SECONDS = 300
_log = logging.getLogger("kforge.native")


def include_dir() -> Path:
    """Folder of the shipped headers: ``kforge/abi.h``, ``kforge/math.h``."""
    return _HERE / "include"


def source_dir() -> Path:
    """Folder of the executor's C++ headers and sources, for programs that embed it."""
    return _HERE / "src"


def executor_sources() -> tuple[Path, ...]:
    """What a program that embeds the executor compiles beside its own files."""
    return tuple(source_dir() / name for name in ("loader.cc", "memory.cc", "program.cc", "team.cc", "wait.cc"))


def build_library(name: str, sources: Sequence[Path], flags: Sequence[str] = (), include_dirs: Sequence[Path] = (),
                  compiler: Compiler | None = None) -> Path:
    """Path of ``lib<name>.so`` made of these C++17 sources, compiled unless the cache has it.

    ``flags`` follow the base flags (so ``-O3`` overrides). The shipped headers are on the include path already. Raises
    KforgeError when there is no compiler or it refuses the sources.
    """
    return _build(f"lib{name}.so", sources, ("-shared", "-fPIC", *flags), include_dirs, compiler)


def build_program(name: str, sources: Sequence[Path], flags: Sequence[str] = (), include_dirs: Sequence[Path] = (),
                  compiler: Compiler | None = None) -> Path:
    """Path of the executable ``name``; otherwise as ``build_library``."""
    return _build(name, sources, flags, include_dirs, compiler)


def _build(output: str, sources: Sequence[Path], flags: Sequence[str], include_dirs: Sequence[Path],
           compiler: Compiler | None) -> Path:
    compiler = compiler or default_compiler()
    includes = (include_dir(), *include_dirs)
    command = [*_BASE_FLAGS, *flags]
    key = _content_hash(output, sources, command, includes, compiler)
    user, fallback = cache_dir() / "native", Path(tempfile.gettempdir()) / f"kforge-native-{os.getuid()}"
    for cache in (user, fallback):
        if (made := cache / key / output).is_file() and (cache == user or _is_private(cache)):
            return made
    for cache in (user, fallback):
        with contextlib.ExitStack() as stack:
            try:
                cache.mkdir(mode=0o777 if cache == user else 0o700, parents=True, exist_ok=True)
                if cache == fallback and not _is_private(cache):
                    continue
                # Made beside its final place and renamed, so that it is whole whenever it is there.
                work = stack.enter_context(draft_folder(cache))
            except OSError as error:
                _log.warning("cannot write the cache %s (%s): compiling into a temporary folder", cache, error.strerror)
                continue
            _compile(compiler, [*command, *(f"-I{folder}" for folder in includes), *map(str, sources)], work / output)
            return _publish(work, cache / key) / output
    raise KforgeError(f"no folder to compile {output} into: make {user} writable or set KFORGE_CACHE")


def _is_private(folder: Path) -> bool:
    """Code is loaded from here: nobody else may have made it or be able to write to it."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and status.st_mode & 0o170077 == 0o040000


def _content_hash(output: str, sources: Sequence[Path], command: Sequence[str], includes: Sequence[Path],
                  compiler: Compiler) -> str:
    folders = {*includes, *(source.parent for source in sources)}
    headers = {header for folder in folders for header in folder.rglob("*.h")}
    digest = hashlib.sha256()
    for part in (output, compiler.path, compiler.name, compiler.version, *command):
        digest.update(part.encode() + b"\0")
    for path in (*sources, *sorted(headers)):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    if any("native" in flag for flag in command):  # a cache may be shared between machines
        digest.update(_cpu_flags())
    return digest.hexdigest()[:24]


def _cpu_flags() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return b""
    return b"\n".join(sorted({line for line in lines if line.lower().startswith((b"flags", b"features"))}))


def _compile(compiler: Compiler, arguments: Sequence[str], output: Path) -> None:
    command = [compiler.path, *arguments, "-o", str(output)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False,
                              env={**os.environ, "TMPDIR": str(output.parent)})  # what it leaves goes with the draft
    except OSError as error:
        raise KforgeError(f"cannot run the compiler {compiler.path}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise KforgeError(f"{compiler.path} did not finish {output.name} within {_LIMIT_SECONDS} s") from error
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        first = next((line for line in lines if "error: " in line or "No space" in line), (lines or ["no message"])[0])
        raise KforgeError(f"{compiler.name} {compiler.version} ({compiler.path}) cannot compile {output.name}: {first}")


def _publish(work: Path, final: Path) -> Path:
    os.chmod(work, 0o755)
    try:
        os.rename(work, final)
    except OSError as error:
        if not final.is_dir():
            raise KforgeError(f"cannot keep compiled code in {final}: {error.strerror}") from error
        # Another process was faster: what it made is equal.
    return final
