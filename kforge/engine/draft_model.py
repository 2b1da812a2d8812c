"""Guesses by a second, smaller model with the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kforge.core.errors import KforgeError
from kforge.engine import request
from kforge.engine.cache_groups import CacheLayout
from kforge.engine.draft_cache import DraftCache, Follower
from kforge.engine.drafting import MAX_DRAFT
from kforge.engine.luck import TrackRecord
from kforge.engine.pacing import AdaptivePolicy, GuessTimes, Policy, Price
from kforge.engine.runner import KernelUse, Runner
from kforge.engine.sampling import Distribution, distribution, draw, uniform
from kforge.engine.scheduler import Scheduled
from kforge.engine.steps import StepLimits

if TYPE_CHECKING:
    from kforge.engine.weights import Weights
    from kforge.models.model import Model

_USUAL_ANSWER = 128.0  # tokens, before any answer has ended
_ANSWERS = 0.9  # what the usual length keeps of itself with each answer that ends


@dataclass(frozen=True)
class DraftModel:
    """The model to guess with. ``weights``: packed ones to share, as those of ``Engine``. ``policy``: of one engine
    alone; None: by measured times and luck."""

    model: Model
    weights: Weights | None = None
    policy: Policy | None = None
    max_draft: int = MAX_DRAFT

    def limits(self, target: StepLimits, max_sequences: int, kv_pages: int) -> StepLimits:
        """The largest step of the draft model beside a target with such limits; its cache holds ``kv_pages`` of text
        in every group of its layers."""
        context = min(self.model.config.context_length, target.context, kv_pages * target.page_tokens)
        groups = len(CacheLayout.of(self.model.config).windows)
        return StepLimits(target.max_tokens, max_sequences, groups * kv_pages, target.page_tokens, context, groups)

    def check(self, target: Model, text: bool) -> None:
        """Raises ``KforgeError`` unless ids mean the same to both models, as far as both have them (vocabularies of one
        tokenizer are padded differently, and in files of another kind by other names). ``text`` False: there may be no
        tokenizers to ask."""
        mine, theirs = self.model.config, target.config
        if not text:
            if mine.vocab != theirs.vocab:
                raise KforgeError(f"{mine.name} cannot guess for {theirs.name}: it has {mine.vocab} tokens, not "
                                  f"{theirs.vocab}.")
            return
        ours, wanted = self.model.tokenizer.vocabulary, target.tokenizer.vocabulary
        pairs = zip(ours.texts[: mine.vocab], wanted.texts[: theirs.vocab], strict=False)
        differing = next((i for i, (a, b) in enumerate(pairs) if a != b and not _padding(a, i) and not _padding(b, i)),
                         None)
        if differing is not None:
            raise KforgeError(f"{mine.name} cannot guess for {theirs.name}: their tokenizers differ. Token {differing} "
                              f"is {ours.texts[differing]!r} to the one and {wanted.texts[differing]!r} to the other. "
                              "Use a smaller model of the same family.")


def _padding(text: str, token: int) -> bool:
    """Whether this is how a vocabulary calls a row of the embedding that no token has: not at all in a folder, and in a
    GGUF file as llama.cpp's converter does."""
    return text in ("", f"[PAD{token}]")


class ModelDrafter:
    """Guesses for an engine by a draft model (a ``kforge.engine.drafting.Guesser``).

    A step that only decodes asks it. It brings the draft model's cache to what the sequences have said, which may take
    several steps for a long text, and then guesses token by token, for all sequences together. Sampled requests are
    guessed for with their own noise, so that what the draft model draws is mostly what the target draws. Constraints
    are left alone: those that fail must fail as they would without guesses.

    ``runner``: the draft model's, made for ``limits``; ``vocab``: the target's; ``stop_ids``: nothing is guessed behind
    them. ``catch_up``: tokens of a step that may be spent on what the draft model lacks. ``distributions``: keep what
    guesses were drawn from.
    """

    def __init__(self, asked: DraftModel, runner: Runner, limits: StepLimits, *, vocab: int, stop_ids: frozenset[int],
                 catch_up: int, prefix_cache: bool = True, distributions: bool = False) -> None:
        self.max_draft = asked.max_draft
        self.cache = DraftCache(limits.pages, limits.page_tokens, prefix_cache, limits.groups)
        self.stats = DraftStats()
        self._policy = asked.policy or AdaptivePolicy()
        self._runner, self._limits = runner, limits
        self._known = min(vocab, asked.model.config.vocab)  # ids that both models have
        self._stop_ids, self._catch_up, self._keep = stop_ids, catch_up, distributions
        self._record, self._times = TrackRecord(), GuessTimes()
        self._made: dict[int, _Guesses] = {}  # by sequence, in this step
        self._usual = _USUAL_ANSWER
        self._seconds = 0.0  # that guessing took in this step

    def propose(self, sequences: Sequence[request.Sequence], rooms: Sequence[int], spare: int) -> list[list[int]]:
        began = perf_counter()
        self._made = {}
        followers = [self.cache.follow(sequence) for sequence in sequences]
        offered = [self._offered(follower, room) for follower, room in zip(followers, rooms, strict=True)]
        ahead = [min(sequence.limit - len(sequence.tokens), int(self._usual)) for sequence in sequences]
        behind = [self._times.behind(follower.lacking) for follower in followers]
        rates = [self._record.rate(sequence.id) for sequence in sequences]
        price = Price(self._times.passes(len(sequences)), behind, ahead)
        lengths = self._policy.lengths(rates, offered, spare, price)
        self._guess({f.id: length for f, length in zip(followers, lengths, strict=True) if length}, followers)
        drafts = []
        for follower in followers:
            made = self._made.get(follower.id)
            drafts.append(made.tokens if made else [])
            if made:
                self._record.offer(follower.id, made.tokens)
            else:
                self._record.fade(follower.id)
        self._seconds = perf_counter() - began
        return drafts

    def distribution(self, sequence: int, at: int) -> Distribution:
        """What guess ``at`` of the sequence's last draft was drawn from. For requests that sample."""
        return self._made[sequence].distributions[at]

    def learn(self, sequence: request.Sequence, produced: int) -> None:
        self._record.learn(sequence, produced)

    def passed(self, sequences: int, tokens: int, seconds: float) -> None:
        self._policy.passed(sequences, tokens, seconds, self._seconds)
        self._seconds = 0.0

    def drop(self, sequence: int) -> None:
        self._record.drop(sequence)
        if (said := self.cache.drop(sequence)) is not None:
            self._usual = _ANSWERS * self._usual + (1 - _ANSWERS) * said

    def kernels_used(self) -> list[KernelUse]:
        return [replace(use, label=f"draft.{use.label}") for use in self._runner.kernels_used()]

    def close(self) -> None:
        self._runner.close()

    def _offered(self, follower: Follower, room: int) -> int:
        """Tokens that could be guessed: the last one of them need not be computed."""
        context = self._limits.context - len(follower.tokens) + 1
        return max(min(room, context, self.max_draft), 0) if follower.largest < self._known else 0

    def _guess(self, lengths: dict[int, int], followers: Sequence[Follower]) -> None:
        """Goes on with each text by so many tokens, those that lack the fewest first, as far as ``catch_up`` goes."""
        batch: list[Scheduled] = []
        budget = min(self._limits.max_tokens, max(self._catch_up, 2 * len(lengths)))
        for follower in sorted((f for f in followers if f.id in lengths), key=lambda f: f.lacking):
            count = min(follower.lacking, budget)
            if count and self.cache.make_room(follower, len(follower.tokens) + lengths[follower.id] - 1, lengths):
                reaches = count == follower.lacking
                batch.append(Scheduled(follower, follower.computed, count, int(reaches), reaches))
                budget -= count
        while batch:
            batch = self._pass(batch, lengths)

    def _pass(self, batch: list[Scheduled], lengths: dict[int, int]) -> list[Scheduled]:
        """Computes what is scheduled; a guess for every sequence whose text it reaches the end of, and what is to be
        computed for the guesses after those."""
        began = perf_counter()
        shape = self._runner.inputs.fill(batch)
        before = perf_counter()
        self._runner.run(shape)
        self.stats.seconds += perf_counter() - before
        self.stats.passes += 1
        further: list[Scheduled] = []
        row = 0
        for item in batch:
            follower = item.sequence
            assert isinstance(follower, Follower)
            self.cache.advance(follower, item.count)
            if item.samples:
                if self._take(follower, row, lengths[follower.id]):
                    further.append(Scheduled(follower, follower.computed, 1, 1, True))
                row += 1
        self._times.passed(shape.sequences, shape.tokens, perf_counter() - began)
        return further

    def _take(self, follower: Follower, row: int, wanted: int) -> bool:
        """Guesses the follower's next token by ``row`` of the logits. Whether another one is to be guessed."""
        params, drawn = follower.params, None
        if params.greedy:
            token = int(self._runner.greedy[row])
        else:
            # Of what the target has: were others drawn and left out, guesses would be no sample of their distribution.
            logits = self._runner.logits[row, : self._known]
            if not np.isfinite(logits.max()):  # the model has overflown, and has nothing to guess by
                return False
            drawn = distribution(logits, params)
            token = draw(drawn, uniform(params.seed, len(follower.tokens)))
        if token >= self._known:
            return False
        made = self._made.setdefault(follower.id, _Guesses([], []))
        made.tokens.append(token)
        if drawn is not None and self._keep:
            made.distributions.append(drawn)
        if len(made.tokens) == wanted or (token in self._stop_ids and not params.ignore_eos):
            return False
        follower.tokens.append(token)
        return True


class _Guesses(NamedTuple):
    """For one sequence in one step. ``distributions``: what each token was drawn from, where that is kept."""

    tokens: list[int]
    distributions: list[Distribution]


@dataclass
class DraftStats:
    """What went through the draft model; seconds inside its programs."""

    passes: int = 0
    seconds: float = 0.0
