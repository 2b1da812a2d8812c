"""Loaded kernels and programs of launches."""

from __future__ import annotations

import ctypes
import dataclasses
import statistics
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from kforge.core.errors import KforgeError
from kforge.core.image import Image
from kforge.native.library import ErrorText, library
from kforge.native.team import Team

_ALIGNMENT = 64


class Kernel:
    """An admitted image mapped into this process, code r-x and constants r--."""

    def __init__(self, image: Image) -> None:
        self._map(image.blob())

    @classmethod
    def from_blob(cls, blob: bytes) -> Kernel:
        """From ``Image.blob()`` bytes. Raises KforgeError when they are malformed."""
        kernel = cls.__new__(cls)
        kernel._map(blob)
        return kernel

    def _map(self, blob: bytes) -> None:
        native = library()
        error = ErrorText()
        handle = native.kf_kernel_load(blob, len(blob), error.buffer, error.size)
        if not handle:
            raise KforgeError(f"cannot load the kernel image: {error}")
        self.handle: int = handle
        weakref.finalize(self, native.kf_kernel_delete, handle).atexit = False

    def scratch_bytes(self, axes: np.ndarray, threads: int) -> int:
        """Bytes of scratch that a call with these axes (i64) needs; 0 when the kernel asks for none."""
        values = np.ascontiguousarray(axes, dtype=np.int64)
        return int(library().kf_kernel_scratch_bytes(self.handle, _pointer(values, ctypes.c_int64), threads))

    @property
    def address_range(self) -> range:
        base = int(library().kf_kernel_base(self.handle))
        return range(base, base + int(library().kf_kernel_bytes(self.handle)))


@dataclass(frozen=True)
class _Launch:
    """What a launch keeps alive."""

    label: str
    kernel: Kernel
    tensors: tuple[np.ndarray, ...]
    axes: np.ndarray
    scalars: np.ndarray
    scratch_bytes: int


class Program:
    """A list of launches that one call replays on a team.

    Before each launch every thread's MXCSR is at its default; between launches is a full barrier. Used by one thread at
    a time. Programs of one team share its scratch.
    """

    def __init__(self, team: Team) -> None:
        self._native = library()
        self._team = team
        self._launches: list[_Launch] = []
        self._scratch: np.ndarray | None = None
        self._handle = self._native.kf_program_new(team.handle)
        self._finalizer = weakref.finalize(self, self._native.kf_program_delete, self._handle)
        self._finalizer.atexit = False

    def add(self, kernel: Kernel, tensors: Sequence[np.ndarray], axes: np.ndarray, scalars: np.ndarray,
            label: str = "", *, max_axes: np.ndarray | None = None) -> int:
        """Adds a launch and returns its index.

        Tensors are passed by address with their strides in elements; they are kept alive, and their contents may
        change between replays. ``axes`` (i64) and ``scalars`` (f64) are kept, not copied: what is written to them is
        read by the next replay. ``max_axes`` (default: ``axes`` now) is what scratch is reserved for. Raises
        KforgeError for a tensor that the ABI does not allow.
        """
        for i, tensor in enumerate(tensors):
            check_tensor(tensor, f"{label or 'launch'}: tensor {i}")
        for name, values, dtype in (("axes", axes, np.int64), ("scalars", scalars, np.float64)):
            if values.dtype != dtype or values.ndim != 1 or not values.flags.c_contiguous:
                raise KforgeError(f"{label or 'launch'}: {name} must be a contiguous {np.dtype(dtype)} vector")
        largest = axes if max_axes is None else max_axes
        scratch = kernel.scratch_bytes(largest, self._team.threads)
        data = (ctypes.c_void_p * len(tensors))(*(t.ctypes.data for t in tensors))
        ranks = np.array([t.ndim for t in tensors], dtype=np.int64)
        strides = np.array([s // t.itemsize for t in tensors for s in t.strides], dtype=np.int64)
        index = self._native.kf_program_add(self._open_handle(), kernel.handle, len(tensors), data,
                                            _pointer(ranks, ctypes.c_int64), _pointer(strides, ctypes.c_int64),
                                            _pointer(axes, ctypes.c_int64), _pointer(scalars, ctypes.c_double))
        self._launches.append(_Launch(label, kernel, tuple(tensors), axes, scalars, scratch))
        if scratch > 0:
            self._team.need_scratch(scratch)
            self._scratch = None  # told to the launches before the next replay
        return int(index)

    def run(self) -> None:
        """Replays all launches, without the interpreter's lock. Raises KforgeError when axes outgrew the scratch."""
        if self._scratch is not self._team.scratch:
            self._place_scratch()
        self._team.handle  # noqa: B018  (raises after a fork or close)
        status = self._native.kf_program_run(self._open_handle())
        if status >= 0:
            self._outgrown(status)

    def reserve(self) -> None:
        """Makes sure of the scratch that every launch's axes want now, where they may have come to want more."""
        for i, launch in enumerate(self._launches):
            scratch = launch.kernel.scratch_bytes(launch.axes, self._team.threads)
            if scratch > launch.scratch_bytes:
                self._launches[i] = dataclasses.replace(launch, scratch_bytes=scratch)
                self._team.need_scratch(scratch)
                self._scratch = None

    def profile(self, replays: int) -> list[float]:
        """Median seconds of each launch over that many replays, its closing barrier included."""
        if self._scratch is not self._team.scratch:
            self._place_scratch()
        self._team.handle  # noqa: B018
        times = np.zeros((replays, len(self._launches)), dtype=np.int64)
        status = self._native.kf_program_profile(self._open_handle(), replays, _pointer(times, ctypes.c_int64))
        if status >= 0:
            self._outgrown(status)
        return [statistics.median(column.tolist()) * 1e-9 for column in times.T]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(launch.label for launch in self._launches)

    @property
    def calls(self) -> tuple[int, ...]:
        """How often each launch has run, in the order in which they were added."""
        handle = self._open_handle()
        return tuple(int(self._native.kf_program_calls(handle, i)) for i in range(len(self._launches)))

    def __len__(self) -> int:
        return len(self._launches)

    def close(self) -> None:
        self._finalizer()
        self._launches.clear()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _open_handle(self) -> int:
        if not self._finalizer.alive:
            raise KforgeError("the program was closed")
        return int(self._handle)

    def _place_scratch(self) -> None:
        self._scratch = self._team.scratch
        for i, launch in enumerate(self._launches):
            if launch.scratch_bytes > 0 and self._scratch is not None:
                address = self._scratch.ctypes.data
                self._native.kf_program_set_scratch(self._open_handle(), i, address, launch.scratch_bytes)

    def _outgrown(self, index: int) -> None:
        launch = self._launches[index]
        raise KforgeError(f"{launch.label or f'launch {index}'}: axes {launch.axes.tolist()} need more scratch than "
                          f"the {launch.scratch_bytes} bytes reserved: add it with the largest axes as max_axes")


def check_tensor(tensor: np.ndarray, what: str) -> None:
    """Raises KforgeError for a tensor that the ABI does not allow."""
    if tensor.ctypes.data % _ALIGNMENT != 0 and tensor.size > 0:
        raise KforgeError(f"{what} is not {_ALIGNMENT}-byte aligned: take it from an Arena")
    if tensor.ndim == 0 or (tensor.shape[-1] > 1 and tensor.strides[-1] != tensor.itemsize):
        raise KforgeError(f"{what} must have innermost stride 1, not strides {tensor.strides}")
    if any(stride % tensor.itemsize for stride in tensor.strides):
        raise KforgeError(f"{what} has strides {tensor.strides} that are not whole elements")


def _pointer(values: np.ndarray, kind: type[ctypes._SimpleCData]) -> ctypes._Pointer:
    return values.ctypes.data_as(ctypes.POINTER(kind))
