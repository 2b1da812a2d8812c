"""Requests with the times at which they come, and what was measured of serving them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kforge.core.summary import Summary

_SEED = 2


@dataclass(frozen=True)
class Arrival:
    """One request. ``at``: virtual time, whose unit a run chooses, the same for all engines."""

    at: float
    prompt: tuple[int, ...]
    output: int


@dataclass(frozen=True)
class Trace:
    """``slots``: how many requests run at once at most."""

    name: str
    slots: int
    arrivals: tuple[Arrival, ...]

    @property
    def prompt_tokens(self) -> int:
        return sum(len(a.prompt) for a in self.arrivals)

    @property
    def output_tokens(self) -> int:
        return sum(a.output for a in self.arrivals)

    def request(self, span: float) -> dict[str, object]:
        """What drivers are asked; the last request comes ``span`` seconds after the first."""
        last = max(a.at for a in self.arrivals)
        unit = span / last if last else 0.0
        requests = [{"arrival": a.at * unit, "prompt": a.prompt, "output": a.output} for a in self.arrivals]
        return {"mode": "trace", "slots": self.slots, "requests": requests}

    def shortened(self, prompt: int = 300, output: int = 8) -> Trace:
        """The same slots with short requests, but for the longest one: it brings every program and page into being."""
        longest = max(self.arrivals, key=lambda a: len(a.prompt) + a.output)
        cut = tuple(
            a if a is longest else replace(a, prompt=a.prompt[:prompt], output=min(a.output, output))
            for a in self.arrivals
        )
        return replace(self, arrivals=cut)


def mixed(vocab: int, slots: int = 16, count: int = 24) -> Trace:
    """Prompts of 20 to 2,000 tokens and answers of 10 to 300, each with a uniform logarithm; a Poisson process."""
    rng = np.random.default_rng(_SEED)
    gaps = rng.exponential(size=count)
    prompts, outputs = _lengths(rng, 20, 2000, count), _lengths(rng, 10, 300, count)
    at = np.cumsum(gaps) - gaps[0]
    return Trace(
        f"mixed {count}", slots, tuple(_arrival(rng, vocab, *each) for each in zip(at, prompts, outputs, strict=True))
    )


def full(vocab: int, slots: int, rounds: float = 1.25) -> Trace:
    """``slots`` sequences at a time, always as many as there are left: all come at once, and take up slots that become
    free. Prompts of 20 to 200 tokens, answers of 16 to 64."""
    rng = np.random.default_rng(_SEED)
    count = max(slots + 1, round(slots * rounds))
    prompts, outputs = _lengths(rng, 20, 200, count), _lengths(rng, 16, 64, count)
    return Trace(
        f"{slots} at a time",
        slots,
        tuple(_arrival(rng, vocab, 0.0, *each) for each in zip(prompts, outputs, strict=True)),
    )


def _lengths(rng: np.random.Generator, low: int, high: int, count: int) -> list[int]:
    return [round(x) for x in np.exp(rng.uniform(np.log(low), np.log(high), count))]


def _arrival(rng: np.random.Generator, vocab: int, at: float, prompt: int, output: int) -> Arrival:
    return Arrival(float(at), tuple(int(t) for t in rng.integers(100, vocab - 100, prompt)), output)


@dataclass(frozen=True)
class Served:
    """Figures of one run of a trace. ``throughput``: output tokens a second from the first arrival to the last token;
    seconds for the rest: ``first`` is the median from arrival to the first token, gaps are between the tokens of a
    request, pooled over all of them."""

    seconds: float
    throughput: float
    first: float
    first_worst: float
    gap: float
    gap_p99: float

    @classmethod
    def of(cls, request: dict, times: Sequence[Sequence[float]]) -> Served:
        """``request``: what the driver was asked; ``times``: when each request's tokens came, seconds after the start.
        ``ValueError`` when a request did not get all its tokens."""
        requests = request["requests"]
        for i, (asked, got) in enumerate(zip(requests, times, strict=True)):
            if len(got) != asked["output"]:
                raise ValueError(f"request {i} got {len(got)} of {asked['output']} tokens")
        seconds = max(got[-1] for got in times) - min(r["arrival"] for r in requests)
        firsts = [got[0] - asked["arrival"] for asked, got in zip(requests, times, strict=True)]
        gaps = np.concatenate([np.diff(got) for got in times])
        return cls(
            seconds,
            sum(r["output"] for r in requests) / seconds,
            float(np.median(firsts)),
            max(firsts),
            float(np.median(gaps)),
            float(np.percentile(gaps, 99)),
        )


# How many times as good as a peer's a figure is: more tokens a second, or fewer seconds.
BETTER = {
    "throughput": lambda ours, theirs: ours.throughput / theirs.throughput,
    "first token": lambda ours, theirs: theirs.first / ours.first,
    "slowest first token": lambda ours, theirs: theirs.first_worst / ours.first_worst,
    "between tokens": lambda ours, theirs: theirs.gap / ours.gap,
    "between tokens, p99": lambda ours, theirs: theirs.gap_p99 / ours.gap_p99,
}


def ratios(ours: Sequence[Served], theirs: Sequence[Served]) -> dict[str, Summary]:
    """By figure, over runs that were taken in pairs; above 1 where ours are better."""
    pairs = list(zip(ours, theirs, strict=True))
    return {name: Summary.of([better(*pair) for pair in pairs]) for name, better in BETTER.items()}
