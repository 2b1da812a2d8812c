"""A linear layer, GELU and softmax."""

import torch
from torch import nn

batch_size = 20
inner = 48
width = 36


class Model(nn.Module):
    def __init__(self, inner, width, factor):
        super().__init__()
        self.gemm = nn.Linear(inner, width)
        self.factor = factor

    def forward(self, x):
        x = self.gemm(x)
        return nn.functional.softmax(nn.functional.gelu(x / self.factor), dim=1)


def get_inputs():
    return [torch.randn(batch_size, inner)]


def get_init_inputs():
    return [inner, width, 1.0]
