import torch

from kforge.core.dtypes import WeightFormat
from kforge.operators import layouts

ATTRIBUTES: dict = {}


def run(ids, table):
    layout = layouts.panel_layout(ATTRIBUTES["rows"])
    packed = table.detach().cpu().numpy().view("uint8")
    rows = layouts.unpack(packed, WeightFormat(ATTRIBUTES["weight"]), ATTRIBUTES["V"], ATTRIBUTES["H"], layout)
    taken = rows.take(ids.detach().cpu().numpy()).dequantize()
    return torch.from_numpy(taken).to(torch.float32).to(ids.device)
