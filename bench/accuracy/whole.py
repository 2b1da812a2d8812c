"""Logits of the whole model in the float variant beside ``transformers`` in float32, both against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[1] / "data"

Logits = Callable[[list[int]], np.ndarray]


@dataclass(frozen=True)
class LogitsError:
    """Root mean square and largest error of a text's logits (all tokens, all of the vocabulary), in logits."""

    ours_rms: float
    theirs_rms: float
    ours_max: float
    theirs_max: float

    @property
    def rms_ratio(self) -> float:
        return self.ours_rms / self.theirs_rms


def prompts() -> list[str]:
    """The 50 prompts of ``data/prompts.txt``."""
    return [line.replace("\\n", "\n") for line in (DATA / "prompts.txt").read_text("utf-8").splitlines()]


def compare(texts: Sequence[list[int]], truth: Logits, ours: Logits, theirs: Logits) -> list[LogitsError]:
    """One result per text of token ids."""
    results = []
    for tokens in texts:
        wanted = truth(tokens)
        a, b = (np.abs(made(tokens) - wanted) for made in (ours, theirs))
        results.append(LogitsError(_rms(a), _rms(b), float(a.max()), float(b.max())))
    return results


def pooled_ratio(results: Sequence[LogitsError]) -> float:
    """Ratio of the errors' root mean squares over all texts, each text weighing the same."""
    ours, theirs = (np.array([getattr(r, f"{side}_rms") for r in results]) for side in ("ours", "theirs"))
    return float(np.sqrt((ours**2).mean() / (theirs**2).mean()))


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt((x * x).mean()))
