"""Registry kernels as custom operators of torch: ``kforge.torch.op("rms_norm", H=576, residual=0)``."""

from kforge.torch.operator import Op, Serving, op
from kforge.torch.packing import PackedWeight

__all__ = ["Op", "PackedWeight", "Serving", "op"]
