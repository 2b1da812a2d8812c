"""Drives vLLM's engine on the CPU, one JSON request a line on stdin, one answer a line on stdout.

Runs in the peer's own environment. {"open": folder, "threads": n, "slots": n, "tokens": n, "settings": {...}}, then
{"mode": "trace", "requests": [...], "slots": n}. The engine runs inside this process, with no hand-over between
processes; threads and their places are set by the environment (``peers.environments.vllm_variables``).
``slots`` and ``tokens``: the most sequences and the longest one that will come. Settings are ``EngineArgs``', and
``zentorch``: whether that library may be used, which vLLM does by itself where it can be imported.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from replay import Request, replay

_KV_BLOCK = 128  # positions of a block of vLLM's CPU cache


class VllmBatcher:
    """See ``replay.Batcher``."""

    def __init__(self, engine) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._engine = engine
        self._params = lambda output: SamplingParams(
            temperature=0.0,
            max_tokens=output,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def add(self, index: int, prompt: list[int], output: int) -> None:
        self._engine.add_request(str(index), {"prompt_token_ids": prompt}, self._params(output))

    def step(self) -> Sequence[int]:
        return [
            int(output.request_id)
            for output in self._engine.step()
            for _ in output.outputs[0].token_ids
        ]


def open_engine(folder: str, slots: int, tokens: int, settings: dict[str, object]):
    """An engine without tokenizer, prefix cache or statistics."""
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    config = json.loads(Path(folder, "config.json").read_text())
    per_token = 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]  # bytes, bf16
    blocks = slots * (-(-tokens // _KV_BLOCK) + 1) + 1
    arguments = {
        "model": folder,
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "max_model_len": -(-tokens // _KV_BLOCK) * _KV_BLOCK,
        "max_num_seqs": slots,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": blocks * _KV_BLOCK * per_token,
        "disable_log_stats": True,
        **settings,
    }
    return LLMEngine.from_engine_args(EngineArgs(**arguments))


def describe(engine) -> str:
    """What computes: the platform (zentorch's or plain), the kernels of quantised layers, what was preloaded."""
    import torch
    from vllm.platforms import current_platform

    kernels = engine.apply_model(
        lambda model: sorted(
            {type(m.scheme.kernel).__name__ for m in model.modules() if hasattr(getattr(m, "scheme", None), "kernel")}
        )
    )[0]
    preloaded = [Path(name).name for name in os.environ.get("LD_PRELOAD", "").split(":")]
    parts = [type(current_platform).__name__, *kernels, f"{torch.get_num_threads()} threads", *preloaded]
    return ", ".join(part for part in parts if part)


def main() -> None:
    # vLLM and what it loads print to stdout: the answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    batcher: VllmBatcher | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "open" in request:
            settings = dict(request["settings"])
            if not settings.pop("zentorch", True):
                sys.modules["zentorch"] = None  # type: ignore[assignment] - importing it fails from now on
            import vllm

            engine = open_engine(request["open"], request["slots"], request["tokens"], settings)
            batcher = VllmBatcher(engine)
            answer: dict[str, object] = {"version": vllm.__version__, "system": describe(engine)}
        else:
            assert batcher is not None, "open a model first"
            trace: list[Request] = request["requests"]
            answer = {"times": replay(batcher, trace, request["slots"])}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
