"""llama.cpp's continuous batching, as its own server does it: a decode holds one token of every sequence that is
answering, and as much of the prompts, in the order of arrival, as then fits into ``chunk`` tokens."""

from __future__ import annotations

from dataclasses import dataclass

import llama_cpp as ll
from llama_cpp_serving import greedy

KV_TYPES = {"f16": ll.GGML_TYPE_F16, "q8_0": ll.GGML_TYPE_Q8_0}


@dataclass(frozen=True)
class Settings:
    """What a user may choose. ``chunk``: most tokens of a decode (n_batch and n_ubatch); ``unified``: one KV buffer for
    all sequences instead of one each; ``kv``: its element type; ``flash``: flash attention."""

    chunk: int = 512
    unified: bool = False
    kv: str = "f16"
    flash: bool = True


def new_context(model: object, threads: int, sequences: int, tokens: int, settings: Settings) -> object:
    """A context for ``sequences`` sequences of ``tokens`` tokens each; ``ll.llama_free`` ends it."""
    params = ll.llama_context_default_params()
    params.n_ctx = sequences * (-(-tokens // 256) * 256)
    params.n_batch = params.n_ubatch = max(settings.chunk, sequences)
    params.n_seq_max = sequences
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_ENABLED if settings.flash else ll.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.type_k = params.type_v = KV_TYPES[settings.kv]
    params.kv_unified = settings.unified
    params.no_perf = True
    context = ll.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError(f"llama.cpp cannot make a context for {sequences} sequences of {tokens} tokens: {settings}")
    return context


@dataclass
class _Running:
    index: int  # of the request
    tokens: list[int]  # the prompt, then what was chosen last
    output: int
    slot: int
    computed: int = 0
    chosen: int = 0  # tokens so far


class LlamaBatcher:
    """Greedy answers of many requests; see ``replay.Batcher``. ``close`` frees the context."""

    def __init__(self, model: object, threads: int, slots: int, tokens: int, settings: Settings) -> None:
        self.context = new_context(model, threads, slots, tokens, settings)
        self._memory = ll.llama_get_memory(self.context)
        self._vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
        self._budget = max(settings.chunk, slots)
        self._batch = ll.llama_batch_init(self._budget, 0, 1)
        self._free = list(range(slots))[::-1]
        self._running: list[_Running] = []  # in the order of arrival

    def add(self, index: int, prompt: list[int], output: int) -> None:
        self._running.append(_Running(index, list(prompt), output, self._free.pop()))

    def step(self) -> list[int]:
        self._batch.n_tokens = 0
        rows: list[tuple[_Running, int]] = []
        answering = [r for r in self._running if r.chosen]
        budget = self._budget - len(answering)
        for r in answering:
            rows.append((r, self._put(r, 1)))
        for r in self._running:
            if not r.chosen and budget:
                count = min(budget, len(r.tokens) - r.computed)
                last = self._put(r, count)
                budget -= count
                if r.computed == len(r.tokens):
                    rows.append((r, last))
        status = ll.llama_decode(self.context, self._batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status} for {self._batch.n_tokens} tokens")
        got = []
        for r, row in rows:
            r.tokens.append(greedy(self.context, row, self._vocab))
            r.chosen += 1
            got.append(r.index)
            if r.chosen == r.output:
                ll.llama_memory_seq_rm(self._memory, r.slot, -1, -1)
                self._free.append(r.slot)
                self._running.remove(r)
        return got

    def close(self) -> None:
        ll.llama_batch_free(self._batch)
        ll.llama_free(self.context)

    def _put(self, r: _Running, count: int) -> int:
        """Puts the request's next tokens into the batch; where the last one lies. It has logits if nothing follows."""
        batch, at = self._batch, self._batch.n_tokens
        for offset in range(count):
            batch.token[at + offset] = r.tokens[r.computed + offset]
            batch.pos[at + offset] = r.computed + offset
            batch.n_seq_id[at + offset] = 1
            batch.seq_id[at + offset][0] = r.slot
            batch.logits[at + offset] = False
        r.computed += count
        batch.n_tokens = at + count
        batch.logits[at + count - 1] = r.computed == len(r.tokens)
        return at + count - 1
