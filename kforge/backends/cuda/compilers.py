"""Which CUDA compiler is here: NVRTC, a library from pip that needs neither a GPU nor a driver, else nvcc."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kforge.backends.gpu.compiling import MOST_TEXT
from kforge.backends.gpu.mix import Mix, of_sass
from kforge.backends.triton.installed import find as find_triton
from kforge.core.drafts import left
from kforge.harness.sandbox import Limits, run

# And the threads of a warp.
ARCHES = dict.fromkeys(("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"), 32)
_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12")
_LIBRARY = re.compile(r"libnvrtc\.so(\.\d+)*\Z")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.", re.MULTILINE)
_RELEASE = re.compile(r"release \d+\.\d+, V([\d.]+)")
_LEAST = (12, 8)  # knows sm_100 and sm_120
_CHILD = Path(__file__).resolve().parent / "nvrtc_child.py"
# Every rounding is the source's: no contraction, no flushing, division and square root as IEEE has them.
_ROUNDING = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")


@dataclass(frozen=True)
class CudaCompiler:
    """See ``kforge.backends.gpu.building.Toolchain``."""

    name: str  # "nvrtc" or "nvcc"
    version: str
    path: Path  # the library or the program
    source: str = "kernel.cu"
    output: str = "kernel.cubin"

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def identity(self) -> list[str]:
        return [str(disassembler())]

    def options(self, arch: str) -> tuple[str, ...]:
        common = ("-std=c++17", "-Iinclude", *_ROUNDING)
        if self.name == "nvrtc":
            return (f"--gpu-architecture={arch}", *common)
        return (f"-arch={arch}", "-cubin", *common)

    def files(self, entries: tuple[str, ...]) -> dict[str, str]:
        return {}

    def command(self, arch: str) -> tuple[str, ...]:
        if self.name == "nvrtc":
            python = str(Path(sys.executable).resolve())
            return (python, "-I", "-S", "-B", str(_CHILD), str(self.path), *self.options(arch))
        return (str(self.path), *self.options(arch), "kernel.cu", "-o", "kernel.cubin")

    @property
    def readable(self) -> tuple[str, ...]:
        if self.name == "nvcc":
            return (str(self.path.resolve().parent.parent),)
        python = (sys.base_prefix, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(_CHILD))
        return tuple(dict.fromkeys((str(self.path.parent), *python)))

    def mixes(self, work: Path, entries: tuple[str, ...]) -> dict[str, Mix]:
        """None without nvdisasm. It reads what an untrusted source became, so it is confined like the compiler."""
        tool = disassembler()
        if tool is None:
            return {}
        outcome = run(("/bin/sh", "-c", f"{tool} -c {self.output} > kernel.sass"), work, Limits(60, 4 << 30, MOST_TEXT),
                      (str(tool),))
        if outcome.code != 0:
            return {}
        text = left(work / "kernel.sass", MOST_TEXT).decode(errors="replace")
        found = {part.split(",", 1)[0].strip('" '): part for part in _SECTION.split(text)[1:]}
        return {entry: of_sass(found[entry]) for entry in entries if entry in found}


def find() -> CudaCompiler | str:
    """The compiler, NVRTC first, or why there is none to use."""
    too_old = []
    for name in _PACKAGES:
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        library = next((file for file in package.files or () if _LIBRARY.match(file.name)), None)
        if library is None:
            continue
        if tuple(map(int, package.version.split(".")[:2])) >= _LEAST:
            return CudaCompiler("nvrtc", package.version, Path(str(package.locate_file(library))).resolve())
        too_old.append(f"{name} {package.version}")
    path = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    version = _nvcc_version(path) if Path(path).exists() else ""
    if version and tuple(map(int, version.split(".")[:2])) >= _LEAST:
        return CudaCompiler("nvcc", version, Path(path))
    if version:
        too_old.append(f"nvcc {version}")
    return (f"{' and '.join(too_old)} is too old: kforge needs CUDA {_LEAST[0]}.{_LEAST[1]}" if too_old else
            "there is no CUDA compiler: pip install nvidia-cuda-nvrtc (it needs neither a GPU nor a driver)")


def disassembler() -> Path | None:
    """nvdisasm, of a toolkit or of Triton's package."""
    if path := shutil.which("nvdisasm"):
        return Path(path)
    triton = find_triton()
    return None if isinstance(triton, str) or not triton.disassembler.exists() else triton.disassembler


@lru_cache(maxsize=8)
def _nvcc_version(path: str) -> str:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = _RELEASE.search(said)
    return found[1] if found else ""
