import torch

ATTRIBUTES: dict = {}


def run(x, weight, *more):
    *residual, eps = more
    h = x.to(torch.float64)
    if residual:
        h = h + residual[0].to(torch.float64)
    out = h / torch.sqrt(h.pow(2).mean(dim=-1, keepdim=True) + eps) * weight.to(torch.float64)
    return (h.to(x.dtype), out.to(x.dtype)) if residual else out.to(x.dtype)
