"""Model files that both sides read: GGUF files for llama.cpp, folders of safetensors for vLLM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from kforge.core.errors import KforgeError
from kforge.core.paths import cache_dir
from kforge.models.fetch import resolve
from kforge.models.synth import synth
from kforge.models.synth_folder import write_folder
from kforge.models.synth_plan import plan
from peers.process import Refused


def gguf(name: str) -> Path:
    """A model by name or path; ``synth:NAME:FORMAT[:LAYERS]`` is made once and kept in the cache."""
    if not name.startswith("synth:"):
        return resolve(name)
    _, shape, fmt, *layers = name.split(":")
    cut = f"-{layers[0]}l" if layers else ""
    path = cache_dir() / "models" / f"{shape}{cut}-{fmt}-synth.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        synth(shape, fmt, path, int(layers[0]) if layers else None)
    return path


def folder(shape: str, fmt: str) -> Path:
    """A folder of random weights of this Llama shape, in ``bf16``, or in what ``kforge model synth`` writes as a folder
    (``w8a8``). Made once, kept in the cache. Raises ``Refused`` for a format that cannot be made."""
    path = cache_dir() / "models" / f"{shape}-{fmt}-synth"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        if fmt == "bf16":
            _write_bf16(shape, path)
        else:
            try:
                synth(shape, fmt, path)
            except KforgeError as error:
                raise Refused(f"no folder in {fmt} can be made: {error}") from error
    return path


def vocabulary(path: Path) -> int:
    """Tokens that the model of a folder, or of a file, knows."""
    if path.is_dir():
        return json.loads((path / "config.json").read_text())["vocab_size"]
    from kforge.models import load

    return load(path).config.vocab


def _write_bf16(shape: str, path: Path) -> None:
    """``synth`` writes this format as a GGUF file."""
    part = path.with_name(path.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    write_folder(plan(shape, "bf16"), part, seed=0)
    part.rename(path)
