"""The real model, and engines that tests share because packing and building them costs seconds."""

from __future__ import annotations

import os

import pytest

from kforge.core.errors import KforgeError
from kforge.engine.engine import Engine
from kforge.engine.kernel_set import DefaultKernels
from kforge.engine.weights import Weights
from kforge.models import load
from kforge.models.fetch import get
from kforge.models.model import Model
from kforge.targets.files import load_target

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village,",
    "Water boils at a temperature of",
    "def fibonacci(n):",
    "1, 2, 3, 4,",
    "The quick brown fox",
    "My favourite food is",
    "In the year 1969,",
)


@pytest.fixture(scope="session")
def model() -> Model:
    """SmolLM2-135M: ``KFORGE_TEST_MODEL``, the user's cache, or fetched by name."""
    try:
        return load(os.environ.get("KFORGE_TEST_MODEL") or get())
    except KforgeError as error:
        pytest.skip(f"the real model is not to be had here: {error}")


@pytest.fixture(scope="session")
def kernels() -> DefaultKernels:
    return DefaultKernels(load_target("host"))


@pytest.fixture(scope="session")
def weights(model) -> Weights:
    return Weights(model)


@pytest.fixture(scope="session")
def native(model, kernels, weights) -> Engine:
    """Default kernels with room for everything."""
    return Engine(model, kernels, weights=weights, kv_tokens=4096, max_sequences=16)


@pytest.fixture(scope="session")
def prompts(model) -> list[list[int]]:
    return [model.tokenizer.encode(text) for text in PROMPTS]
