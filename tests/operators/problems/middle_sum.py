"""A sum over one dimension, which stays."""

import torch
from torch import nn

batch_size = 9
length = 40
width = 33


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.sum(x, dim=self.dim, keepdim=True)


def get_inputs():
    return [torch.randn(batch_size, length, width)]


def get_init_inputs():
    return [1]
