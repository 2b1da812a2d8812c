"""What a caller asks for, and how far the engine has come with it."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from kforge.core.errors import KforgeError
from kforge.engine.block_manager import BlockTable

Logprobs = tuple[tuple[int, float], ...]  # (token, natural logarithm of its probability)


class Constraint(Protocol):
    """Which tokens an answer may go on with, for instance by a grammar."""

    def allowed(self, tokens: Tokens[int]) -> np.ndarray | None:
        """bool[V] (shorter: the rest is not allowed): what may follow the answer's ``tokens``; None: anything.

        ``tokens`` are those of the answer so far, without the prompt; what is returned must depend on them alone. At
        least one token must be allowed, the end token when nothing else is; what raises, or allows nothing, ends
        this request with ``FinishReason.FAILED`` and no other.
        """


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop.

    ``temperature`` 0 is greedy. Filters apply after the temperature, in this order: ``top_k`` (0: off), ``top_p``
    (1: off; the fewest most probable tokens whose mass reaches it), ``min_p`` (0: off; relative to the most probable).
    ``logprobs`` n: outputs carry the log probability of their token and of the n most probable ones, by the model alone
    (temperature 1, no filter, no constraint); ``prompt_logprobs`` the same of the prompt's tokens, all with the first
    output. ``priority``: higher runs first. What ``constraint`` does not allow is never chosen.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    max_tokens: int = 128
    ignore_eos: bool = False  # benchmarks decode a fixed number of tokens
    logprobs: int | None = None
    priority: int = 0
    constraint: Constraint | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        rules = (
            (self.temperature >= 0, f"temperature must be 0 (greedy) or more, got {self.temperature}"),
            (self.top_k >= 0, f"top_k must be 0 (off) or more, got {self.top_k}"),
            (0 < self.top_p <= 1, f"top_p must be above 0 and at most 1, got {self.top_p}"),
            (0 <= self.min_p <= 1, f"min_p must be between 0 and 1, got {self.min_p}"),
            (self.max_tokens >= 1, f"max_tokens must be at least 1, got {self.max_tokens}"),
            (all(self.stop), "a stop string must not be empty"),
            (self.logprobs is None or self.logprobs >= 0, f"logprobs must be 0 or more, got {self.logprobs}"),
            (self.prompt_logprobs is None or self.prompt_logprobs >= 0,
             f"prompt_logprobs must be 0 or more, got {self.prompt_logprobs}"),
        )
        for holds, sentence in rules:
            if not holds:
                raise KforgeError(f"{sentence}.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @cached_property
    def plain_greedy(self) -> bool:
        """Whether the most probable token is all that is wanted of the logits."""
        return self.temperature == 0.0 and self.logprobs is None and self.constraint is None


class FinishReason(StrEnum):
    END = "end"  # the model's own end token
    STOP = "stop"  # a stop string
    LENGTH = "length"  # max_tokens, or the model's longest context
    FAILED = "failed"  # its constraint raised or allowed nothing, or its logits are no numbers: see ``Output.error``


@dataclass(eq=False)
class Sequence:
    """One request in flight. ``tokens`` (prompt, then what was generated) are what is *wanted* in the cache; the first
    ``computed`` of them are there, in the pages of ``tables``, less those that no token to come sees."""

    id: int
    tokens: list[int]  # append-only
    prompt_length: int
    params: SamplingParams
    limit: int  # longest context it may reach
    computed: int = 0
    tables: list[BlockTable] = field(default_factory=list)  # by group of layers; emptied when it is preempted
    table_version: int = 0  # changes whenever the tables start afresh, so that copies know when they are stale
    preemptions: int = 0
    prompt_rows: list[Logprobs] = field(default_factory=list)  # entry i is of token i + 1; see wants_prompt_rows
    # The scheduler's: the order of service, and the prefix cache's keys of full pages of ``tokens``. The first
    # ``published`` pages of a table are full and computed; the prompt's up to ``promised`` are to come. All tables
    # reach position ``room``; once ``moves_at`` are computed, there are pages that no token to come sees.
    rank: tuple[int, int] = (0, 0)
    keys: list[bytes] = field(default_factory=list)
    published: int = 0
    promised: int = 0
    room: int = 0
    moves_at: int = 0

    @property
    def wanted(self) -> int:
        return len(self.tokens)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def wants_prompt_rows(self) -> bool:
        """Whether logits inside the prompt are still wanted, so that none of it may be taken from the prefix cache."""
        return self.params.prompt_logprobs is not None and len(self.prompt_rows) < self.prompt_length - 1


class Output(NamedTuple):
    """One new token of one sequence. ``text`` is what became printable by it (complete UTF-8, no stop string).

    A step may bring several of one sequence, in their order (accepted drafts). ``logprobs`` are (token, natural
    logarithm of its probability): the chosen one, then the ``SamplingParams.logprobs`` most probable, best first (the
    chosen one may be among them). ``prompt_logprobs`` come with the first output: one entry for every token of the
    prompt from the second on. A request that failed ends with ``token`` -1 and a sentence in ``error``.
    """

    sequence: int
    token: int
    text: str
    finish: FinishReason | None = None
    logprobs: Logprobs | None = None
    error: str | None = None
    prompt_logprobs: tuple[Logprobs, ...] | None = None


@dataclass(frozen=True)
class Completion:
    """A finished request: generated token ids (the end token included) and their text."""

    sequence: int
    tokens: tuple[int, ...]
    text: str
    finish: FinishReason
