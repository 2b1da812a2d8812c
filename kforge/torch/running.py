"""Kernels on torch's tensors: one launch on a team of threads that all operators of the process share."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from kforge.core.dtypes import DType
from kforge.core.image import Image
from kforge.native import Kernel, Program, Team

if TYPE_CHECKING:
    from collections.abc import Mapping

ALIGNMENT = 64  # of a tensor's first byte: kforge/abi.h
DTYPES = {
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
}


@dataclass
class Workers:
    """A team of threads and the kernels that it has mapped. One launch at a time. A forked child starts its own."""

    threads: int
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _team: Team | None = None
    _process: int = 0
    _kernels: dict[str, Kernel] = field(default_factory=dict)

    def launch(
        self, image: Image, key: str, tensors: Sequence[np.ndarray], axes: Sequence[int], scalars: Sequence[float]
    ) -> None:
        """``key`` names the image. Tensors are as the ABI wants them (``placed``)."""
        with self._lock:
            team = self._own_team()
            if key not in self._kernels:
                self._kernels[key] = Kernel(image)
            with Program(team) as program:
                program.add(self._kernels[key], tensors, np.array(axes, np.int64), np.array(scalars, np.float64), key)
                program.run()

    def _own_team(self) -> Team:
        if self._team is None or self._process != os.getpid():
            self._team, self._process = Team(self.threads), os.getpid()
            self._kernels.clear()
        return self._team


_workers: dict[int, Workers] = {}


def workers(threads: int) -> Workers:
    """Those of so many threads, started once."""
    return _workers.setdefault(threads, Workers(threads))


def placed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it where the ABI does not allow its place or its strides."""
    strides = tensor.stride()
    inner = tensor.dim() == 0 or tensor.shape[-1] <= 1 or strides[-1] == 1
    if inner and tensor.data_ptr() % ALIGNMENT == 0 and not tensor.is_neg() and not tensor.is_conj():
        return tensor
    return tensor.contiguous().clone(memory_format=torch.contiguous_format)


def array(tensor: torch.Tensor) -> np.ndarray:
    """The same memory; bf16, which numpy has not, as 16-bit integers."""
    plain = tensor.detach()
    return (plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain).numpy()


def by_name(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> Mapping[str, np.ndarray]:
    return {name: array(tensor) for name, tensor in zip(names, tensors, strict=True)}
