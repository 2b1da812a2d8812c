"""The KV cache of the torch reference."""

from __future__ import annotations

import torch

from kforge.operators.kv_quantised import MOST, SMALLEST_AMAX

_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8}


class TorchCache:
    """Keys and values [places, pages, positions, Hkv, D], all zero at first. Integers have a float32 scale for each
    position and head."""

    def __init__(self, shape: tuple[int, int, int, int, int], kv: str) -> None:
        self._parts = [torch.zeros(shape, dtype=_TYPES[kv]) for _ in ("k", "v")]
        self._scales = [torch.zeros(shape[:4]) for _ in ("k", "v")] if kv == "i8" else []

    def write(self, place: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """k and v [T, Hkv, D] to ``slots`` [T]; a slot is page * positions + offset."""
        for i, new in enumerate((k, v)):
            if self._scales:
                wide = new.float()
                amax = wide.abs().amax(-1)
                self._scales[i][place].flatten(0, 1)[slots] = amax / MOST + (amax - amax)
                inverse = torch.where(amax >= SMALLEST_AMAX, MOST / amax, 0)
                new = (wide * inverse[..., None]).nan_to_num().round().clamp(-MOST, MOST)
            self._parts[i][place].flatten(0, 1)[slots] = new.to(self._parts[i].dtype)

    def read(self, place: int, pages: torch.Tensor, context: int, dtype: torch.dtype
             ) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v [1, Hkv, context, D] of the first ``context`` positions in these pages."""
        k, v = (self._read(i, place, pages)[:context].to(dtype).transpose(0, 1)[None] for i in range(2))
        return k, v

    def _read(self, i: int, place: int, pages: torch.Tensor) -> torch.Tensor:
        values = self._parts[i][place][pages].flatten(0, 1)
        return values * self._scales[i][place][pages].flatten(0, 1)[..., None] if self._scales else values
