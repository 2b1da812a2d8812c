"""Kernels made by kforge as custom operators of torch, without kforge: what an exported package runs on.

Exported packages carry this file as it is: it imports nothing of kforge.

A kernel is a flat image of machine code that was checked to be pure computation when this package was made: no
library, no system call, no memory but its arguments'. ``libkforge.so`` maps it and calls it on every thread of a team.
``kernels.json`` says how each is called and at which sizes it was measured.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .calling import Caller, Launch

_NEAREST = 4.0  # the factor by which an axis may differ from where a kernel was measured
_VOID, _I64 = ctypes.c_void_p, ctypes.c_int64
_FUNCTIONS = {
    "kf_team_new": (_VOID, [ctypes.c_int32, _VOID, ctypes.c_char_p, _I64]),
    "kf_team_delete": (None, [_VOID]),
    "kf_kernel_load": (_VOID, [ctypes.c_char_p, _I64, ctypes.c_char_p, _I64]),
    "kf_kernel_scratch_bytes": (_I64, [_VOID, _VOID, ctypes.c_int32]),
    "kf_program_new": (_VOID, [_VOID]),
    "kf_program_delete": (None, [_VOID]),
    "kf_program_add": (_I64, [_VOID, _VOID, _I64, _VOID, _VOID, _VOID, _VOID, _VOID]),
    "kf_program_set_scratch": (None, [_VOID, _I64, _VOID, _I64]),
    "kf_program_run": (_I64, [_VOID]),
}


class Library:
    """``libkforge.so`` with one team of threads, as many as torch uses, and the kernels that it has mapped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._native = ctypes.CDLL(str(folder / "libkforge.so"))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._native, name)
            function.restype, function.argtypes = result, arguments
        self._lock = threading.Lock()
        self._team: tuple[int, int, int] = (0, 0, 0)  # process, threads, handle
        self._kernels: dict[str, int] = {}
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def launch(self, file: str, tensors: Sequence[np.ndarray], axes: Sequence[int], scalars: Sequence[float]) -> None:
        native = self._native
        ordered, numbers = np.array(axes, np.int64), np.array(scalars, np.float64)
        with self._lock:
            team, threads = self._own_team()
            kernel = self._kernel(file)
            program = native.kf_program_new(team)
            try:
                data = np.array([t.ctypes.data for t in tensors], np.uint64)
                ranks = np.array([t.ndim for t in tensors], np.int64)
                strides = np.array([s // t.itemsize for t in tensors for s in t.strides], np.int64)
                native.kf_program_add(program, kernel, len(tensors), data.ctypes.data, ranks.ctypes.data,
                                      strides.ctypes.data, ordered.ctypes.data, numbers.ctypes.data)
                wanted = native.kf_kernel_scratch_bytes(kernel, ordered.ctypes.data, threads)
                if wanted > 0:
                    if self._scratch.numel() < wanted:
                        self._scratch = torch.empty(wanted, dtype=torch.uint8)  # torch aligns to 64 bytes
                    native.kf_program_set_scratch(program, 0, self._scratch.data_ptr(), wanted)
                if native.kf_program_run(program) >= 0:
                    raise RuntimeError(f"{file}: it wants more scratch than it asked for")
            finally:
                native.kf_program_delete(program)

    def _own_team(self) -> tuple[int, int]:
        """Its handle and its threads; a forked child starts its own."""
        process, threads, handle = self._team
        wanted = max(torch.get_num_threads(), 1)
        if (process, threads) != (os.getpid(), wanted):
            if handle and process == os.getpid():
                self._native.kf_team_delete(handle)
            handle = self._checked("start the threads", self._native.kf_team_new, wanted, None)
            self._team = (os.getpid(), wanted, handle)
        return handle, wanted

    def _kernel(self, file: str) -> int:
        if file not in self._kernels:
            blob = (self.folder / file).read_bytes()
            self._kernels[file] = self._checked(f"map {file}", self._native.kf_kernel_load, blob, len(blob))
        return self._kernels[file]

    def _checked(self, what: str, function: Any, *arguments: Any) -> int:
        error = ctypes.create_string_buffer(256)
        handle = function(*arguments, error, len(error))
        if not handle:
            raise RuntimeError(f"cannot {what}: {error.value.decode(errors='replace')}")
        return int(handle)


class Function:
    """One problem's kernels; call it with the tensors that ``schema`` names, in its order."""

    def __init__(self, library: Library, namespace: str, said: Mapping[str, Any]) -> None:
        self.name: str = said["name"]
        self.schema: str = said["schema"]
        self._library = library
        self._kernels, self._default = said["kernels"], said["default"]
        self.op = Caller(namespace, said, self._launch).op

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self.op(*values, **named)

    def kernel(self, **axes: int) -> Mapping[str, Any]:
        """Which kernel serves a call at these axes: the nearest of those measured at or above them, else the nearest
        below, neither further than four times off; else the default."""
        def distance(kernel: Mapping[str, Any]) -> float:
            ratios = [max(n / max(axes[a], 1), axes[a] / max(n, 1)) for a, n in kernel["bucket"].items() if a in axes]
            return max(ratios, default=1.0)

        near = [k for k in self._kernels if distance(k) <= _NEAREST]
        above = [k for k in near if all(n >= axes[a] for a, n in k["bucket"].items() if a in axes)]
        found: Mapping[str, Any] = min(above or near, key=distance, default=self._default)
        return found

    def _launch(self, launch: Launch) -> None:
        file = self.kernel(**launch.axes)["file"]
        self._library.launch(file, launch.tensors, launch.ordered, launch.scalars)


def functions(folder: Path, namespace: str) -> dict[str, Function]:
    """The package's functions by name. Raises ImportError on a processor that its kernels were not built for."""
    said = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))
    _require_processor(said["arch"], said["features"])
    library = Library(folder)
    return {one["name"]: Function(library, namespace, one) for one in said["functions"]}


def _require_processor(arch: str, features: Sequence[str]) -> None:
    if platform.machine() != arch:
        raise ImportError(f"these kernels are for {arch}, and this processor is {platform.machine()}")
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError as error:
        raise ImportError(f"cannot tell what this processor has: /proc/cpuinfo: {error.strerror}") from None
    lines = [line.partition(":")[2].split() for line in text.splitlines() if line.lower().startswith(("flags", "feat"))]
    if missing := sorted(set(features) - set(lines[0] if lines else ())):
        raise ImportError(f"these kernels were built with {', '.join(missing)}, which this processor does not have")
