import torch

ATTRIBUTES: dict = {}


def run(logits):
    largest = logits == logits.max(dim=-1, keepdim=True).values
    return largest.int().argmax(dim=-1).to(torch.int32)  # the first of equal ones
