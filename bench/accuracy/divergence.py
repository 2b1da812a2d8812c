"""Mean KL divergence from the float64 model and perplexity, on a text cut into independent windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

Logits = Callable[[list[int]], np.ndarray]


@dataclass
class Tally:
    """Sums over the positions seen so far. KL is in nats, (float64 reference || model)."""

    positions: int = 0
    predicted: int = 0  # positions whose next token is in the window
    kl: float = 0.0
    kl_squares: float = 0.0
    nll: float = 0.0
    same_top: int = 0
    by_window: list[float] = field(default_factory=list)

    @property
    def mean_kl(self) -> float:
        return self.kl / self.positions

    @property
    def kl_error(self) -> float:
        """Standard error of the mean, positions taken as independent."""
        variance = self.kl_squares / self.positions - self.mean_kl**2
        return math.sqrt(max(variance, 0.0) / self.positions)

    def gap(self, other: Tally) -> str:
        """Difference of the mean KLs over windows of equal length, paired, with its standard error."""
        pairs = np.array(self.by_window) - np.array(other.by_window)
        return f"{pairs.mean():+.1e} ± {pairs.std(ddof=1) / math.sqrt(len(pairs)):.1e}" if len(pairs) > 1 else ""

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll / self.predicted)

    @property
    def top_agreement(self) -> float:
        return self.same_top / self.positions


def measure(windows: Sequence[list[int]], truth: Logits, models: Mapping[str, Logits],
            progress: Callable[[int], None] = lambda _: None) -> dict[str, Tally]:
    """Tallies by model, the reference's own perplexity under "float64"."""
    tallies = {name: Tally() for name in ("float64", *models)}
    for n, tokens in enumerate(windows):
        reference = _log_softmax(truth(tokens))
        probabilities, top = reference.exp(), reference.argmax(1)
        _add(tallies["float64"], reference, torch.zeros(len(tokens), dtype=torch.float64), top, tokens)
        for name, made in models.items():
            log_q = _log_softmax(made(tokens))
            kl = (probabilities * (reference - log_q)).sum(1)
            _add(tallies[name], log_q, kl, top, tokens)
        progress(n + 1)
    return tallies


def _log_softmax(logits: np.ndarray) -> torch.Tensor:
    """float64 [T, V]."""
    return torch.from_numpy(logits).double().log_softmax(-1)


def _add(tally: Tally, log_q: torch.Tensor, kl: torch.Tensor, top: torch.Tensor, tokens: list[int]) -> None:
    following = torch.tensor(tokens[1:])
    tally.positions += len(tokens)
    tally.predicted += len(following)
    tally.kl += float(kl.sum())
    tally.kl_squares += float((kl * kl).sum())
    tally.nll -= float(log_q[torch.arange(len(following)), following].sum())
    tally.same_top += int((log_q.argmax(1) == top).sum())
    tally.by_window.append(float(kl.mean()))
