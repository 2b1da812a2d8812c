"""Functions, some of which no graph can say."""

import torch


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / 4.0, dim=-1) @ v


def statistics(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (x.std(-1, keepdim=True) + 1.0), torch.log_softmax(x, dim=-1), x.amax(-1)


def gram(x):
    return x @ x.T


def pieces(x):
    first, second = x.chunk(2, dim=1)
    picked = torch.cat([first.clamp(-1, 1), second[:, 3:9].abs()], dim=1)
    return torch.where(picked > 0.5, picked.exp(), picked[:, 2].unsqueeze(1).expand_as(picked))


def activations(x):
    f = torch.nn.functional
    return f.silu(x) + f.hardswish(x) - f.elu(x) * f.softplus(x) + f.mish(x) + f.hardtanh(x) * torch.sin(x).square()


def powers(x):
    y = x.abs() + 0.1
    return y**-2 + y**1.7 + torch.rsqrt(y) + torch.log(y) * 2.0**x + y.reciprocal() + torch.erf(x) + x**5


def mean_of_all(x):
    return x - x.mean()


def sorting(x):
    return torch.sort(x).values


def halves(x):
    return x.half().float() * 2


def positions(x):
    return x.argmax(dim=1)
