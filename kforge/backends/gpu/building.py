"""Source to artifact for languages whose compiler leaves one binary, for a named GPU that need not be here."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Protocol

from kforge.backends.cpp import headers
from kforge.backends.gpu import store
from kforge.backends.gpu.binary import MOST_BYTES
from kforge.backends.gpu.compiling import LIMITS, BuildLimits, failure, warned
from kforge.backends.gpu.mix import Mix
from kforge.backends.gpu.packing import Compiled, packed, unfit
from kforge.core.drafts import draft_folder, left
from kforge.core.errors import KforgeError
from kforge.core.paths import cache_dir
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure, FailureClass
from kforge.core.workload import stable_hash
from kforge.harness.sandbox import Limits, run


class Toolchain(Protocol):
    """A compiler with what disassembles its binaries. ``source`` and ``output``: names in the working folder."""

    @property
    def source(self) -> str: ...

    @property
    def output(self) -> str: ...

    @property
    def label(self) -> str:
        """Name and version."""

    @property
    def readable(self) -> tuple[str, ...]:
        """What the command reads beside the system's folders."""

    @property
    def identity(self) -> list[str]:
        """What the binary, or what is said of it, depends on beside label and options."""

    def options(self, arch: str) -> tuple[str, ...]: ...

    def files(self, entries: tuple[str, ...]) -> dict[str, str]:
        """What else it reads in the working folder: name -> text."""

    def command(self, arch: str) -> tuple[str, ...]:
        """Compiles ``source`` to ``output`` in the working folder, where kforge's headers lie in ``include``."""

    def mixes(self, work: Path, entries: tuple[str, ...]) -> dict[str, Mix]:
        """Of the kernels that can be disassembled, after the command has run."""


def build(candidate: Candidate, target: Target, tool: Toolchain, limits: BuildLimits = LIMITS) -> Artifact | Failure:
    """The artifact, from the cache when the same was built before. Raises KforgeError when that cannot be written."""
    if not candidate.launches:
        return Failure(FailureClass.TEMPLATE, f"{candidate.template} says no launch: its header needs [[launch]]")
    options, entries = tool.options(target.arch), tuple(dict.fromkeys(launch.entry for launch in candidate.launches))
    files = {tool.source: candidate.source, **tool.files(entries)}
    key = stable_hash([files, tool.label, tool.identity, list(options), repr(candidate.launches),
                       headers.headers_hash(), store.ABI_VERSION], 40)
    folder = cache_dir() / "artifacts"
    if (cached := store.load(folder, key, candidate.backend, candidate.hash)) is not None:
        return unfit(cached, target) or cached
    begin = time.monotonic()
    try:
        with draft_folder() as work:
            for name, text in files.items():
                (work / name).write_text(text, encoding="utf-8")
            headers.place(work)
            outcome = run(tool.command(target.arch), work,
                          Limits(limits.seconds, limits.memory_bytes, limits.output_bytes), tool.readable)
            if (wrong := failure(outcome, tool.label.split()[0], tool.source, candidate.source, limits)) is not None:
                return wrong
            try:
                data = left(work / tool.output, MOST_BYTES)
            except OSError as error:
                return Failure(FailureClass.COMPILE, f"{tool.label.split()[0]} left no binary: {error.strerror}",
                               outcome.text[-4000:])
            seconds = time.monotonic() - begin
            mixes = tool.mixes(work, entries)
    except UnicodeEncodeError as error:
        return Failure(FailureClass.COMPILE, f"the source is no Unicode text: {error.reason} at {error.start}")
    except OSError as error:  # of kforge's own files
        raise KforgeError(f"cannot build in {tempfile.gettempdir()}: {error.strerror}; free some space, or set TMPDIR "
                          "to another folder") from error
    said = warned(candidate.source) + outcome.text
    artifact = packed(candidate, target, Compiled(tool.label, options, seconds, said), data, mixes)
    if isinstance(artifact, Failure):
        return artifact
    store.save(folder, key, artifact)
    return unfit(artifact, target) or artifact
