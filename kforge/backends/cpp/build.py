"""Source to artifact: a locked-down compiler, and a cache addressed by everything that the bytes depend on."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass

from kforge.backends.cpp import compilers, headers, store
from kforge.backends.cpp.admission import examine
from kforge.backends.cpp.elf import MAX_BYTES
from kforge.backends.cpp.flags import flags, host_processor, is_host
from kforge.core.drafts import draft_folder, left
from kforge.core.errors import KforgeError
from kforge.core.paths import cache_dir
from kforge.core.target import Compiler, Target
from kforge.core.trial import Artifact, Candidate, CompilerReport, Failure, FailureClass
from kforge.core.workload import stable_hash
from kforge.harness.sandbox import Limits, Outcome, run

ARCHITECTURES = ("x86_64", "aarch64")  # whose machine code admission knows
_SOURCE = "kernel.cc"
_OUTPUT = "kernel.so"
_DIAGNOSTIC = re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$", re.MULTILINE)
_EXHAUSTED = re.compile(r"[Kk]illed|CPU time limit|File size limit|out of memory|virtual memory exhausted|"
                        r"[Cc]annot allocate memory|bad_alloc|No space left|File too large|final link failed: memory")
_LEAST_FREE = 1 << 20  # bytes of temporary files: below this no compiler gets far
_TMPDIR = "free some space, or set TMPDIR to another folder"
_AROUND = 4  # lines of source shown on each side of an error


@dataclass(frozen=True)
class BuildLimits:
    """Bounds of one compilation."""

    seconds: float = 60.0
    memory_bytes: int = 4 << 30
    output_bytes: int = 64 << 20  # of any file that the compiler writes


def build(candidate: Candidate, target: Target, *, compiler: Compiler | None = None,
          limits: BuildLimits = BuildLimits()) -> Artifact | Failure:
    """The artifact of a candidate of backend ``cpp``, from the cache when the same was built before.

    The parameter ``compiler`` ("gcc" or "clang") chooses among the target's compilers unless ``compiler`` is given. An
    artifact has passed admission. Raises KforgeError when there is no compiler or the cache cannot be written.
    """
    if target.arch not in ARCHITECTURES:
        return Failure(FailureClass.COMPILE, f"C++ kernels are for {' and '.join(ARCHITECTURES)}, not {target.arch}")
    family = dict(candidate.params).get("compiler")
    choice = compilers.choose(target, str(family) if family else None, compiler)
    options = flags(target, choice.compiler.name)
    key = _key(candidate.source, options, choice.compiler, target)
    folder = cache_dir() / "artifacts"
    if (cached := store.load(folder, key, candidate.hash)) is not None:
        return cached
    try:
        built = _compile(candidate, choice.compiler, options, limits, choice.note, target.arch)
    except OSError as error:  # of kforge's own files
        raise KforgeError(f"cannot build in {tempfile.gettempdir()}: {error.strerror}; {_TMPDIR}") from error
    if isinstance(built, Artifact):
        store.save(folder, key, built)
    elif shutil.disk_usage(tempfile.gettempdir()).free < _LEAST_FREE:  # after its folder is gone: not its own doing
        raise KforgeError(f"cannot build in {tempfile.gettempdir()}: it is full; {_TMPDIR}")
    return built


def _compile(candidate: Candidate, compiler: Compiler, options: tuple[str, ...], limits: BuildLimits,
             note: str, arch: str) -> Artifact | Failure:
    try:
        source = candidate.source.encode()
    except UnicodeEncodeError as error:
        return Failure(FailureClass.COMPILE, f"the source is no Unicode text: {error.reason} at {error.start}")
    with draft_folder() as work:
        (work / _SOURCE).write_bytes(source)
        headers.place(work)
        ahead = headers.place_prelude(work, compiler, options)
        command = (compiler.path, *options, *ahead, _SOURCE, "-o", _OUTPUT)
        begin = time.monotonic()
        outcome = run(command, work, Limits(limits.seconds, limits.memory_bytes, limits.output_bytes),
                      compilers.toolchain(compiler))
        seconds = time.monotonic() - begin
        if failure := _failure(outcome, candidate.source, compiler, limits):
            return failure
        try:
            data = left(work / _OUTPUT, MAX_BYTES + 1)
        except OSError as error:
            return Failure(FailureClass.COMPILE, f"{compiler.name} left no object: {error.strerror}", outcome.text)
    found = examine(data, arch)
    if isinstance(found, Failure):
        return found
    report = CompilerReport(f"{compiler.name} {compiler.version}", options, seconds, found.facts.text_bytes,
                            found.facts.spills, found.facts.mix, "\n".join(filter(None, [note, outcome.text[:4000]])))
    return Artifact("cpp", candidate.hash, data, store.ABI_VERSION, report)


def _failure(outcome: Outcome, source: str, compiler: Compiler, limits: BuildLimits) -> Failure | None:
    name = compiler.name
    if outcome.timed_out:
        return Failure(FailureClass.COMPILE_LIMIT, f"{name} took longer than {limits.seconds:g} s",
                       outcome.text[-2000:])
    if outcome.code == 0:
        return None
    first = _DIAGNOSTIC.search(outcome.text)
    if outcome.code < 0 or (_EXHAUSTED.search(outcome.text) and not first):
        return Failure(FailureClass.COMPILE_LIMIT, f"{name} ran into its limit of time ({limits.seconds:g} s), memory "
                       f"({limits.memory_bytes >> 20} MiB) or output ({limits.output_bytes >> 20} MiB)",
                       outcome.text[-2000:])
    if not first:
        return Failure(FailureClass.COMPILE, f"{name} failed: {outcome.text.strip()[-300:]}", outcome.text[-4000:])
    where = f"{first['file']}:{first['line']}"
    return Failure(FailureClass.COMPILE, f"{name}: {where}: {first['text']}",
                   f"{_excerpt(first, source)}\n{outcome.text[:4000]}".strip())


def _excerpt(error: re.Match[str], source: str) -> str:
    """The lines around the error, numbered, the one at fault marked; '' when it lies in a header."""
    if error["file"] != _SOURCE:
        return ""
    lines = source.splitlines()
    at = int(error["line"])
    shown = range(max(1, at - _AROUND), min(len(lines), at + _AROUND) + 1)
    return "\n".join(f"{'>' if n == at else ' '}{n:5} {lines[n - 1]}" for n in shown)


def _key(source: str, options: tuple[str, ...], compiler: Compiler, target: Target) -> str:
    tuned = host_processor()[0] if is_host(target) else ""  # what -mtune=native means
    return stable_hash([source, list(options), asdict(compiler), headers.headers_hash(), store.ABI_VERSION, tuned], 40)
