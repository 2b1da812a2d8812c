"""Triton as it is installed here, found without importing it: only children in the sandbox import it."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from kforge.core.errors import KforgeError
from kforge.core.target import Target

LEAST = (3, 6)
_CHILD = Path(__file__).resolve().parent / "child"
_VERSION = re.compile(r"^__version__ = ['\"]([0-9]+)\.([0-9]+)([^'\"]*)['\"]", re.MULTILINE)
# What binaries are built for: how Triton calls it, and the threads of a warp. The rest of a chip is its target's.
ARCHES = {
    "sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "sm_100": ("cuda", 100, 32), "sm_120": ("cuda", 120, 32),
    "gfx90a": ("hip", "gfx90a", 64), "gfx942": ("hip", "gfx942", 64), "gfx950": ("hip", "gfx950", 64),
    "gfx1100": ("hip", "gfx1100", 32),
}


@dataclass(frozen=True)
class Triton:
    folder: Path  # of the package
    version: str

    @property
    def disassembler(self) -> Path:
        """NVIDIA's nvdisasm, which the package brings."""
        return self.folder / "backends" / "nvidia" / "bin" / "nvdisasm"


def find() -> Triton | str:
    """The installed Triton, or why there is none to use."""
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.origin:
        return "Triton is not installed: pip install 'triton>=3.6'"
    folder = Path(spec.origin).parent
    found = _VERSION.search((folder / "__init__.py").read_text(encoding="utf-8"))
    version = f"{found[1]}.{found[2]}{found[3]}" if found else "of an unknown version"
    if found is None or (int(found[1]), int(found[2])) < LEAST:
        return f"Triton {version} is installed; kforge needs {LEAST[0]}.{LEAST[1]} or newer"
    return Triton(folder, version)


def triton() -> Triton:
    """Raises KforgeError where there is none to use."""
    found = find()
    if isinstance(found, str):
        raise KforgeError(found)
    return found


def cannot_build(target: Target) -> str:
    """Why Triton cannot build for it here; "" when it can."""
    if target.arch not in ARCHES:
        return f"Triton kernels are built for {', '.join(ARCHES)}, not {target.arch} ({target.name})"
    found = find()
    return found if isinstance(found, str) else ""


def command(script: str) -> list[str]:
    """Runs a file of ``child/`` with nothing but the standard library in reach; it is told where the rest lies."""
    return [str(Path(sys.executable).resolve()), "-I", "-S", "-B", "-X", "utf8", str(_CHILD / script)]


def readable(found: Triton, *packages: str) -> tuple[str, ...]:
    """What a child may read: Python and its standard library, Triton with its tools, and these packages."""
    places = ["/dev/urandom", "/proc/cpuinfo", sys.base_prefix, sysconfig.get_path("stdlib"),
              sysconfig.get_path("platstdlib"), str(_CHILD), str(found.folder)]
    for package in packages:
        folder = package_folder(package)
        places += [str(folder), str(folder.with_name(folder.name + ".libs"))]
    return tuple(dict.fromkeys(place for place in places if place and os.path.exists(place)))


def package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin:
        raise KforgeError(f"{name} is not installed, which checking Triton kernels needs")
    return Path(spec.origin).parent
