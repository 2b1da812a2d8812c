"""Pages beside one reserved range per request, in the same memory: how many requests are served at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from engine_claims.finding import Finding, ratios, times
from engine_claims.setting import Setting
from engine_claims.traces import Request, chat_trace
from kforge.core.defaults import PAGE_TOKENS
from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams

PART = "paging"
LONGEST = 2048  # what a reservation for the longest takes, as in the vLLM paper's models
MEMORY = 4 * LONGEST  # positions of the KV cache
REQUESTS, SEQUENCES = 80, 64

Reservation = Callable[[Request], int]


class Contiguous:
    """A row of positions of which each holder has one unbroken range, taken where it first fits."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self._held: dict[int, int] = {}  # first position: how many

    def take(self, size: int) -> int | None:
        """The first position of a range of ``size``; None when there is no gap so long."""
        at = 0
        for start, held in sorted(self._held.items()):
            if start - at >= size:
                break
            at = start + held
        if at + size > self.positions:
            return None
        self._held[at] = size
        return at

    def give(self, start: int) -> None:
        del self._held[start]


@dataclass(frozen=True)
class Served:
    """``at_once``: requests that were being computed, on average over the time in which others waited."""

    seconds: float
    tokens: int
    at_once: float
    preemptions: int

    @property
    def rate(self) -> float:
        """Tokens of answers per second."""
        return self.tokens / self.seconds


def serve(engine: Engine, requests: list[Request], memory: Contiguous | None = None,
          reserved: Reservation | None = None) -> Served:
    """Serves all requests, which are there from the start, in their order.

    With ``memory`` a request is begun when the range that ``reserved`` says has been found for it, and holds it to its
    end; without, the engine begins what its pages allow. Needs an idle engine without a prefix cache.
    """
    waiting = deque(requests)
    ranges: dict[int, int] = {}
    busy = weighted = total = 0.0
    before = engine.stats
    while waiting or not engine.idle:
        while waiting:
            start = None
            if memory is not None and reserved is not None:
                start = memory.take(reserved(waiting[0]))
                if start is None:
                    break
            request = waiting.popleft()
            number = engine.add(request.prompt, SamplingParams(max_tokens=request.answer, ignore_eos=True))
            if start is not None:
                ranges[number] = start
        began = perf_counter()
        outputs = engine.step()
        seconds = perf_counter() - began
        ended = [output.sequence for output in outputs if output.finish is not None]
        total += seconds
        if waiting or engine.waiting:
            busy += seconds
            weighted += seconds * (engine.running + len(ended))
        for number in ended:
            if memory is not None:
                memory.give(ranges.pop(number))
    after = engine.stats
    return Served(total, after.generated_tokens - before.generated_tokens, weighted / busy if busy else 0.0,
                  after.preemptions - before.preemptions)


def reservations(longest: int) -> dict[str, Reservation]:
    """The vLLM paper's three ways to reserve: the longest that a request may become; its answer's length rounded up to
    a power of two; its true length, which nobody knows beforehand."""
    return {"longest": lambda request: longest,
            "power of two": lambda r: min(len(r.prompt) + (1 << (r.answer - 1).bit_length()), longest),
            "oracle": lambda r: len(r.prompt) + r.answer}


def measure(setting: Setting) -> tuple[list[Finding], dict[str, object]]:
    longest = setting.context(LONGEST)
    positions = MEMORY * longest // LONGEST
    count, vocab = setting.count(REQUESTS, 12), setting.model.config.vocab
    ways = reservations(longest)
    common = {"max_sequences": SEQUENCES, "prefix_cache": False}
    paged = setting.engine(kv_tokens=positions, **common)
    # Ranges are of positions: what rounding to this engine's pages would waste is given on top.
    ranged = setting.engine(kv_tokens=positions + PAGE_TOKENS * SEQUENCES, **common)
    seen: dict[str, list[Served]] = {name: [] for name in ("paged", *ways)}
    for number, name in setting.turns(tuple(seen)):
        setting.say(f"{PART}: round {number} of {setting.rounds}, {name}")
        requests = chat_trace(number, count, vocab, longest)
        if name == "paged":
            served = serve(paged, requests)
        else:
            served = serve(ranged, requests, Contiguous(positions), ways[name])
        if number:
            seen[name].append(served)
    paged.close()
    ranged.close()
    usual = median(len(r.prompt) + r.answer for n in range(1, setting.rounds + 1)
                   for r in chat_trace(n, count, vocab, longest))
    return [_finding(name, seen, positions, longest, usual) for name in ways], {
        "positions": positions, "requests": count, "served": {n: [vars(s) for s in runs] for n, runs in seen.items()}}


@dataclass(frozen=True)
class _Claim:
    claim: str
    who: str
    figure: str


_CLAIMS = {
    "longest": _Claim("3x as many requests in the same memory as with the longest reserved",
                      "said of paged attention at large; the vLLM paper (SOSP 2023, section 6.2) has 4.3x for OPT-13B "
                      "on ShareGPT", "3x; 4.3x"),
    "power of two": _Claim("more requests than with answers reserved as powers of two",
                           "the vLLM paper has it between its other two ways to reserve", "2.2x to 4.3x"),
    "oracle": _Claim("more requests than when all lengths are known beforehand",
                     "vLLM paper, section 6.2, OPT-13B on ShareGPT", "2.2x"),
}


def _finding(name: str, seen: dict[str, list[Served]], positions: int, longest: int, usual: float) -> Finding:
    paged, other = seen["paged"], seen[name]
    at_once = ratios([s.at_once for s in paged], [s.at_once for s in other])
    rate = ratios([s.rate for s in paged], [s.rate for s in other])
    said = _CLAIMS[name]
    beside = (f"{median([s.at_once for s in paged]):.1f} beside {median([s.at_once for s in other]):.1f} at once in "
              f"{positions} positions; tokens/s {times(rate)}; "
              f"{median(s.preemptions for s in paged):.0f} preemptions")
    why = {
        "longest": f"{longest} positions are reserved, and half of the trace's requests never fill {usual:.0f}: the "
                   "longer the reserved length beside the usual one, the larger the ratio.",
        "power of two": "At most half of an answer's range stays empty for good, the rest fills up token by token; "
                        "ranges leave gaps, too, that no request fits.",
        "oracle": "A range is held from the start though it fills up only at the end, so about half of the answers' "
                  "part is empty on average; no more is to be had. The paper's Orca also rounds ranges up to a buddy "
                  "allocator's sizes, this one takes the first gap that fits.",
    }[name]
    return Finding(PART, said.claim, said.who, said.figure, at_once, "x", beside, why)
