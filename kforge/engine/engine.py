"""The decoding engine: requests in, tokens out, one step at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from kforge.core.defaults import DEFAULT_ACT, DEFAULT_KV, DEFAULT_KV_TOKENS, PAGE_TOKENS, STEP_TOKENS
from kforge.core.errors import KforgeError
from kforge.engine import request
from kforge.engine.block_manager import BlockManager
from kforge.engine.memory import require_memory
from kforge.engine.request import Completion, FinishReason, Output, SamplingParams
from kforge.engine.runner import KernelUse, Runner, RunnerOptions
from kforge.engine.sampling import sample
from kforge.engine.scheduler import Scheduled, Scheduler
from kforge.engine.steps import StepLimits
from kforge.engine.text import TextStream

if TYPE_CHECKING:
    from kforge.engine.kernel_set import KernelSet
    from kforge.engine.weights import Weights
    from kforge.models.model import Model

LogitsObserver = Callable[[int, int, np.ndarray], None]


@dataclass(frozen=True)
class EngineStats:
    """Totals since the start (or ``reset_stats``). Seconds are wall time inside ``step``."""

    steps: int = 0
    computed_tokens: int = 0  # prompt and decode, recomputation included
    generated_tokens: int = 0
    preemptions: int = 0
    seconds: float = 0.0
    runner_seconds: float = 0.0  # inside the program (or torch)

    @property
    def python_share(self) -> float:
        """Part of the time that scheduling, filling buffers, sampling and detokenising took."""
        return 1.0 - self.runner_seconds / self.seconds if self.seconds else 0.0


class Engine:
    """Continuous batching over a paged KV cache.

    ``kernels``: "none" (torch on weights dequantised once, in ``torch_dtype``), "default" (shipped templates at their
    defaults), "tuned" (the registry's, the default where it has none), or a ``KernelSet``. With exact kernels logits do
    not depend on the batch, the chunking or preemption, bit for bit; torch makes no such promise.
    ``kv``: element type of the cache ("f32", "bf16", "f16"); ``act``: "a8" or "f32" activations of integer-quantised
    weights (None: a8). ``kv_tokens``: positions that the cache holds in all. ``rows``: panel height of packed weights
    (None: the kernel set's choice). ``text`` False: outputs carry ids only, no tokenizer is needed.
    ``weights``: packed weights to share with other engines on kernels for the same model. ``isolate``: kernels run in
    a locked-down process of their own (None: when the kernel set has any from elsewhere); a kernel that crashes, hangs
    or does what it must not is then a ``KforgeError`` that names it.
    Raises ``KforgeError`` for a model that does not fit into memory.
    """

    def __init__(self, model: Model, kernels: str | KernelSet = "none", *, threads: int | None = None,
                 kv: str = DEFAULT_KV, act: str | None = None, max_tokens_per_step: int = STEP_TOKENS,
                 max_sequences: int = 64, kv_tokens: int = DEFAULT_KV_TOKENS, rows: int | None = None,
                 torch_dtype: str = "f32", text: bool = True, weights: Weights | None = None,
                 isolate: bool | None = None) -> None:
        if max_sequences < 1 or max_tokens_per_step < 1 or kv_tokens < 1:
            raise KforgeError("max_sequences, max_tokens_per_step and kv_tokens must be at least 1.")
        pages = -(-kv_tokens // PAGE_TOKENS)
        options = RunnerOptions(threads, kv, act or DEFAULT_ACT, rows, torch_dtype, isolate)
        self.model = model
        self.limits = StepLimits(max_tokens_per_step, min(max_sequences, max_tokens_per_step), pages, PAGE_TOKENS,
                                 min(model.config.context_length, pages * PAGE_TOKENS))
        self.on_logits: LogitsObserver | None = None  # gets (sequence, position of the token to choose, f32[V] view)
        # Before even the list of pages is made: asked for too much, the system would kill some process, maybe another.
        per_token = model.config.kv_bytes_per_token(4 if kv == "f32" else 2)
        require_memory(model.config.name, 0, pages * PAGE_TOKENS * per_token)
        self._blocks = BlockManager(pages, PAGE_TOKENS)
        self._scheduler = Scheduler(self._blocks, self.limits.max_tokens, self.limits.max_sequences)
        self._runner = _make_runner(model, kernels, self.limits, options, weights)
        self._has_text = text
        self._sequences: dict[int, _InFlight] = {}
        self._ids = itertools.count()
        self._stop_ids = frozenset(model.config.stop_ids)
        self.reset_stats()

    # Requests

    def add(self, prompt_ids: Sequence[int], params: SamplingParams = SamplingParams()) -> int:  # noqa: B008 - frozen
        """Queues a request; returns its id. ``KforgeError`` when it can never run: too long, or unknown token ids."""
        tokens = [int(t) for t in prompt_ids]
        config, capacity = self.model.config, self.limits.pages * self.limits.page_tokens
        if not tokens:
            raise KforgeError("The prompt is empty: give at least one token.")
        if min(tokens) < 0 or max(tokens) >= config.vocab:
            raise KforgeError(f"The prompt has token ids outside 0 .. {config.vocab - 1}.")
        if len(tokens) >= config.context_length:
            raise KforgeError(f"The prompt has {len(tokens)} tokens, but {config.name} takes at most "
                              f"{config.context_length - 1} and one more to answer.")
        limit = min(len(tokens) + params.max_tokens, config.context_length)
        if limit > capacity:
            raise KforgeError(f"Prompt and answer may reach {limit} tokens, but the KV cache holds {capacity}: "
                              "allow more with kv_tokens (--kv-tokens), or ask for fewer tokens.")
        sequence = request.Sequence(next(self._ids), tokens, len(tokens), params, limit)
        text = TextStream(self.model.tokenizer.detokenizer(), params.stop) if self._has_text else None
        self._sequences[sequence.id] = _InFlight(sequence, text)
        self._scheduler.add(sequence)
        return sequence.id

    def abort(self, sequence: int) -> None:
        """Drops a request, wherever it is. Unknown ids (already finished) are ignored."""
        if flight := self._sequences.pop(sequence, None):
            self._scheduler.abort(flight.sequence)

    @property
    def idle(self) -> bool:
        return self._scheduler.idle

    # Steps

    def step(self) -> list[Output]:
        """Computes one step; one output for every sequence that got a token. Empty when idle or amid a long prompt."""
        began = perf_counter()
        batch = self._scheduler.schedule()
        if not batch:
            return []
        shape = self._runner.inputs.fill(batch)
        before = perf_counter()
        self._runner.run(shape)
        after = perf_counter()
        outputs = self._advance(batch)
        self._steps += 1
        self._computed += shape.tokens
        self._generated += len(outputs)
        self._runner_seconds += after - before
        self._seconds += perf_counter() - began
        return outputs

    def _advance(self, batch: list[Scheduled]) -> list[Output]:
        outputs = []
        row = 0
        for item in batch:
            sequence = item.sequence
            sequence.computed += item.count
            if item.samples:
                outputs.append(self._choose(sequence, row))
                row += 1
        return outputs

    def _choose(self, sequence: request.Sequence, row: int) -> Output:
        """Takes the sequence's next token from ``row`` of the step's results, and ends the sequence when it must."""
        params, position = sequence.params, sequence.wanted
        if self.on_logits is not None:
            self.on_logits(sequence.id, position, self._runner.logits[row])
        if params.temperature == 0.0:
            token = int(self._runner.greedy[row])
        else:
            token = sample(self._runner.logits[row], params, position)
        sequence.tokens.append(token)
        text = self._sequences[sequence.id].text
        ended = token in self._stop_ids and not params.ignore_eos
        piece = "" if text is None or ended else text.push(token)
        finish = None
        if ended:
            finish = FinishReason.END
        elif text is not None and text.stopped:
            finish = FinishReason.STOP
        elif sequence.wanted >= sequence.limit:
            finish = FinishReason.LENGTH
        if finish is not None:
            if text is not None:
                piece += text.end()
            sequence.finish = finish
            self._scheduler.finish(sequence)
            del self._sequences[sequence.id]
        return Output(sequence.id, token, piece, finish)

    # Whole requests

    def generate(self, prompts: Sequence[Sequence[int]],
                 params: SamplingParams | Sequence[SamplingParams] = SamplingParams()) -> list[Completion]:  # noqa: B008
        """Runs all prompts together to their end; completions in the order of the prompts."""
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        ids = [self.add(prompt, p) for prompt, p in zip(prompts, each, strict=True)]
        open_, tokens, pieces = set(ids), {i: list[int]() for i in ids}, {i: list[str]() for i in ids}
        finish: dict[int, FinishReason] = {}
        while open_:
            for output in self.step():
                if output.sequence not in open_:
                    continue
                tokens[output.sequence].append(output.token)
                pieces[output.sequence].append(output.text)
                if output.finish is not None:
                    finish[output.sequence] = output.finish
                    open_.remove(output.sequence)
        return [Completion(i, tuple(tokens[i]), "".join(pieces[i]), finish[i]) for i in ids]

    def stream(self, prompt_ids: Sequence[int], params: SamplingParams = SamplingParams()) -> Iterator[Output]:  # noqa: B008
        """One request, output by output. Closing the iterator drops the request."""
        wanted = self.add(prompt_ids, params)
        try:
            while wanted in self._sequences:
                yield from (o for o in self.step() if o.sequence == wanted)
        finally:
            self.abort(wanted)

    def logits(self, tokens: Sequence[int], chunk: int | None = None) -> np.ndarray:
        """f32[len(tokens), V]: the logits after every token, ``chunk`` tokens a step. Needs an idle engine."""
        if not self.idle:
            raise KforgeError("Logits of a text can only be computed while no request is in flight.")
        sequence = request.Sequence(next(self._ids), list(tokens), len(tokens), SamplingParams(), len(tokens))
        size = min(chunk or self.limits.max_sequences, self.limits.max_sequences)
        out = np.empty((len(tokens), self.model.config.vocab), np.float32)
        if not self._blocks.extend(sequence.table, len(tokens)):
            raise KforgeError(f"A text of {len(tokens)} tokens is longer than the KV cache; allow more with kv_tokens.")
        try:
            for start in range(0, len(tokens), size):
                count = min(size, len(tokens) - start)
                shape = self._runner.inputs.fill([Scheduled(sequence, start, count, True)], every_row=True)
                self._runner.run(shape)
                out[start : start + count] = self._runner.logits[:count]
        finally:
            self._blocks.release(sequence.table)
        return out

    # What it did

    @property
    def stats(self) -> EngineStats:
        return EngineStats(self._steps, self._computed, self._generated, self._scheduler.preemptions, self._seconds,
                           self._runner_seconds)

    def reset_stats(self) -> None:
        self._steps = self._computed = self._generated = self._scheduler.preemptions = 0
        self._seconds = self._runner_seconds = 0.0

    @property
    def isolated(self) -> bool:
        """Whether kernels run in a process of their own."""
        return self._runner.isolated

    def kernels_used(self) -> list[KernelUse]:
        """Every kernel that ran so far, with its hash and call count."""
        return self._runner.kernels_used()

    def check_integrity(self) -> None:
        """Raises AssertionError unless pages are exactly those that running sequences hold."""
        self._scheduler.check_integrity()

    def close(self) -> None:
        """Gives threads and memory back. The engine must not be used afterwards."""
        self._runner.close()


@dataclass(frozen=True)
class _InFlight:
    sequence: request.Sequence
    text: TextStream | None


def _make_runner(model: Model, kernels: str | KernelSet, limits: StepLimits, options: RunnerOptions,
                 weights: Weights | None) -> Runner:
    if kernels == "none":
        from kforge.engine.torch_runner import TorchRunner

        return TorchRunner(model, limits, options)
    from kforge.engine.kernel_set import named
    from kforge.engine.native_runner import NativeRunner

    chosen = named(kernels) if isinstance(kernels, str) else kernels
    return NativeRunner(model, chosen, limits, options, weights)
