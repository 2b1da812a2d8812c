from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from served import KV_TOKENS, NAME, SEQUENCES, Alone, Served, server

from kforge.engine.engine import Engine
from kforge.engine.kernel_set import DefaultKernels
from kforge.models import load
from kforge.models.synth import synth
from kforge.native import find_compilers
from kforge.targets.files import save_target
from tests.cli.cli_host import host_target


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a probed host and nothing else."""
    if not find_compilers():
        pytest.skip("exact kernels need a C++ compiler, and there is none here")
    path = tmp_path_factory.mktemp("home")
    save_target(host_target(), path / "targets" / "host.toml")
    return path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two small layers with random weights, a tokenizer and a chat template."""
    path = tmp_path_factory.mktemp("model") / f"{NAME}.gguf"
    synth("tiny-llama-test", "q4_0", path)
    return path


@pytest.fixture(scope="session")
def served(tiny: Path, home: Path) -> Iterator[Served]:
    with server(tiny, home) as running:
        yield running


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return served.client()


@pytest.fixture(scope="session")
def alone(tiny: Path, home: Path) -> Alone:
    return Alone(Engine(load(tiny), DefaultKernels(host_target()), kv_tokens=KV_TOKENS, max_sequences=SEQUENCES))
