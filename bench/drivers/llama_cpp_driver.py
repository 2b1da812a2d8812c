"""Drives llama.cpp through its low-level API, one JSON request a line on stdin, one answer a line on stdout.

Runs in the peer's own environment: needs nothing but the standard library, numpy and llama-cpp-python.
Requests: {"open": path, "threads": n} and {"mode": "prefill"|"decode", "batch": b, "depth": d, "tokens": n}.
Settings: flash attention on, one KV stream per sequence (llama-batched-bench's default), batches of up to 512 tokens.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

import llama_cpp as ll


class Peer:
    def __init__(self, path: str, threads: int):
        ll.llama_backend_init()
        params = ll.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = ll.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
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

    def decode(self, context, entries: list[tuple[int, int, int, bool]]) -> None:
        """One llama_decode of (token, position, sequence, wants logits)."""
        batch = ll.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, logits) in enumerate(entries):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = logits
        status = ll.llama_decode(context, batch)
        ll.llama_synchronize(context)
        ll.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def fill(self, context, sequence: int, depth: int) -> None:
        for start in range(0, depth, 512):
            stop = min(start + 512, depth)
            self.decode(context, [(self.token(p), p, sequence, p == stop - 1) for p in range(start, stop)])

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
                self.decode(context, [(self.token(p), p, 0, p == stop - 1) for p in range(start, stop)])
        else:
            for step in range(tokens):
                self.decode(context, [(self.token(step + s), depth + step, s, True) for s in range(batch)])
        return time.perf_counter() - began


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    ll.llama_log_set(quiet, ctypes.c_void_p(0))
    peer: Peer | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "open" in request:
            peer = Peer(request["open"], request["threads"])
            answer: dict[str, object] = {
                "version": ll.__version__,
                "system": ll.llama_print_system_info().decode(errors="replace"),
            }
        else:
            assert peer is not None, "open a model first"
            answer = {"seconds": peer.run(**request)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
