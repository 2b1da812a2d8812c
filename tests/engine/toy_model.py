"""A model of two small layers with random weights in chosen formats: every path of the graph at little cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kforge.core.dtypes import WeightFormat
from kforge.models.config import Family, ModelConfig, Rope, RopeStyle
from kforge.models.model import Model
from kforge.models.roles import Matrix, shape_of
from kforge.models.synth_plan import SHAPES
from kforge.operators.layouts import random

CONFIG = ModelConfig("toy", Family.LLAMA, layers=2, hidden=256, heads=4, kv_heads=2, head_dim=64, intermediate=256,
                     vocab=320, context_length=256, rms_eps=1e-5, rope=Rope(10000.0, RopeStyle.NORM), tied_head=True,
                     stop_ids=(0,))
DRAFT_CONFIG = replace(CONFIG, name="toy-draft", layers=1)  # the same without its last layer: is right now and then


# Experts, sinks, biases, and windows in turn with none: what ``CONFIG`` has no call for.
GPT_OSS_CONFIG = replace(SHAPES["tiny-gpt-oss-test"], name="toy-gpt-oss", vocab=CONFIG.vocab,
                         context_length=CONFIG.context_length, stop_ids=CONFIG.stop_ids)


def gpt_oss_toy() -> ToyModel:
    """In the formats of the published files: experts in mxfp4, the rest in eight bits."""
    experts = {role: WeightFormat.MXFP4 for role in (Matrix.EXPERT_GATE, Matrix.EXPERT_UP, Matrix.EXPERT_DOWN)}
    return ToyModel(GPT_OSS_CONFIG, {Matrix.ROUTER: WeightFormat.F32, **experts}, WeightFormat.Q8_0)


@dataclass
class ToyModel(Model):
    config: ModelConfig = CONFIG
    formats: dict[Matrix, WeightFormat] = field(default_factory=dict)
    rest: WeightFormat = WeightFormat.Q4_0
    path: Path = Path("toy")

    def _name(self, role, layer):
        return f"{role}.{layer}"

    def _seed(self, role, layer) -> int:
        return sum(self._name(role, layer).encode())

    def _stored_shape(self, role, layer):
        return shape_of(self.config, role)

    def _stored_format(self, role, layer):
        return self.formats.get(role, self.rest)

    def _matrix(self, role, layer):
        *rows, columns = shape_of(self.config, role)
        return random(self._stored_format(role, layer), math.prod(rows), columns, seed=self._seed(role, layer))

    def _vector(self, role, layer):
        noise = np.random.default_rng(self._seed(role, layer)).normal(size=shape_of(self.config, role))
        return (1 + 0.1 * noise).astype(np.float32)

    def _make_tokenizer(self):
        raise NotImplementedError("a toy has no tokenizer: engines take text=False")
