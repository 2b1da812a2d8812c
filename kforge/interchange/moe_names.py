"""Names of tuned fused-MoE files, of vLLM and SGLang: what a table of parameters is for stands in its name alone.

vLLM (``vllm/model_executor/layers/fused_moe/fused_moe.py``, ``get_config_file_name``):

    E=<experts>,N=<intermediate size of a shard>,device_name=<device>[,dtype=<scheme>][,block_shape=[n,k]].json

SGLang (``python/sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py``): the same, with a space
inside ``block_shape``, ``,per_channel_quant=True`` behind it, ``_down`` where the table is for the second projection
alone, and the files in a folder ``triton_<version>``.
Both take the device's name as torch reports it with blanks (vLLM: and slashes) as underscores; vLLM calls every
device of the H200 family NVIDIA_H200.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_NAME = re.compile(
    r"E=(?P<experts>[1-9]\d*),N=(?P<width>[1-9]\d*),device_name=(?P<device>[^,\s/]+)"
    r"(?:,dtype=(?P<dtype>[^,\s/=]+))?"
    r"(?:,block_shape=\[(?P<block_n>[1-9]\d*), ?(?P<block_k>[1-9]\d*)\])?"
    r"(?P<rest>(?:,[a-z_]+=[^,/]+)*)\.json"
)
_DOWN = "_down"
_PER_CHANNEL = ",per_channel_quant=True"
_H200 = "NVIDIA_H200"


class Style(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"


@dataclass(frozen=True)
class MoeName:
    """What a table is for. ``width``: columns of the gated output, which the second projection reads."""

    experts: int
    width: int
    device: str
    dtype: str = ""  # "": the activations' own, 16-bit floats
    block_shape: tuple[int, int] | None = None  # quantisation blocks of the weight, n and k
    per_channel: bool = False
    down: bool = False  # for the second projection alone

    def file_name(self, style: Style) -> str:
        """Raises ValueError for what a style has no word for."""
        if style is Style.VLLM and (self.down or self.per_channel):
            raise ValueError("vLLM has one table for both projections, and none for scales per channel")
        dtype = f",dtype={self.dtype}" if self.dtype else ""
        block = str(list(self.block_shape)) if self.block_shape else ""
        if style is Style.VLLM:
            block = block.replace(" ", "")
        shape = f",block_shape={block}" if block else ""
        ends = (_PER_CHANNEL if self.per_channel else "") + (_DOWN if self.down else "")
        return f"E={self.experts},N={self.width},device_name={self.device}{dtype}{shape}{ends}.json"


def parse(name: str) -> MoeName:
    """Raises ValueError that says what of the name is not as these tools write it."""
    stem = name.removesuffix(".json")
    down = stem.endswith(_DOWN)
    found = _NAME.fullmatch(f"{stem.removesuffix(_DOWN)}.json") if name.endswith(".json") else None
    if found is None:
        raise ValueError(
            f"{name!r} is not E=<experts>,N=<size>,device_name=<device>[,dtype=<scheme>][,block_shape=[<n>,<k>]].json"
        )
    rest = found["rest"]
    if rest not in ("", _PER_CHANNEL):
        raise ValueError(f"{name!r}: {rest.lstrip(',')}: tables with it are for another kernel than the Triton one")
    shape = (int(found["block_n"]), int(found["block_k"])) if found["block_n"] else None
    return MoeName(int(found["experts"]), int(found["width"]), found["device"], found["dtype"] or "", shape,
                   bool(rest), down)


def device_word(device: str, style: Style) -> str:
    """A device's name, as its driver reports it, as it stands in a file's name."""
    if style is Style.SGLANG:
        return device.replace(" ", "_")
    word = re.sub(r"[\s/]+", "_", device)
    return _H200 if "H200" in word.split("_") else word
