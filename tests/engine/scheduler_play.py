"""Sequences for a scheduler, and who plays the engine."""

from __future__ import annotations

from kforge.engine.request import SamplingParams, Sequence
from kforge.engine.scheduler import Scheduled, Scheduler

PAGE = 4


def sequence(number: int, tokens: list[int], wanted: int, priority: int = 0, **params: int) -> Sequence:
    return Sequence(number, list(tokens), len(tokens), SamplingParams(max_tokens=wanted, priority=priority, **params),
                    limit=len(tokens) + wanted)


def compute(scheduler: Scheduler, batch: list[Scheduled]) -> None:
    """Plays the engine: everything scheduled is computed, a token follows where a chunk reaches the end."""
    for item in batch:
        if item.samples:
            item.sequence.tokens.append(1000 + len(item.sequence.tokens))
        scheduler.advance(item.sequence, item.count)
        if item.samples and len(item.sequence.generated) == item.sequence.params.max_tokens:
            scheduler.finish(item.sequence)


def run(scheduler: Scheduler, sequences: list[Sequence]) -> None:
    for item in sequences:
        scheduler.add(item)
    for _ in range(20_000):
        if scheduler.idle:
            return
        batch = scheduler.schedule()
        scheduler.check_integrity()
        assert batch, "work waits, but nothing was scheduled"
        assert sum(s.count for s in batch) <= scheduler.max_tokens
        assert len({s.sequence.id for s in batch}) == len(batch) <= scheduler.max_sequences
        for item in batch:
            seq = item.sequence
            assert item.count >= 1 and item.start == seq.computed
            assert seq.room >= item.start + item.count
            assert item.samples == (item.start + item.count == seq.wanted) and item.rows == item.samples
        compute(scheduler, batch)
    raise AssertionError("the loop does not end")
