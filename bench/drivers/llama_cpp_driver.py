"""Drives llama.cpp through its low-level API, one JSON request a line on stdin, one answer a line on stdout.

Runs in the peer's own environment: needs nothing but the standard library, numpy and llama-cpp-python.
Requests: {"open": path, "threads": n} and {"mode": "prefill"|"decode", "batch": b, "depth": d, "tokens": n}.
Settings: flash attention on, one KV stream per sequence (llama-batched-bench's default), batches of up to 512 tokens.
"""

from __future__ import annotations

import time

import llama_cpp as ll
from llama_cpp_serving import Entry, decode, load, serve


class Peer:
    def __init__(self, path: str, threads: int):
        self.model = load(path)
        self.vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.threads = threads
        self.contexts: dict[tuple[int, int], object] = {}

    def context(self, sequences: int, tokens: int):
        """A context for this many sequences of this many tokens, kept for the next request."""
        per_sequence = -(-tokens // 256) * 256
        key = (sequences, per_sequence)
        if key not in self.contexts:
            params = ll.llama_context_default_params()
            params.n_ctx = sequences * per_sequence
            params.n_batch = params.n_ubatch = 512
            params.n_seq_max = sequences
            params.n_threads = params.n_threads_batch = self.threads
            params.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_ENABLED
            params.kv_unified = False
            params.no_perf = True
            self.contexts[key] = ll.llama_init_from_model(self.model, params)
        return self.contexts[key]

    def token(self, i: int) -> int:
        return 100 + (i * 7919) % (self.vocab - 200)

    def fill(self, context, sequence: int, depth: int) -> None:
        for start in range(0, depth, 512):
            stop = min(start + 512, depth)
            decode(context, [Entry(self.token(p), p, sequence, p == stop - 1) for p in range(start, stop)])

    def run(self, mode: str, batch: int, depth: int, tokens: int) -> float:
        """Seconds for ``tokens`` prompt tokens of one sequence, or as many decode steps of ``batch`` sequences."""
        context = self.context(batch, depth + tokens + 1)
        ll.llama_memory_clear(ll.llama_get_memory(context), False)
        for sequence in range(batch):
            self.fill(context, sequence, depth)
        began = time.perf_counter()
        if mode == "prefill":
            for start in range(depth, depth + tokens, 512):
                stop = min(start + 512, depth + tokens)
                decode(context, [Entry(self.token(p), p, 0, p == stop - 1) for p in range(start, stop)])
        else:
            for step in range(tokens):
                decode(context, [Entry(self.token(step + s), depth + step, s) for s in range(batch)])
        return time.perf_counter() - began


class Driver:
    """Answers requests on the model that the first one opened."""

    def __init__(self) -> None:
        self.peer: Peer | None = None

    def answer(self, request: dict) -> dict[str, object]:
        if "open" in request:
            self.peer = Peer(request["open"], request["threads"])
            return {"version": ll.__version__, "system": ll.llama_print_system_info().decode(errors="replace")}
        assert self.peer is not None, "open a model first"
        return {"seconds": self.peer.run(**request)}


if __name__ == "__main__":
    serve(Driver().answer)
