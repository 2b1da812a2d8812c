"""Model files, tokenizers, and shapes turned into workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from kforge.models.model import Model


def load(path: str | os.PathLike[str]) -> Model:
    """Opens a GGUF file, a safetensors folder, or a model by the name that ``kforge model get`` knows, fetched if need
    be; a path that exists wins. Tensors are read when asked for.

    Raises ``KforgeError`` with one sentence that names the file and what is wrong with it.
    """
    from kforge.models.fetch import resolve
    from kforge.models.gguf_file import GGUFModel
    from kforge.models.safetensors_file import SafetensorsModel

    where = resolve(path)
    return SafetensorsModel(where) if where.is_dir() else GGUFModel(where)
