"""What the engine asks of whatever computes a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kforge.core.defaults import require_types
from kforge.core.errors import KforgeError
from kforge.engine.steps import StepInputs, StepShape

MAX_THREADS = 1024


@dataclass(frozen=True)
class KernelUse:
    """Proof of engagement: a kernel that ran, for what, and how often."""

    problem: str  # Problem.key
    label: str  # first call that it serves, for instance "layers.0.qkv"
    hash: str  # candidate hash; "torch" for the reference
    template: str
    tier: str  # tier of the look-up; "default" for shipped templates
    numerics: str
    calls: int


@dataclass(frozen=True)
class RunnerOptions:
    """Choices that hold for the life of an engine; see ``Engine``."""

    threads: int | None
    kv: str
    act: str
    rows: int | None
    torch_dtype: str
    isolate: bool | None = None  # kernels in a process of their own; None: those from elsewhere

    def __post_init__(self) -> None:
        require_types(self.kv, self.act)
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise KforgeError(f"{self.threads} threads are not possible: use 1 to {MAX_THREADS}, best one per core")


@dataclass(frozen=True)
class LaunchTime:
    """Seconds of one launch of a program, its closing barrier included."""

    label: str
    problem: str
    seconds: float


class Runner(Protocol):
    """Computes steps: the engine fills ``inputs``, calls ``run``, reads row r of ``greedy`` and ``logits``."""

    inputs: StepInputs
    greedy: np.ndarray  # i32[max_sequences]
    logits: np.ndarray  # f32[max_sequences, V]
    isolated: bool  # kernels run in a process of their own

    def run(self, shape: StepShape) -> None:
        """Computes one step; nothing of ``inputs`` is read after it returns."""

    def kernels_used(self) -> list[KernelUse]: ...

    def close(self) -> None: ...
