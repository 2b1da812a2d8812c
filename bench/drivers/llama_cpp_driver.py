"""Drives llama.cpp through its low-level API, one JSON request a line on stdin, one answer a line on stdout.

Runs in the peer's own environment: needs nothing but the standard library, numpy and llama-cpp-python.
Requests: {"open": path, "threads": n, "settings": {...}}, then {"mode": "prefill"|"decode", "batch": b, "depth": d,
"tokens": n} or {"mode": "trace", "requests": [...], "slots": n}. Settings: ``llama_cpp_batching.Settings``; by default
flash attention, a KV stream per sequence (llama-batched-bench's default), batches of up to 512 tokens.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import llama_cpp as ll
from llama_cpp_batching import LlamaBatcher, Settings, new_context
from llama_cpp_serving import Entry, decode, greedy, load, serve
from replay import Request, replay


@dataclass(frozen=True)
class Filled:
    """What a context holds: this many sequences of this many tokens, and which token follows each."""

    size: tuple[int, int]
    chosen: list[int]


class Peer:
    def __init__(self, path: str, threads: int, settings: Settings) -> None:
        self.model = load(path)
        self.vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.threads, self.settings = threads, settings
        self._steps: tuple[tuple[int, int], object] | None = None  # a context and what it is for
        self._filled: Filled | None = None
        self._batcher: tuple[tuple[int, int], LlamaBatcher] | None = None

    def token(self, i: int) -> int:
        return 100 + (i * 7919) % (self.vocab - 200)

    def trace(self, requests: list[Request], slots: int) -> list[list[float]]:
        """When each request's tokens came."""
        key = (slots, max(len(r["prompt"]) + r["output"] for r in requests))
        if self._batcher is None or self._batcher[0] != key:
            self._release()
            self._batcher = (key, LlamaBatcher(self.model, self.threads, *key, self.settings))
        return replay(self._batcher[1], requests, slots)

    def steps(self, mode: str, batch: int, depth: int, tokens: int) -> float:
        """Seconds for ``tokens`` prompt tokens of one sequence, or as many greedy decode steps of ``batch`` sequences.

        What stood before those steps is kept for the next request of the same size.
        """
        context = self._context(batch, depth + tokens + 1)
        if self._filled is None or self._filled.size != (batch, depth):
            ll.llama_memory_clear(ll.llama_get_memory(context), False)
            self._filled = Filled((batch, depth), [self._fill(context, s, depth) for s in range(batch)])
        chosen = self._filled.chosen
        began = time.perf_counter()
        if mode == "prefill":
            self._prompt(context, 0, depth, depth + tokens)
        else:
            for step in range(tokens):
                decode(context, [Entry(token, depth + step, s) for s, token in enumerate(chosen)])
                chosen = [greedy(context, s, self.vocab) for s in range(batch)]
        seconds = time.perf_counter() - began
        for sequence in range(batch):
            if not ll.llama_memory_seq_rm(ll.llama_get_memory(context), sequence, depth, -1):
                self._filled = None
        return seconds

    def _context(self, sequences: int, tokens: int) -> object:
        key = (sequences, -(-tokens // 256) * 256)
        if self._steps is None or self._steps[0] != key:
            self._release()
            self._steps = (key, new_context(self.model, self.threads, *key, self.settings))
        return self._steps[1]

    def _release(self) -> None:
        """One context at a time: those of many sequences hold gigabytes."""
        if self._steps is not None:
            ll.llama_free(self._steps[1])
        if self._batcher is not None:
            self._batcher[1].close()
        self._steps = self._batcher = self._filled = None

    def _fill(self, context: object, sequence: int, depth: int) -> int:
        """Computes a prompt; the token that follows it."""
        if not depth:
            return self.token(sequence)
        return greedy(context, self._prompt(context, sequence, 0, depth), self.vocab)

    def _prompt(self, context: object, sequence: int, start: int, stop: int) -> int:
        """Computes these positions of a sequence; the row of the last one in the last batch."""
        for first in range(start, stop, 512):
            last = min(first + 512, stop)
            decode(context, [Entry(self.token(p + sequence), p, sequence, p == last - 1) for p in range(first, last)])
        return last - first - 1


class Driver:
    """Answers requests on the model that the first one opened."""

    def __init__(self) -> None:
        self.peer: Peer | None = None

    def answer(self, request: dict) -> dict[str, object]:
        if "open" in request:
            settings = Settings(**request.get("settings", {}))
            self.peer = Peer(request["open"], request["threads"], settings)
            return {"version": ll.__version__, "system": ll.llama_print_system_info().decode(errors="replace")}
        assert self.peer is not None, "open a model first"
        if request["mode"] == "trace":
            return {"times": self.peer.trace(request["requests"], request["slots"])}
        return {"seconds": self.peer.steps(**request)}


if __name__ == "__main__":
    serve(Driver().answer)
