"""kforge's headers as a kernel's build sees them, and the prelude compiled ahead, which halves the time of a build."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

from kforge.backends.cpp import compilers, store
from kforge.core.drafts import draft_folder
from kforge.core.paths import cache_dir
from kforge.core.target import Compiler
from kforge.core.workload import stable_hash
from kforge.harness.sandbox import Limits, run
from kforge.native.build import include_dir

PRELUDE = "include/kforge/prelude.h"
_LINKING = ("-shared", "-nostdlib")
_FOR_SOURCE = ("-Iinclude", "-include", "kforge/prelude.h")
_LIMITS = Limits(seconds=120, memory_bytes=4 << 30, file_bytes=256 << 20)
_refused: set[str] = set()  # keys of preludes that a compiler would not make: not tried again by this process


def headers_hash() -> str:
    """Of the names and contents of all shipped headers."""
    return stable_hash([[name, content_hash] for name, content_hash in
                        ((str(h.relative_to(include_dir())), _file_hash(h, h.stat().st_mtime_ns)) for h in _headers())])


def place(work: Path) -> None:
    """Copies the headers into ``work``: the compiler can read nothing outside its own folder and the toolchain."""
    for header in _headers():
        copy = work / "include" / header.relative_to(include_dir())
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(header.read_bytes())


def place_prelude(work: Path, compiler: Compiler, options: tuple[str, ...]) -> tuple[str, ...]:
    """Puts the compiled prelude beside the headers in ``work``; returns the options that include it ahead of a source.

    Where it cannot be made, the options include the plain header: slower, and the same code.
    """
    compiled = _compiled(compiler, tuple(o for o in options if not o.startswith("-Wl,") and o not in _LINKING))
    return _FOR_SOURCE if compiled is None else _ahead(work, compiled.read_bytes(), compiler)


def _compiled(compiler: Compiler, options: tuple[str, ...]) -> Path | None:
    """The compiled prelude in the cache, or None when this compiler makes none that serves in another folder: an empty
    file remembers that."""
    key = stable_hash([compiler.path, compiler.version, list(options), headers_hash(), "tried"], 32)
    stored = cache_dir() / "prelude" / f"{key}.pch"
    if stored.is_file() or key in _refused:
        return stored if stored.is_file() and stored.stat().st_size else None
    with draft_folder() as work:
        place(work)
        extra = ("-Xclang", "-fno-pch-timestamp") if compiler.name == "clang++" else ()
        command = (compiler.path, *options, *extra, "-Iinclude", "-x", "c++-header", PRELUDE, "-o", "prelude.out")
        if run(command, work, _LIMITS, compilers.toolchain(compiler)).code != 0:
            _refused.add(key)
            return None
        with os.fdopen(os.open(work / "prelude.out", os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            made = file.read()
    if not _serves(made, compiler, options):
        made = b""
    store.write_whole(stored, made)
    return stored if made else None


def _serves(made: bytes, compiler: Compiler, options: tuple[str, ...]) -> bool:
    """Whether a source compiles with it elsewhere: old versions of clang look for the headers where they were."""
    with draft_folder() as work:
        place(work)
        names = ("abi", "freestanding", "math")
        (work / "empty.cc").write_text("".join(f"#include <kforge/{name}.h>\n" for name in names))
        command = (compiler.path, *options, *_ahead(work, made, compiler), "-c", "empty.cc", "-o", "empty.o")
        return run(command, work, _LIMITS, compilers.toolchain(compiler)).code == 0


def _ahead(work: Path, made: bytes, compiler: Compiler) -> tuple[str, ...]:
    """Puts a compiled prelude into ``work``; the options that include it."""
    if compiler.name == "g++":  # found by its name, beside the header
        (work / f"{PRELUDE}.gch").write_bytes(made)
        return _FOR_SOURCE
    (work / "prelude.pch").write_bytes(made)
    # The headers that it was made from lay in another folder, and are the same by its key: no need to look for them.
    return ("-Iinclude", "-Xclang", "-fno-validate-pch", "-include-pch", "prelude.pch")


def _headers() -> list[Path]:
    return sorted(include_dir().rglob("*.h"))


@lru_cache(maxsize=256)
def _file_hash(path: Path, _modified: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
