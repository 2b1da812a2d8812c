"""``--act bf16``: products with bf16 weights round their activations to bf16, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kforge.core.defaults import require_types
from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams
from kforge.models import load
from kforge.models.synth import synth

TOKENS = np.random.default_rng(1).integers(0, 1000, 120).tolist()


def test_what_each_choice_means() -> None:
    wanted = {"a8": ("f32", "a8", "a8_token", "f32"), "bf16": ("bf16_dot", "a8", "a8_token", "f32"),
              "f32": ("f32", "f32", "f32", "f32")}
    formats = (WeightFormat.BF16, WeightFormat.Q4_0, WeightFormat.INT8_CHANNEL, WeightFormat.F16)
    assert {act: tuple(f.act(act) for f in formats) for act in wanted} == wanted
    with pytest.raises(KforgeError, match="use a8, bf16, f32"):
        require_types("f16", "f16")


@pytest.mark.slow
@pytest.mark.parametrize("format", ["bf16", "w8a8"])
def test_it_is_exact_and_near_float_activations(format: str, tmp_path: Path, kernels) -> None:
    """Batches and chunks change no bit. Rounding to 8 bits of significand moves logits of about 1 by some percent, and
    must move them: else nothing was rounded."""
    synth("tiny-llama-test", format, tmp_path / "model")
    model = load(tmp_path / "model")
    floats = Engine(model, kernels, kv_tokens=1024, text=False)
    before = floats.logits(TOKENS[:20])
    floats.close()
    engine = Engine(model, kernels, kv_tokens=1024, text=False, max_tokens_per_step=48, act="bf16")
    off = np.abs(engine.logits(TOKENS[:20]) - before)
    assert 1e-4 < off.max() < 0.1 * max(1.0, np.abs(before).max())
    prompts, params = [TOKENS[:5], TOKENS[3:73], TOKENS[20:120]], SamplingParams(max_tokens=6)
    alone = [engine.generate([prompt], params)[0].tokens for prompt in prompts]
    assert [done.tokens for done in engine.generate(prompts, params)] == alone
    used = {use.problem.split("act=")[1].split(",")[0] for use in engine.kernels_used() if "act=" in use.problem}
    engine.close()
    assert used == ({"bf16_dot"} if format == "bf16" else {"a8_token", "bf16_dot"})
