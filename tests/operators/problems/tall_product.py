"""Two matrices, one tall and one wide, of which the product is large."""

import torch
from torch import nn

rows = 96
inner = 32


class Model(nn.Module):
    def forward(self, tall, wide):
        return torch.matmul(tall, wide)


def get_inputs():
    return [torch.rand(rows, inner), torch.rand(inner, rows)]


def get_init_inputs():
    return []
