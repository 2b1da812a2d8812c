"""A model in a folder: config.json, model*.safetensors with or without an index, tokenizer.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kforge.core.dtypes import WeightFormat
from kforge.models.config import Family
from kforge.models.folder_config import config_of, family_of, read_json
from kforge.models.folder_experts import FolderExperts, Mxfp4Experts, PerExpert
from kforge.models.folder_quantization import has_int8
from kforge.models.folder_tensors import FolderTensors, Stored
from kforge.models.model import Model
from kforge.models.roles import EXPERTS, GLOBAL, Matrix, Role, Vector

if TYPE_CHECKING:
    import numpy as np

    from kforge.models.tokenizer import Tokenizer
    from kforge.operators.layouts import QuantizedWeight

NAMES: dict[Role, str] = {
    Matrix.EMBED: "model.embed_tokens.weight",
    Matrix.HEAD: "lm_head.weight",
    Vector.FINAL_NORM: "model.norm.weight",
    Vector.ATTN_NORM: "input_layernorm.weight",
    Matrix.Q: "self_attn.q_proj.weight",
    Matrix.K: "self_attn.k_proj.weight",
    Matrix.V: "self_attn.v_proj.weight",
    Matrix.O: "self_attn.o_proj.weight",
    Vector.Q_BIAS: "self_attn.q_proj.bias",
    Vector.K_BIAS: "self_attn.k_proj.bias",
    Vector.V_BIAS: "self_attn.v_proj.bias",
    Vector.O_BIAS: "self_attn.o_proj.bias",
    Vector.Q_NORM: "self_attn.q_norm.weight",
    Vector.K_NORM: "self_attn.k_norm.weight",
    Vector.FFN_NORM: "post_attention_layernorm.weight",
    Matrix.GATE: "mlp.gate_proj.weight",
    Matrix.UP: "mlp.up_proj.weight",
    Matrix.DOWN: "mlp.down_proj.weight",
    Matrix.ROUTER: "mlp.gate.weight",
}
_GPT_OSS: dict[Role, str] = {
    Matrix.ROUTER: "mlp.router.weight",
    Vector.ROUTER_BIAS: "mlp.router.bias",
    Vector.SINKS: "self_attn.sinks",
}


def tensor_name(role: Role, layer: int | None, family: Family = Family.LLAMA) -> str:
    """The name in a folder of a tensor that is not of experts."""
    name = _GPT_OSS[role] if family is Family.GPT_OSS and role in _GPT_OSS else NAMES[role]
    return name if role in GLOBAL else f"model.layers.{layer}.{name}"


class SafetensorsModel(Model):
    """Opens and checks the folder; see ``Model``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        raw = read_json(path / "config.json")
        self._tensors = FolderTensors(path, has_int8(path / "config.json", raw, family_of(path, raw)))
        self.config = config_of(path, raw, lambda role: tensor_name(role, 0) in self._tensors)
        self._experts: FolderExperts | None = None
        if self.config.family is Family.GPT_OSS:
            self._experts = Mxfp4Experts(self._tensors)
        elif self.config.experts:
            self._experts = PerExpert(self._tensors, self.config.experts.count)
        self.check()

    def _name(self, role: Role, layer: int | None) -> str:
        if experts := self._of_experts(role):
            return experts.name(role, layer)
        return tensor_name(role, layer, self.config.family)

    def _stored(self, role: Role, layer: int | None) -> Stored:
        name = tensor_name(role, layer, self.config.family)
        return self._tensors.matrix(name) if isinstance(role, Matrix) else self._tensors.floats(name)

    def _stored_shape(self, role: Role, layer: int | None) -> tuple[int, ...]:
        if experts := self._of_experts(role):
            return experts.shape(role, layer)
        return self._stored(role, layer).shape

    def _stored_format(self, role: Matrix, layer: int | None) -> WeightFormat:
        if experts := self._of_experts(role):
            return experts.format(role, layer)
        return self._stored(role, layer).format

    def _matrix(self, role: Matrix, layer: int | None) -> QuantizedWeight:
        if experts := self._of_experts(role):
            return experts.matrix(role, layer)
        return self._stored(role, layer).matrix()

    def _vector(self, role: Vector, layer: int | None) -> np.ndarray:
        if experts := self._of_experts(role):
            return experts.vector(role, layer)
        return self._stored(role, layer).values()

    def _of_experts(self, role: Role) -> FolderExperts | None:
        """Whose names and shapes a role has, where it is of experts."""
        return self._experts if role in EXPERTS else None

    def _make_tokenizer(self) -> Tokenizer:
        from kforge.models.json_tokenizer import tokenizer_of

        return tokenizer_of(self.path, self.config)
