"""What the drivers of llama.cpp share: a model opened, a batch decoded, requests answered line by line."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llama_cpp as ll
import numpy as np


@dataclass(frozen=True)
class Entry:
    """One token of a batch."""

    token: int
    position: int
    sequence: int = 0
    logits: bool = True  # whether its logits are wanted


def load(path: str) -> object:
    """The model of a GGUF file, on the CPU."""
    ll.llama_backend_init()
    params = ll.llama_model_default_params()
    params.n_gpu_layers = 0
    model = ll.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {path}")
    return model


def decode(context: object, entries: Sequence[Entry]) -> None:
    """One llama_decode, to its end."""
    batch = ll.llama_batch_init(len(entries), 0, 1)
    batch.n_tokens = len(entries)
    for i, entry in enumerate(entries):
        batch.token[i], batch.pos[i] = entry.token, entry.position
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, entry.sequence
        batch.logits[i] = entry.logits
    status = ll.llama_decode(context, batch)
    ll.llama_synchronize(context)
    ll.llama_batch_free(batch)
    if status:
        raise RuntimeError(f"llama_decode returned {status}")


def greedy(context: object, row: int, vocab: int) -> int:
    """The most probable token by the logits of this row of the last batch."""
    logits = ctypes.cast(ll.llama_get_logits_ith(context, row), ctypes.POINTER(ctypes.c_float))
    return int(np.argmax(np.ctypeslib.as_array(logits, (vocab,))))


def serve(answer: Callable[[dict], dict[str, object]]) -> None:
    """Answers one JSON request a line; what llama.cpp prints goes to stderr or nowhere."""
    out = sys.stdout
    sys.stdout = sys.stderr
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    ll.llama_log_set(quiet, ctypes.c_void_p(0))
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=out, flush=True)
