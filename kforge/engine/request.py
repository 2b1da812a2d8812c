"""What a caller asks for, and how far the engine has come with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kforge.core.errors import KforgeError


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop.

    ``temperature`` 0 is greedy. Filters apply after the temperature, in this order: ``top_k`` (0: off), ``top_p``
    (1: off; the fewest most probable tokens whose mass reaches it), ``min_p`` (0: off; relative to the most probable).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    max_tokens: int = 128
    ignore_eos: bool = False  # benchmarks decode a fixed number of tokens

    def __post_init__(self) -> None:
        rules = (
            (self.temperature >= 0, f"temperature must be 0 (greedy) or more, got {self.temperature}"),
            (self.top_k >= 0, f"top_k must be 0 (off) or more, got {self.top_k}"),
            (0 < self.top_p <= 1, f"top_p must be above 0 and at most 1, got {self.top_p}"),
            (0 <= self.min_p <= 1, f"min_p must be between 0 and 1, got {self.min_p}"),
            (self.max_tokens >= 1, f"max_tokens must be at least 1, got {self.max_tokens}"),
            (all(self.stop), "a stop string must not be empty"),
        )
        for holds, sentence in rules:
            if not holds:
                raise KforgeError(f"{sentence}.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class FinishReason(StrEnum):
    END = "end"  # the model's own end token
    STOP = "stop"  # a stop string
    LENGTH = "length"  # max_tokens, or the model's longest context


@dataclass(eq=False)
class Sequence:
    """One request in flight. ``tokens`` (prompt, then what was generated) are what is *wanted* in the cache; the first
    ``computed`` of them are there, in the pages of ``table``."""

    id: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    limit: int  # longest context it may reach
    computed: int = 0
    table: list[int] = field(default_factory=list)  # append-only while the sequence runs; emptied when preempted
    table_version: int = 0  # changes whenever the table starts afresh, so that copies know when they are stale
    finish: FinishReason | None = None
    preemptions: int = 0

    @property
    def wanted(self) -> int:
        return len(self.tokens)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]


class Output(NamedTuple):
    """One new token of one sequence. ``text`` is what became printable by it (complete UTF-8, no stop string)."""

    sequence: int
    token: int
    text: str
    finish: FinishReason | None = None


@dataclass(frozen=True)
class Completion:
    """A finished request: generated token ids (the end token included) and their text."""

    sequence: int
    tokens: tuple[int, ...]
    text: str
    finish: FinishReason
