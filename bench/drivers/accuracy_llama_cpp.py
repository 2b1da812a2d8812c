"""Logits of every token of a text from llama.cpp, one JSON request a line on stdin, one answer a line on stdout.

Runs in the peer's own environment: needs nothing but the standard library, numpy and llama-cpp-python.
Requests: {"open": path, "threads": n, "flash": bool} and
{"tokens": [...], "into": path}: a fresh sequence, its logits written as float32 [tokens, vocabulary] to ``path``.
The KV cache keeps its default type, float16.
"""

from __future__ import annotations

import ctypes
import json
import sys

import llama_cpp as ll
import numpy as np

TOKENS = 512


class Peer:
    def __init__(self, path: str, threads: int, flash: bool):
        ll.llama_backend_init()
        params = ll.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = ll.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.words = ll.llama_model_get_vocab(self.model)
        self.vocab = ll.llama_vocab_n_tokens(self.words)
        options = ll.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = TOKENS
        options.n_threads = options.n_threads_batch = threads
        options.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else ll.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.no_perf = True
        self.context = ll.llama_init_from_model(self.model, options)

    def logits(self, tokens: list[int], into: str) -> None:
        ll.llama_memory_clear(ll.llama_get_memory(self.context), False)
        batch = ll.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = True
        status = ll.llama_decode(self.context, batch)
        ll.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        rows = np.ctypeslib.as_array(ll.llama_get_logits(self.context), shape=(len(tokens), self.vocab))
        rows.astype(np.float32).tofile(into)


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    ll.llama_log_set(quiet, ctypes.c_void_p(0))
    peer: Peer | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "open" in request:
            peer = Peer(request["open"], request["threads"], request["flash"])
            answer: dict[str, object] = {"version": ll.__version__, "vocab": peer.vocab}
        else:
            assert peer is not None, "open a model first"
            peer.logits(request["tokens"], request["into"])
            answer = {"tokens": len(request["tokens"])}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
