"""The HIP compiler: clang 19 or newer with its AMD GPU target and lld, without any of AMD's own packages."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kforge.backends.gpu.compiling import MOST_TEXT
from kforge.backends.gpu.mix import Mix, of_gcn
from kforge.core.drafts import left

ARCHES = {"gfx90a": 64, "gfx942": 64, "gfx1100": 32}  # and the lanes of a wavefront
_EXPORTS = "exports.map"
_LEAST, _NEWEST = 19, 24
_VERSION = re.compile(r"clang version (?P<whole>(?P<major>\d+)[\d.]*)")


@dataclass(frozen=True)
class HipCompiler:
    """See ``kforge.backends.gpu.building.Toolchain``."""

    path: Path
    version: str
    source: str = "kernel.hip"
    output: str = "kernel.hsaco"
    readable: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"clang {self.version}"

    @property
    def identity(self) -> list[str]:
        return [str(self.path)]

    def options(self, arch: str) -> tuple[str, ...]:
        # Every rounding is the source's: no contraction; division and square root are rounded correctly by default.
        return ("-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", f"--offload-arch={arch}", "-nogpulib",
                "-nogpuinc", "-std=c++17", "-O3", "-ffp-contract=off", "-fno-gpu-flush-denormals-to-zero", "-Iinclude",
                "-save-temps=obj", "-Xoffload-linker", "--gc-sections", "-Xoffload-linker",
                f"--version-script={_EXPORTS}")

    def files(self, entries: tuple[str, ...]) -> dict[str, str]:
        """Kernels are exported, and nothing else: not the variable by which host code would know the binary."""
        names = "; ".join(f"{entry}; \"{entry}.kd\"" for entry in entries)
        return {_EXPORTS: f"{{ global: {names}; local: *; }};\n"}

    def command(self, arch: str) -> tuple[str, ...]:
        """Leaves the assembly beside the binary."""
        return (str(self.path), *self.options(arch), self.source, "-o", self.output)

    def mixes(self, work: Path, entries: tuple[str, ...]) -> dict[str, Mix]:
        """From the assembly that the compiler left."""
        files = sorted(work.glob("*.s"))
        text = left(files[0], MOST_TEXT).decode(errors="replace") if files else ""
        found = {entry: re.search(rf"^{re.escape(entry)}:.*?^\.Lfunc_end\d+:", text, re.MULTILINE | re.DOTALL)
                 for entry in entries}
        return {entry: of_gcn(body.group()) for entry, body in found.items() if body is not None}


def find() -> HipCompiler | str:
    """The newest clang that can, or why there is none to use."""
    names = [f"clang-{n}" for n in range(_NEWEST, _LEAST - 1, -1)] + ["clang"]
    reasons = []
    for path in filter(None, map(shutil.which, names)):
        found = _of(path)
        if isinstance(found, HipCompiler):
            return found
        reasons.append(found)
    return reasons[0] if reasons else f"there is no clang {_LEAST} or newer: apt-get install clang-19 lld-19"


@lru_cache(maxsize=16)
def _of(path: str) -> HipCompiler | str:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
        version = _VERSION.search(said)
        if version is None or int(version["major"]) < _LEAST:
            return f"{path} is older than clang {_LEAST}: apt-get install clang-19 lld-19"
        targets = subprocess.run([path, "--print-targets"], capture_output=True, text=True, timeout=30,
                                 check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run: {error}"
    if "amdgcn" not in targets:
        return f"{path} was built without its target for AMD GPUs"
    if not (Path(path).resolve().parent / "ld.lld").exists() and shutil.which("ld.lld") is None:
        return f"{path} finds no linker: apt-get install lld-{version['major']}"
    return HipCompiler(Path(path), version["whole"])
