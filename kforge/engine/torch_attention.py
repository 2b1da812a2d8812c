"""Attention with sinks in torch, whose own has none."""

from __future__ import annotations

import torch


def attend_with_sinks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, sinks: torch.Tensor
                      ) -> torch.Tensor:
    """[1, Hq, n, D] of q [1, Hq, n, D] over k and v [1, Hkv, c, D]; ``seen`` bool [n, c]: who sees which position.

    ``sinks`` [Hq]: each query head's logit that takes part in the softmax and has no value.
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).float().masked_fill(~seen, -torch.inf)
    sink = sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1].to(v.dtype) @ v
