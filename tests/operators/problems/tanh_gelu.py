"""GELU in its form with tanh, written out."""

import math

import torch
from torch import nn

batch_size = 40
width = 64


class Model(nn.Module):
    def forward(self, x):
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


def get_inputs():
    return [torch.randn(batch_size, width)]


def get_init_inputs():
    return []
