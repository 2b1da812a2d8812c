"""Compiling small C++ probes inside tests."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

INCLUDE = Path(__file__).parents[2] / "kforge" / "native" / "include"


@functools.cache
def cpu_features() -> frozenset[str]:
    text = Path("/proc/cpuinfo").read_text()
    return frozenset(next((line.split(":")[1] for line in text.splitlines() if line.startswith("flags")), "").split())


@functools.cache
def compile_cpp(source: Path, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The shared library of one source with an instruction set of its own, loaded."""
    compiler = shutil.which("g++") or shutil.which("clang++") or shutil.which("clang++-19")
    assert compiler, "no C++ compiler found: install g++ or clang++"
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "probe.so"
        subprocess.run([compiler, "-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC", *flags, f"-I{INCLUDE}",
                        str(source), "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))
