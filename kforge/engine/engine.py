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
from kforge.engine.cache_groups import CacheLayout, CachePlan, page_bytes
from kforge.engine.choice import NoTokenError, choose, score_prompt
from kforge.engine.draft_model import DraftModel, DraftStats, ModelDrafter
from kforge.engine.drafting import Guesser, Speculation
from kforge.engine.memory import require_memory
from kforge.engine.rejection import Guess
from kforge.engine.request import Completion, FinishReason, Output, SamplingParams
from kforge.engine.runner import KernelUse, RunnerOptions
from kforge.engine.runners import Runners
from kforge.engine.scheduler import PrefixStats, Scheduled, Scheduler
from kforge.engine.speculation import guessing
from kforge.engine.stats import EngineStats
from kforge.engine.steps import StepLimits
from kforge.engine.text import TextStream

if TYPE_CHECKING:
    from kforge.engine.kernel_set import KernelSet
    from kforge.engine.weights import Weights
    from kforge.models.model import Model

LogitsObserver = Callable[[int, int, np.ndarray], None]


class Engine:
    """Continuous batching over a paged KV cache.

    ``kernels``: "none" (torch on weights dequantised once, in ``torch_dtype``), "default" (shipped templates at their
    defaults), "tuned" (the registry's, the default where it has none), or a ``KernelSet``. With exact kernels logits do
    not depend on the batch, the chunking, the prefix cache, preemption or speculation, bit for bit; torch makes no
    such promise.
    ``kv``: element type of the cache (f32, bf16, f16, i8); ``act``: activations, "a8" (int8 with integer weights, the
    default), "bf16" (and bf16 with bf16 weights) or "f32". ``kv_tokens``: positions that the cache holds in all; layers
    with a window get room for what they see, if that is less. ``rows``: panel height of packed weights (None: the
    kernel set's choice). ``text`` False: outputs carry ids only, no tokenizer is needed.
    ``weights``: packed weights to share with other engines on kernels for the same model. ``isolate``: kernels run in
    a locked-down process of their own (None: when the kernel set has any from elsewhere); a kernel that crashes, hangs
    or does what it must not is then a ``KforgeError`` that names it.
    ``prefix_cache``: what is computed is found again by later prompts that begin alike.
    ``max_prefill_tokens_per_step``: prompt tokens of a step in which others decode, which bounds how long those wait
    (None: the step's whole budget).
    ``speculate``: tokens are guessed, where that pays: "ngram" by prompt look-up, "draft" by ``draft_model``, a smaller
    model with the same vocabulary; or a ``Speculation`` or ``DraftModel`` of this engine's own.
    ``relaxed_sampling``: requests that sample get tokens of the same distribution, but which ones depends on what was
    guessed, too; more guesses are accepted so.
    Raises ``KforgeError`` for a model that does not fit into memory.
    """

    def __init__(self, model: Model, kernels: str | KernelSet = "none", *, threads: int | None = None,
                 kv: str = DEFAULT_KV, act: str | None = None, max_tokens_per_step: int = STEP_TOKENS,
                 max_sequences: int = 64, kv_tokens: int = DEFAULT_KV_TOKENS, rows: int | None = None,
                 torch_dtype: str = "f32", text: bool = True, weights: Weights | None = None,
                 isolate: bool | None = None, prefix_cache: bool = True,
                 max_prefill_tokens_per_step: int | None = None,
                 speculate: str | Speculation | DraftModel | None = None, draft_model: Model | None = None,
                 relaxed_sampling: bool = False) -> None:
        prefill = max_tokens_per_step if max_prefill_tokens_per_step is None else max_prefill_tokens_per_step
        if min(max_sequences, max_tokens_per_step, kv_tokens, prefill) < 1:
            raise KforgeError("max_sequences, max_tokens_per_step, max_prefill_tokens_per_step and kv_tokens must be "
                              "at least 1.")
        asked = guessing(speculate, draft_model)
        if relaxed_sampling and asked is None:
            raise KforgeError("Relaxed sampling is a way to check guesses: say how to guess (speculate, --speculate).")
        if isinstance(asked, DraftModel):
            asked.check(model, text)
        max_sequences = min(max_sequences, max_tokens_per_step)
        # A single sequence's guesses want more rows of logits than it has sequences.
        drafted = asked.max_draft if asked else 0
        most_rows = max(max_sequences, min(1 + drafted, max_tokens_per_step))
        windows, kv_pages = CacheLayout.of(model.config).windows, -(-kv_tokens // PAGE_TOKENS)
        plan = CachePlan.of(windows, kv_pages, PAGE_TOKENS, max_sequences, max_tokens_per_step)
        options = RunnerOptions(threads, kv, act or DEFAULT_ACT, rows, torch_dtype, isolate)
        self.model = model
        self.limits = StepLimits(max_tokens_per_step, most_rows, plan.pages, PAGE_TOKENS,
                                 min(model.config.context_length, plan.positions), len(windows))
        self.on_logits: LogitsObserver | None = None  # gets (sequence, position of the token to choose, f32[V] view)
        # Before even the list of pages is made: asked for too much, the system would kill some process, maybe another.
        require_memory(model.config.name, 0, plan.pages * page_bytes(model.config, PAGE_TOKENS, kv))
        self._blocks = BlockManager(plan.pages, PAGE_TOKENS, prefix_cache, windows, max_tokens_per_step)
        self._has_text = text
        self._sequences: dict[int, _InFlight] = {}
        self._ids = itertools.count()
        self._stop_ids = frozenset(model.config.stop_ids)
        runners = Runners(kernels, options)
        self._runner = runners.make(model, self.limits, weights)
        self._relaxed = relaxed_sampling
        self._draft: ModelDrafter | None = None
        if isinstance(asked, DraftModel):
            limits = asked.limits(self.limits, max_sequences, kv_pages)
            try:
                runner = runners.make(asked.model, limits, asked.weights)
            except BaseException:
                self._runner.close()
                raise
            self._draft = ModelDrafter(asked, runner, limits, vocab=model.config.vocab, stop_ids=self._stop_ids,
                                       catch_up=prefill, prefix_cache=prefix_cache, distributions=relaxed_sampling)
        self._speculation: Guesser | None = self._draft if isinstance(asked, DraftModel) else asked
        self._scheduler = Scheduler(self._blocks, max_tokens_per_step, max_sequences, max_prefill_tokens=prefill,
                                    max_rows=most_rows, drafter=self._speculation)
        self.reset_stats()

    # Requests

    def add(self, prompt_ids: Sequence[int], params: SamplingParams = SamplingParams()) -> int:  # noqa: B008 - frozen
        """Queues a request; returns its id. ``KforgeError`` when it can never run: too long, or unknown token ids."""
        tokens = [int(t) for t in prompt_ids]
        config, capacity = self.model.config, self.limits.context
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
            self._forget_drafts(sequence)

    @property
    def idle(self) -> bool:
        return self._scheduler.idle

    @property
    def waiting(self) -> int:
        """Requests that hold no pages: new ones, and those that were preempted."""
        return len(self._scheduler.waiting)

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def pages_in_use(self) -> int:
        """Pages of the KV cache that running requests hold, shared ones counted once: 64 positions of one group of
        layers."""
        return self._blocks.pages - self._blocks.free_pages

    @property
    def pages_kept(self) -> int:
        """Pages that nobody holds, whose contents a later prompt may share."""
        return self._blocks.kept_pages

    # Steps

    def step(self) -> list[Output]:
        """Computes one step; an output for every token that a sequence got. Empty when idle or amid a long prompt."""
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
        self._runner_seconds += after - before
        seconds = perf_counter() - began
        self._seconds += seconds
        if self._speculation is not None and shape.tokens == shape.rows:  # nothing but decoding
            self._speculation.passed(shape.sequences, shape.tokens, seconds)
        return outputs

    def _advance(self, batch: list[Scheduled]) -> list[Output]:
        outputs: list[Output] = []
        row = 0
        for item in batch:
            flight = self._sequences.get(item.sequence.id)
            if flight is not None:  # else it was dropped while others of this step were served
                if item.rows and item.sequence.params.prompt_logprobs is not None:
                    self._score_prompt(item, row)
                if item.samples:
                    self._sample(item, row + item.rows - 1 - len(item.drafts), flight, outputs)
                else:
                    self._scheduler.advance(item.sequence, item.count)
            row += item.rows
        return outputs

    def _score_prompt(self, item: Scheduled, row: int) -> None:
        first = item.start + item.count - item.rows
        score_prompt(self._runner.logits[row : row + item.rows], first, item.sequence)

    def _sample(self, item: Scheduled, row: int, flight: _InFlight, outputs: list[Output]) -> None:
        """Takes the sequence's next tokens, the first one from ``row``, for as long as they are what was drafted."""
        sequence, drafts = item.sequence, item.drafts
        accepted = 0
        while True:
            output = self._choose(flight, row + accepted, self._guess(item, accepted))
            if output is None:
                return
            outputs.append(output)
            if accepted == len(drafts) or output.finish is not None or output.token != drafts[accepted]:
                break
            accepted += 1
        # What was computed behind the last token taken is no part of the text: it is computed again, in the same slots.
        self._scheduler.advance(sequence, item.count - len(drafts) + accepted)
        self._passes += 1
        produced = accepted + (output.token >= 0)
        self._generated += produced
        if self._speculation is not None:
            self._drafted += len(drafts)
            self._accepted += accepted
            self._speculation.learn(sequence, produced)
        if output.finish is not None:
            self._scheduler.finish(sequence)
            del self._sequences[sequence.id]
            self._forget_drafts(sequence.id)

    def _guess(self, item: Scheduled, at: int) -> Guess | None:
        """What was guessed in the place of the next token, where that decides which one it is."""
        if not self._relaxed or at >= len(item.drafts) or item.sequence.params.greedy:
            return None
        drawn_from = None if self._draft is None else self._draft.distribution(item.sequence.id, at)
        return Guess(item.drafts[at], drawn_from)

    def _choose(self, flight: _InFlight, row: int, guess: Guess | None) -> Output | None:
        """The sequence's next token, from ``row`` of the step's results. None: the observer dropped the sequence."""
        sequence, text = flight.sequence, flight.text
        params, position = sequence.params, len(sequence.tokens)
        if self.on_logits is not None:
            self.on_logits(sequence.id, position, self._runner.logits[row])
            if sequence.id not in self._sequences:
                return None
        likely = None
        if params.plain_greedy:
            token = int(self._runner.greedy[row])
        else:
            try:
                token, likely = choose(self._runner.logits[row], sequence, guess)
            except NoTokenError as error:
                rest = "" if text is None else text.end()
                return Output(sequence.id, -1, rest, FinishReason.FAILED, error=str(error))
        sequence.tokens.append(token)
        ended = token in self._stop_ids and not params.ignore_eos
        piece = "" if text is None or ended else text.push(token)
        finish = None
        if ended:
            finish = FinishReason.END
        elif text is not None and text.stopped:
            finish = FinishReason.STOP
        elif position + 1 >= sequence.limit:
            finish = FinishReason.LENGTH
        if finish is not None and text is not None:
            piece += text.end()
        if params.prompt_logprobs is not None and position == sequence.prompt_length:
            return Output(sequence.id, token, piece, finish, likely, prompt_logprobs=tuple(sequence.prompt_rows))
        return Output(sequence.id, token, piece, finish, likely)

    def _forget_drafts(self, sequence: int) -> None:
        if self._speculation is not None:
            self._speculation.drop(sequence)

    # Whole requests

    def generate(self, prompts: Sequence[Sequence[int]],
                 params: SamplingParams | Sequence[SamplingParams] = SamplingParams()) -> list[Completion]:  # noqa: B008
        """Runs all prompts together to their end; completions in the order of the prompts. When one of them fails, or a
        step does, all are dropped."""
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        ids = [self.add(prompt, p) for prompt, p in zip(prompts, each, strict=True)]
        open_, tokens, pieces = set(ids), {i: list[int]() for i in ids}, {i: list[str]() for i in ids}
        finish: dict[int, FinishReason] = {}
        try:
            while open_:
                for output in self.step():
                    if output.sequence not in open_:
                        continue
                    if output.error is not None:
                        raise KforgeError(output.error)
                    tokens[output.sequence].append(output.token)
                    pieces[output.sequence].append(output.text)
                    if output.finish is not None:
                        finish[output.sequence] = output.finish
                        open_.remove(output.sequence)
        finally:
            for i in open_:
                self.abort(i)
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
        if len(tokens) > self.limits.context:
            raise KforgeError(f"A text of {len(tokens)} tokens is longer than the {self.limits.context} that model and "
                              "KV cache take; the latter takes more with kv_tokens.")
        sequence = request.Sequence(next(self._ids), list(tokens), len(tokens), SamplingParams(), len(tokens),
                                    tables=self._blocks.new_tables())
        size = min(chunk or self.limits.max_sequences, self.limits.max_sequences)
        out = np.empty((len(tokens), self.model.config.vocab), np.float32)
        try:
            for start in range(0, len(tokens), size):
                count = min(size, len(tokens) - start)
                self._blocks.release_behind(sequence.tables, start)
                extended = self._blocks.extend(sequence.tables, start + count)
                assert extended, "an idle pool holds what one sequence needs"
                shape = self._runner.inputs.fill([Scheduled(sequence, start, count, rows=count)])
                self._runner.run(shape)
                out[start : start + count] = self._runner.logits[:count]
        finally:
            self._blocks.release(sequence.tables)
        return out

    # What it did

    @property
    def stats(self) -> EngineStats:
        prefix, draft = self._scheduler.prefix, self._draft.stats if self._draft else DraftStats()
        return EngineStats(self._steps, self._computed, self._generated, self._scheduler.preemptions, self._seconds,
                           self._runner_seconds, prefix.queries, prefix.query_tokens, prefix.hit_tokens, self._passes,
                           self._drafted, self._accepted, draft.passes, draft.seconds)

    def reset_stats(self) -> None:
        self._steps = self._computed = self._generated = self._scheduler.preemptions = 0
        self._passes = self._drafted = self._accepted = 0
        self._seconds = self._runner_seconds = 0.0
        self._scheduler.prefix = PrefixStats()
        if self._draft is not None:
            self._draft.stats = DraftStats()

    def forget_prefixes(self) -> None:
        """Empties the prefix cache: prompts are computed as if nobody had asked before."""
        self._blocks.forget()
        if self._draft is not None:
            self._draft.cache.blocks.forget()

    @property
    def isolated(self) -> bool:
        """Whether kernels run in a process of their own."""
        return self._runner.isolated

    def kernels_used(self) -> list[KernelUse]:
        """Every kernel that ran so far, with its hash and call count; those of a draft model last."""
        return self._runner.kernels_used() + (self._draft.kernels_used() if self._draft else [])

    def check_integrity(self) -> None:
        """Raises AssertionError unless pages are exactly those that running sequences hold, known by the right keys,
        and nothing is kept of requests that have ended."""
        self._scheduler.check_integrity()
        scheduled = {s.id for s in (*self._scheduler.waiting, *self._scheduler.running)}
        assert scheduled == set(self._sequences), "what is scheduled is not what is in flight"
        if self._draft is not None:
            self._draft.cache.check_integrity()

    def close(self) -> None:
        """Gives threads and memory back. The engine must not be used afterwards."""
        if self._draft is not None:
            self._draft.close()
        self._runner.close()


@dataclass(frozen=True)
class _InFlight:
    sequence: request.Sequence
    text: TextStream | None
