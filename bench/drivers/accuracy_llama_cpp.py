"""Logits of every token of a text from llama.cpp, one JSON request a line on stdin, one answer a line on stdout.

Runs in the peer's own environment: needs nothing but the standard library, numpy and llama-cpp-python.
Requests: {"open": path, "threads": n, "flash": bool} and
{"tokens": [...], "into": path}: a fresh sequence, its logits written as float32 [tokens, vocabulary] to ``path``.
The KV cache keeps its default type, float16.
"""

from __future__ import annotations

import llama_cpp as ll
import numpy as np
from llama_cpp_serving import Entry, decode, load, serve

TOKENS = 512


class Peer:
    def __init__(self, path: str, threads: int, flash: bool):
        self.model = load(path)
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
        decode(self.context, [Entry(token, position) for position, token in enumerate(tokens)])
        rows = np.ctypeslib.as_array(ll.llama_get_logits(self.context), shape=(len(tokens), self.vocab))
        rows.astype(np.float32).tofile(into)


class Driver:
    """Answers requests on the model that the first one opened."""

    def __init__(self) -> None:
        self.peer: Peer | None = None

    def answer(self, request: dict) -> dict[str, object]:
        if "open" in request:
            self.peer = Peer(request["open"], request["threads"], request["flash"])
            return {"version": ll.__version__, "vocab": self.peer.vocab}
        assert self.peer is not None, "open a model first"
        self.peer.logits(request["tokens"], request["into"])
        return {"tokens": len(request["tokens"])}


if __name__ == "__main__":
    serve(Driver().answer)
