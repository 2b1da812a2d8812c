"""What holds where nobody chose: command line, tuner, engine and models read it here."""

from __future__ import annotations

from kforge.core.errors import KforgeError

KV_TYPES = ("f16", "bf16", "f32", "i8")
ACTS = ("a8", "bf16", "f32")

DEFAULT_ROWS = 32  # panel height of packed weights where nothing was tuned
DEFAULT_KV = "f16"  # element type of the KV cache
DEFAULT_ACT = "a8"  # activations: int8 of integer-quantised weights; "bf16": and bf16 of bf16 weights; "f32": of all
DEFAULT_KV_TOKENS = 16384  # positions that the KV cache holds
STEP_TOKENS = 512  # of the engine's largest step, prompts and decoding sequences together
SERVING_PREFILL_TOKENS = 128  # prompt tokens of a step in which other answers decode, when many are served
PAGE_TOKENS = 64  # positions per page of the KV cache


def require_types(kv: str, act: str) -> None:
    """Raises KforgeError for types of KV cache or activations that there are not."""
    if kv not in KV_TYPES:
        raise KforgeError(f"there is no KV cache of {kv!r}: use {', '.join(KV_TYPES)}")
    if act not in ACTS:
        raise KforgeError(f"there are no activations of {act!r}: use {', '.join(ACTS)}")
