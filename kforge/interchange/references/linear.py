import torch

from kforge.core.dtypes import WeightFormat
from kforge.operators import layouts, numerics

ATTRIBUTES: dict = {}


def run(x, w, *more):
    n, k, format = ATTRIBUTES["N"], ATTRIBUTES["K"], WeightFormat(ATTRIBUTES["weight"])
    gated = ATTRIBUTES["epilogue"] == "silu_gate"
    layout = layouts.panel_layout(ATTRIBUTES["rows"], gated)
    packed = w.detach().cpu().numpy().view("uint8")
    weight = torch.from_numpy(layouts.unpack(packed, format, n, k, layout).dequantize()).to(torch.float64)
    rows = x.detach().cpu().numpy()
    if ATTRIBUTES["act"] != "f32":
        rows = numerics.quantize_a8(rows, ATTRIBUTES["act"]).exact()
    out = torch.from_numpy(rows).to(torch.float64) @ weight.T
    rest = [tensor.detach().cpu().to(torch.float64) for tensor in more]
    if ATTRIBUTES["bias"]:
        out = out + rest.pop(0)
    if ATTRIBUTES["epilogue"] == "residual":
        out = out + rest.pop(0)
    if gated:
        gate, up = out.chunk(2, dim=-1)
        out = gate / (1 + torch.exp(-gate)) * up
    return out.to(x.dtype).to(x.device)
