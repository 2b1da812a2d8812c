"""Logits bit for bit: batch 1, batch 8, chunk sizes, kernel sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams


def text_bits(engine: Engine, tokens: list[int], chunk: int) -> np.ndarray:
    """i32[T, V]: the bits of the logits after every token, ``chunk`` tokens a step."""
    return engine.logits(tokens, chunk).view(np.int32)


def generated_bits(engine: Engine, prompts: Sequence[list[int]], tokens: int) -> list[np.ndarray]:
    """By prompt i32[tokens, V]: the bits of the logits that each generated token was chosen from, all as one batch."""
    rows: dict[int, list[np.ndarray]] = {}
    engine.on_logits = lambda sequence, _, logits: rows.setdefault(sequence, []).append(logits.view(np.int32).copy())
    try:
        done = engine.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True))
    finally:
        engine.on_logits = None
    return [np.stack(rows[c.sequence]) for c in done]


def differing(a: np.ndarray, b: np.ndarray) -> int:
    """How many logits have different bits; all of them when the shapes differ."""
    return int((a != b).sum()) if a.shape == b.shape else max(a.size, b.size)
