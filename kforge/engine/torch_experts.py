"""Mixtures of experts in torch: who computes what for whom, one expert at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kforge.models.config import ExpertGate, Experts
from kforge.operators.numerics import SWIGLU_ALPHA, SWIGLU_LIMIT


@dataclass(frozen=True)
class Routes:
    """``ids`` i64 [T, k]: each token's experts, the one with the largest logit first; ``weights`` [T, k]."""

    ids: torch.Tensor
    weights: torch.Tensor


def routes(logits: torch.Tensor, experts: Experts) -> Routes:
    """Of router logits [T, experts]."""
    chosen, ids = logits.float().topk(experts.per_token)
    if experts.normalised:
        return Routes(ids, chosen.softmax(-1).to(logits.dtype))
    return Routes(ids, logits.float().softmax(-1).gather(-1, ids).to(logits.dtype))


def expert_products(x: torch.Tensor, chosen: Routes, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """[T, k, N]: row [t, j] of x [T, k, K] times the matrix of token t's j-th expert, out of ``weight`` [E, N, K], plus
    its row of ``bias`` [E, N]."""
    out = x.new_empty(*x.shape[:2], weight.shape[1])
    for e in chosen.ids.unique().tolist():
        mine = chosen.ids == e
        out[mine] = F.linear(x[mine], weight[e], None if bias is None else bias[e])
    return out


def gated(gate: ExpertGate, gates: torch.Tensor, ups: torch.Tensor) -> torch.Tensor:
    """What an expert passes on to its down matrix."""
    match gate:
        case ExpertGate.SILU:
            return F.silu(gates) * ups
        case ExpertGate.SWIGLU_OAI:
            gates, ups = gates.clamp(max=SWIGLU_LIMIT), ups.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
            return (ups + 1) * gates * torch.sigmoid(SWIGLU_ALPHA * gates)
