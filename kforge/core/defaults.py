"""What holds where nobody chose: command line, tuner, engine and models read it here."""

from __future__ import annotations

DEFAULT_ROWS = 32  # panel height of packed weights where nothing was tuned
DEFAULT_KV = "f16"  # element type of the KV cache
DEFAULT_ACT = "a8"  # activations of integer-quantised weights
DEFAULT_KV_TOKENS = 16384  # positions that the KV cache holds
PAGE_TOKENS = 64  # positions per page of the KV cache
