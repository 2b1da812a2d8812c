"""Mixtures of experts of ``transformers``, looked into: who was chosen, and what each chosen expert gave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from kforge.core.errors import KforgeError


@dataclass(frozen=True, eq=False)
class ExpertsTrace:
    """float64 but for ``ids``: who was chosen with what weight, and what each chosen expert gave."""

    router: np.ndarray  # logits [T, E]
    ids: np.ndarray  # i64 [T, k], the largest logit first
    weights: np.ndarray  # [T, k]
    slots: np.ndarray  # [T * k, H]

    @property
    def margin(self) -> np.ndarray:
        """[T]: how far the last chosen logit of each token is above the first one that was not."""
        ordered = np.sort(self.router, axis=1)[:, ::-1]
        k = self.ids.shape[1]
        return ordered[:, k - 1] - ordered[:, k]


@torch.inference_mode()
def experts_trace(experts: torch.nn.Module, x: np.ndarray, router: tuple[torch.Tensor, ...]
                   ) -> tuple[np.ndarray, ExpertsTrace]:
    """What each chosen expert makes of its token before its down matrix and after it, by ``transformers``' own code:
    each choice as a token of its own that has one expert, whose down matrix is the identity at first."""
    logits, weights, ids = router
    tokens = torch.from_numpy(x).repeat_interleave(ids.shape[1], 0)
    alone = tokens, ids.reshape(-1, 1), torch.ones(len(tokens), 1, dtype=tokens.dtype)
    slots = experts(*alone).numpy()
    down = experts.down_proj
    transposed = getattr(experts, "is_transposed", False)  # [E, in, out] instead of [E, out, in]
    width = down.shape[1 if transposed else 2]
    one = torch.zeros(down.shape[1:], dtype=down.dtype)
    one.fill_diagonal_(1)
    if width > x.shape[1]:
        raise KforgeError("experts that are wider than their model cannot be looked into")
    saved = {name: p for name, p in experts.named_parameters() if name.startswith("down_proj")}
    for name, p in saved.items():
        setattr(experts, name, torch.nn.Parameter(one.expand_as(p) if p.dim() == 3 else torch.zeros_like(p), False))
    ff = experts(*alone)[:, :width].numpy()
    for name, p in saved.items():
        setattr(experts, name, p)
    return ff, ExpertsTrace(logits.numpy(), ids.numpy(), weights.numpy(), slots)


class WideRouter(torch.nn.Module):
    """Softmax over all experts in the type of its input; else as Qwen3-MoE's router."""

    def __init__(self, narrow: torch.nn.Module) -> None:
        super().__init__()
        self.weight, self.top, self.normalised = narrow.weight, narrow.top_k, narrow.norm_topk_prob

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = F.linear(x.reshape(-1, x.shape[-1]), self.weight)
        weights, ids = logits.softmax(-1).topk(self.top)
        return logits, weights / weights.sum(-1, keepdim=True) if self.normalised else weights, ids
