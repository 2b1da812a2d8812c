"""A layer norm over all but the batch."""

import torch
from torch import nn

batch_size = 5
shape = (6, 8, 9)


class Model(nn.Module):
    def __init__(self, normalised):
        super().__init__()
        self.norm = nn.LayerNorm(normalized_shape=normalised)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.rand(batch_size, *shape)]


def get_init_inputs():
    return [shape]
