"""Torch's tensors as the kernel ABI wants them.

Exported packages carry this file as it is: it imports nothing of kforge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np

ALIGNMENT = 64  # of a tensor's first byte: kforge/abi.h
DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
}


def placed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it where the ABI does not allow its place or its strides."""
    inner = tensor.dim() == 0 or tensor.shape[-1] <= 1 or tensor.stride()[-1] == 1
    if inner and tensor.data_ptr() % ALIGNMENT == 0 and not tensor.is_neg():
        return tensor
    return tensor.contiguous().clone(memory_format=torch.contiguous_format)


def array(tensor: torch.Tensor) -> np.ndarray:
    """The same memory; bf16, which numpy has not, as 16-bit integers."""
    plain = tensor.detach()
    return (plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain).numpy()
