"""Continuous batching beside batches that begin and end together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from time import perf_counter

import numpy as np

from engine_claims.finding import Finding, ratios, times
from engine_claims.setting import Setting
from engine_claims.traces import Request, orca_trace
from kforge.core.defaults import PAGE_TOKENS
from kforge.core.summary import Summary
from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams

PART = "batching"
BATCH, REQUESTS = 16, 64
LOAD = 0.7  # of what padded batches can do at most: where latencies are compared


class Way(StrEnum):
    CONTINUOUS = "continuous"
    STATIC = "static"  # seats of answers that have ended stay empty until the last one ends
    PADDED = "static, padded"  # all prompts and answers are computed at the length of the batch's longest


@dataclass(frozen=True)
class Arrival:
    request: Request
    at: float  # seconds since the start


@dataclass(frozen=True)
class Served:
    """``seconds`` until the last answer; ``waits``: seconds from arrival to the whole answer, per token of it."""

    seconds: float
    tokens: int
    waits: list[float]

    @property
    def rate(self) -> float:
        """Wanted tokens of answers per second."""
        return self.tokens / self.seconds


def serve(engine: Engine, arrivals: list[Arrival], way: Way, batch: int) -> Served:
    """Serves the arrivals, ascending in time, at most ``batch`` at once.

    The clock is that of the engine's steps: time in which nothing is to be done is skipped, so a light load costs no
    waiting. The engine must be idle and have at least ``batch`` sequences.
    """
    clock = _Clock()
    waiting = deque(arrivals)
    waits: list[float] = []
    if way is Way.CONTINUOUS:
        _serve_continuous(engine, waiting, batch, clock, waits)
    else:
        while waiting:
            clock.now = max(clock.now, waiting[0].at)
            _serve_batch(engine, list(_arrived(waiting, clock.now, batch)), way, clock, waits)
    return Served(clock.now, sum(arrival.request.answer for arrival in arrivals), waits)


@dataclass
class _Clock:
    now: float = 0.0

    def step(self, engine: Engine) -> list[int]:
        """Makes a step; which sequences ended in it."""
        began = perf_counter()
        outputs = engine.step()
        self.now += perf_counter() - began
        return [output.sequence for output in outputs if output.finish is not None]


def _arrived(waiting: deque[Arrival], now: float, most: int) -> Iterator[Arrival]:
    while most and waiting and waiting[0].at <= now:
        most -= 1
        yield waiting.popleft()


def _serve_continuous(engine: Engine, waiting: deque[Arrival], batch: int, clock: _Clock, waits: list[float]) -> None:
    running: dict[int, Arrival] = {}
    while waiting or running:
        if not running:
            clock.now = max(clock.now, waiting[0].at)
        for arrival in _arrived(waiting, clock.now, batch - len(running)):
            running[_add(engine, arrival.request.prompt, arrival.request.answer)] = arrival
        for number in clock.step(engine):
            arrival = running.pop(number)
            waits.append((clock.now - arrival.at) / arrival.request.answer)


def _serve_batch(engine: Engine, batch: list[Arrival], way: Way, clock: _Clock, waits: list[float]) -> None:
    longest_prompt = max(len(arrival.request.prompt) for arrival in batch)
    longest_answer = max(arrival.request.answer for arrival in batch)
    for arrival in batch:
        prompt, answer = arrival.request.prompt, arrival.request.answer
        if way is Way.PADDED:
            prompt, answer = [*prompt[:1] * (longest_prompt - len(prompt)), *prompt], longest_answer
        _add(engine, prompt, answer)
    while not engine.idle:
        clock.step(engine)
    waits += [(clock.now - arrival.at) / arrival.request.answer for arrival in batch]


def _add(engine: Engine, prompt: list[int], answer: int) -> int:
    return engine.add(prompt, SamplingParams(max_tokens=answer, ignore_eos=True))


def measure(setting: Setting) -> tuple[list[Finding], dict[str, object]]:
    longest, count = setting.context(640), setting.count(REQUESTS, 8)
    engine = setting.engine(max_sequences=BATCH, kv_tokens=BATCH * (longest + PAGE_TOKENS),
                            prefix_cache=False)
    full: dict[Way, list[Served]] = {way: [] for way in Way}
    loaded: dict[Way, list[Served]] = {way: [] for way in Way}
    for number, way in setting.turns(tuple(Way)):
        setting.say(f"{PART}: round {number} of {setting.rounds}, all at once, {way}")
        requests = orca_trace(number, count, setting.model.config.vocab, longest)
        served = serve(engine, [Arrival(request, 0.0) for request in requests], way, BATCH)
        if number:
            full[way].append(served)
    per_second = LOAD * median([count / served.seconds for served in full[Way.PADDED]])
    for number, way in setting.turns(tuple(Way)):
        setting.say(f"{PART}: round {number} of {setting.rounds}, {per_second:.2g} requests/s, {way}")
        times = np.random.default_rng(1000 + number).exponential(1 / per_second, count).cumsum().tolist()
        requests = orca_trace(number, count, setting.model.config.vocab, longest)
        arrivals = [Arrival(request, at) for request, at in zip(requests, times, strict=True)]
        if number:
            loaded[way].append(serve(engine, arrivals, way, BATCH))
    engine.close()
    raw: dict[str, object] = {
        "batch": BATCH, "requests": count, "requests_per_second": per_second,
        "all_at_once": {way: [vars(served) for served in runs] for way, runs in full.items()},
        "loaded": {way: [vars(served) for served in runs] for way, runs in loaded.items()}}
    return _findings(full, loaded), raw


def _findings(full: dict[Way, list[Served]], loaded: dict[Way, list[Served]]) -> list[Finding]:
    rates = {way: [served.rate for served in runs] for way, runs in full.items()}
    waits = {way: [median(served.waits) for served in runs] for way, runs in loaded.items()}
    padded, empty = (ratios(rates[Way.CONTINUOUS], rates[way]) for way in (Way.PADDED, Way.STATIC))
    sooner: Summary = ratios(waits[Way.PADDED], waits[Way.CONTINUOUS])
    return [
        Finding(PART, "more tokens per second than batches that begin and end together",
                "Orca (OSDI 2022): 36.9x at equal latency over FasterTransformer, GPT-3 175B", "36.9x", padded, "x",
                f"{median(rates[Way.CONTINUOUS]):.0f} beside {median(rates[Way.PADDED]):.0f} tokens/s, {BATCH} seats; "
                f"{times(empty)} over batches that do not compute ended answers on",
                "With every request there from the start, what is won is padding and empty seats. The claim is at a "
                "bound on latency that batches meet only when they are nearly empty, with a model spread over several "
                "machines; prompts, most of the work in this trace, cost the same either way."),
        Finding(PART, "answers come sooner at the same load", "Orca, the same experiment from its other side",
                "no single figure", sooner, "x",
                f"seconds per token, arrival to end, at {100 * LOAD:.0f} % of what padded batches can serve: "
                f"{median(waits[Way.PADDED]):.3g} beside {median(waits[Way.CONTINUOUS]):.3g}",
                "Who comes just after a batch has begun waits for all of it, then for the longest of its own.")]
