"""Model files, tokenizers, and shapes turned into workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from kforge.models.model import Model


def load(path: str | os.PathLike[str]) -> Model:
    """Opens a GGUF file or a safetensors folder; tensors are read when asked for.

    Raises ``KforgeError`` with one sentence that names the file and what is wrong with it.
    """
    from pathlib import Path

    from kforge.models.gguf_file import GGUFModel
    from kforge.models.safetensors_file import SafetensorsModel

    where = Path(path)
    return SafetensorsModel(where) if where.is_dir() else GGUFModel(where)
