"""Random schedules of requests on a small model, held against what each request gets alone, to the bit.

A schedule says which requests come when, which are dropped (between steps, or amid one by who looks at its logits), on
which engine (batch, chunking, pool, cache, threads) and how tokens are guessed. Whatever it is, it must come to its end
with nothing left over, and every request must get the tokens, logits and log probabilities that it gets alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b

import numpy as np
from toy_model import CONFIG, DRAFT_CONFIG, ToyModel

from kforge.core.defaults import DEFAULT_KV
from kforge.engine.draft_model import DraftModel
from kforge.engine.drafting import PromptLookup, Speculation
from kforge.engine.engine import Engine
from kforge.engine.kernel_set import KernelSet
from kforge.engine.pacing import AdaptivePolicy, Price
from kforge.engine.request import Output, SamplingParams
from kforge.engine.weights import Weights

BANK = 40  # different requests
STEPS = 30  # in which requests of a schedule come
MOST_STEPS = 20_000  # eight requests of 250 tokens take 2000, token by token, if none is preempted


class Guessing(StrEnum):
    NONE = "none"
    SHIPPED = "shipped"  # prompt look-up or the engine's draft model, checked where it pays
    ALWAYS = "always"  # the same, always checked
    HINDSIGHT = "hindsight"  # what the request says alone, with mistakes; or by the draft model, now more, now fewer


@dataclass(frozen=True)
class EngineShape:
    max_sequences: int
    max_tokens: int
    max_prefill: int
    pages: int  # of 64 positions
    prefix_cache: bool
    threads: int
    draft: bool  # guesses come of a draft model


@dataclass(frozen=True)
class Arrival:
    request: int  # in the bank
    step: int
    priority: int = 0
    dropped_after: int | None = None  # steps
    dropped_at: int | None = None  # dropped by ``on_logits`` when it sees the logits of so many tokens


@dataclass(frozen=True)
class Schedule:
    engine: int
    guessing: Guessing
    arrivals: tuple[Arrival, ...]


@dataclass(frozen=True)
class Said:
    """Everything that a request got. ``bits``: a digest of the logits of each token."""

    outputs: tuple[Output, ...]
    bits: tuple[bytes, ...]

    def begins(self, whole: Said) -> bool:
        return self.outputs == whole.outputs[: len(self.outputs)] and self.bits == whole.bits[: len(self.bits)]


@dataclass
class Coverage:
    """What the schedules so far made happen."""

    schedules: int = 0
    requests: int = 0
    dropped: int = 0
    dropped_inside: int = 0  # of those, amid a step
    failed: int = 0  # ended by their constraint
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_passes: int = 0


class EveryThird:
    """A constraint: two of three tokens, other ones at every place; None at some, and a mask cut short at others."""

    def allowed(self, tokens: Sequence[int]) -> np.ndarray | None:
        if len(tokens) % 5 == 4:
            return None
        mask = (np.arange(CONFIG.vocab) + len(tokens)) % 3 != 0
        return mask[:200] if len(tokens) % 4 == 3 else mask


class FailsLater:
    """A constraint that breaks at an answer's seventh token: that request must end, and no other notice."""

    def allowed(self, tokens: Sequence[int]) -> np.ndarray | None:
        if len(tokens) == 6:
            raise ValueError("broken")
        return None


def random_shape(rng: random.Random, number: int) -> EngineShape:
    """Every other one has a draft model, one of three goes without a prefix cache, and one of four has two threads: not
    more, for where other work keeps a core busy each of their barriers waits for it."""
    return EngineShape(rng.choice([1, 2, 3, 5, 8]), rng.choice([5, 16, 64, 200]), rng.choice([6, 32, 200]),
                       rng.choice([4, 5, 7, 12, 24]), number % 3 != 2, 2 if number % 4 == 3 else 1,
                       number % 2 == 1)


def random_schedule(rng: random.Random, engines: int) -> Schedule:
    arrivals = tuple(
        Arrival(rng.randrange(BANK), rng.randrange(STEPS), rng.choice([0, 0, 1]),
                rng.randrange(20) if rng.random() < 0.15 else None, rng.randint(1, 20) if rng.random() < 0.1 else None)
        for _ in range(rng.randint(1, 8)))
    return Schedule(rng.randrange(engines), rng.choice(list(Guessing)), arrivals)


@dataclass(frozen=True)
class _Request:
    prompt: list[int]
    params: SamplingParams


class Lab:
    """The engines that schedules run on, made when they are first used, and the requests with what they get alone.

    An engine keeps its prefix cache from schedule to schedule. ``kv``: element type of its KV cache; ``model``: any toy
    with ``CONFIG``'s vocabulary and context.
    """

    def __init__(self, kernels: KernelSet, engines: int, seed: int = 0, kv: str = DEFAULT_KV,
                 model: ToyModel | None = None) -> None:
        rng = random.Random(seed)
        self._model, self._kernels, self._kv = model or ToyModel(), kernels, kv
        self._weights = Weights(self._model)
        self._draft = ToyModel(DRAFT_CONFIG)
        self._draft_weights = Weights(self._draft)
        self._shapes = [random_shape(rng, n) for n in range(engines)]
        self._engines: dict[int, Engine] = {}
        self._guesses = [_Guesses(seed) for _ in range(engines)]
        self.coverage = Coverage()
        self._requests = _bank(rng)
        plain = Engine(self._model, kernels, weights=self._weights, threads=1, max_sequences=1, kv_tokens=256,
                       text=False, prefix_cache=False, kv=kv)
        try:
            self._alone = [self._said_alone(plain, r) for r in self._requests]
        finally:
            plain.close()

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()

    def differing(self, schedule: Schedule) -> list[int]:
        """Runs a schedule to its end; which of its arrivals got anything else than alone. AssertionError when it does
        not come to its end, or leaves anything behind."""
        engine = self._engine(schedule.engine)
        self._guesses[schedule.engine].begin(schedule.guessing, self._texts(schedule))
        before, counted = engine.stats, self.coverage
        ids: dict[int, int] = {}  # arrival: the engine's id
        said: dict[int, list[Output]] = {}  # by the engine's id, both
        bits: dict[int, list[bytes]] = {}
        leaves: dict[int, int] = {}

        def look(sequence: int, position: int, logits: np.ndarray) -> None:
            bits[sequence].append(_digest(logits))
            if len(bits[sequence]) == leaves.get(sequence):
                engine.abort(sequence)

        engine.on_logits = look
        step, last = 0, max(a.step for a in schedule.arrivals)
        while step <= last or not engine.idle:
            for n, arrival in enumerate(schedule.arrivals):
                if arrival.step == step:
                    request = self._requests[arrival.request]
                    ids[n] = engine.add(request.prompt, replace(request.params, priority=arrival.priority))
                    said[ids[n]], bits[ids[n]] = [], []
                    if arrival.dropped_at is not None:
                        leaves[ids[n]] = arrival.dropped_at
                if arrival.dropped_after is not None and arrival.step + arrival.dropped_after == step:
                    engine.abort(ids[n])
            for output in engine.step():
                said[output.sequence].append(output._replace(sequence=0))
            engine.check_integrity()
            step += 1
            assert step < MOST_STEPS, f"{engine.waiting} requests wait and {engine.running} run without end"
        assert engine.pages_in_use == 0, "idle, but pages are held"
        engine.on_logits = None
        counted.schedules += 1
        counted.requests += len(ids)
        counted.preemptions += engine.stats.preemptions - before.preemptions
        counted.prefix_hit_tokens += engine.stats.prefix_hit_tokens - before.prefix_hit_tokens
        counted.drafted += engine.stats.drafted_tokens - before.drafted_tokens
        counted.accepted += engine.stats.accepted_tokens - before.accepted_tokens
        counted.draft_passes += engine.stats.draft_passes - before.draft_passes
        wrong = []
        for n, arrival in enumerate(schedule.arrivals):
            got, alone = Said(tuple(said[ids[n]]), tuple(bits[ids[n]])), self._alone[arrival.request]
            whole = bool(got.outputs) and got.outputs[-1].finish is not None
            counted.dropped += not whole
            counted.dropped_inside += not whole and len(got.bits) == arrival.dropped_at
            counted.failed += whole and got.outputs[-1].error is not None
            stays = arrival.dropped_after is None and arrival.dropped_at is None
            right = got == alone if whole or stays else got.begins(alone)
            if not right:
                wrong.append(n)
        return wrong

    def _engine(self, at: int) -> Engine:
        if at not in self._engines:
            s, guesses = self._shapes[at], self._guesses[at]
            speculate = (DraftModel(self._draft, self._draft_weights, guesses) if s.draft
                         else Speculation(guesses.lookup, guesses))
            self._engines[at] = Engine(
                self._model, self._kernels, weights=self._weights, threads=s.threads, max_sequences=s.max_sequences,
                max_tokens_per_step=s.max_tokens, max_prefill_tokens_per_step=s.max_prefill, kv_tokens=64 * s.pages,
                prefix_cache=s.prefix_cache, text=False, kv=self._kv, speculate=speculate)
        return self._engines[at]

    def _texts(self, schedule: Schedule) -> list[list[int]]:
        return [self._requests[a.request].prompt + [o.token for o in self._alone[a.request].outputs if o.token >= 0]
                for a in schedule.arrivals]

    def _said_alone(self, engine: Engine, request: _Request) -> Said:
        bits: list[bytes] = []
        engine.on_logits = lambda sequence, position, logits: bits.append(_digest(logits))
        outputs = tuple(o._replace(sequence=0) for o in engine.stream(request.prompt, request.params))
        return Said(outputs, tuple(bits))


@dataclass
class _Guesses:
    """A policy and its look-ups, both in the way that the schedule at hand asks for."""

    seed: int
    way: Guessing = Guessing.NONE
    texts: list[list[int]] = field(default_factory=list)
    adaptive: AdaptivePolicy = field(default_factory=AdaptivePolicy)
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def begin(self, way: Guessing, texts: list[list[int]]) -> None:
        self.way, self.texts, self.rng = way, texts, random.Random(self.seed)

    def lookup(self) -> PromptLookup | _Hindsight:
        return _Hindsight(self.texts, random.Random(self.seed)) if self.way is Guessing.HINDSIGHT else PromptLookup()

    def lengths(self, rates: Sequence[float], offered: Sequence[int], spare: int,
                price: Price | None = None) -> list[int]:
        if self.way is Guessing.SHIPPED:
            return self.adaptive.lengths(rates, offered, spare, price)
        lengths = []
        for offer in offered:
            if self.way is Guessing.HINDSIGHT and price is not None:
                offer = self.rng.randint(0, offer)
            lengths.append(0 if self.way is Guessing.NONE else min(offer, spare))
            spare -= lengths[-1]
        return lengths

    def passed(self, sequences: int, tokens: int, seconds: float, guessing: float = 0.0) -> None:
        self.adaptive.passed(sequences, tokens, seconds, guessing)


class _Hindsight:
    def __init__(self, texts: list[list[int]], rng: random.Random) -> None:
        self._texts, self._rng = texts, rng

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        for text in self._texts:
            if text[: len(tokens)] == tokens:
                draft = text[len(tokens) : len(tokens) + self._rng.randint(0, k)]
                return [t if self._rng.random() < 0.8 else self._rng.randrange(CONFIG.vocab) for t in draft]
        return []


def _bank(rng: random.Random) -> list[_Request]:
    """Prompts of 1 to some 200 tokens that often begin alike, with every kind of parameter."""
    stems = [[rng.randrange(CONFIG.vocab) for _ in range(length)] for length in (0, 64, 70, 130)]
    bank = []
    for n in range(BANK):
        period = rng.choice([3, 7, 1000])  # short ones give prompt look-up something to find
        tail = [rng.randrange(CONFIG.vocab) for _ in range(min(period, rng.choice([1, 5, 40, 64])))]
        prompt = (rng.choice(stems) + tail * 30)[: rng.choice([1, 9, 63, 64, 65, 100, 129, 200])]
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.0, 0.8, 1.3]), top_p=rng.choice([1.0, 0.9]), top_k=rng.choice([0, 20]),
            seed=n, max_tokens=rng.choice([1, 2, 8, 20, 50]), ignore_eos=rng.random() < 0.7,
            logprobs=rng.choice([None, None, 0, 3]), prompt_logprobs=2 if rng.random() < 0.15 else None,
            constraint=rng.choice([None] * 15 + [EveryThird()] * 4 + [FailsLater()]))
        bank.append(_Request(prompt, params))
    return bank


def _digest(logits: np.ndarray) -> bytes:
    return blake2b(logits.tobytes(), digest_size=16).digest()
