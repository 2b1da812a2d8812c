"""Continuous batching: which tokens the next step computes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kforge.engine.block_manager import BlockManager
from kforge.engine.request import Sequence


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Tokens ``start`` .. ``start + count - 1`` of ``sequence`` are computed in this step."""

    sequence: Sequence
    start: int
    count: int
    samples: bool  # the chunk reaches the last wanted token: its logits choose the next one


class Scheduler:
    """Moves each sequence's computed tokens towards its wanted tokens, inside a budget of tokens per step.

    There is no prefill and no decode phase: a long prompt takes several steps (chunked), a decoding sequence wants one
    token, and both share a step. Running sequences come first, oldest first; when the pool is dry the youngest loses
    its pages and starts over (its generated tokens are then part of what is recomputed).
    """

    def __init__(self, blocks: BlockManager, max_tokens: int, max_sequences: int) -> None:
        self.blocks = blocks
        self.max_tokens = max_tokens
        self.max_sequences = max_sequences
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def schedule(self) -> list[Scheduled]:
        """The next step's work, with pages for all of it. Empty only when idle: what can't ever fit is not added."""
        batch: list[Scheduled] = []
        budget = self.max_tokens
        preempted = self.preemptions
        while budget and len(batch) < len(self.running):
            sequence = self.running[len(batch)]
            count = min(sequence.wanted - sequence.computed, budget)
            if not self._make_room(sequence, sequence.computed + count):
                break
            batch.append(_take(sequence, count))
            budget -= count
        # A sequence that was just preempted must not come straight back for the pages that it lost.
        while budget and self.waiting and len(self.running) < self.max_sequences and preempted == self.preemptions:
            sequence = self.waiting[0]
            if not self._admit(sequence):
                break
            self.running.append(self.waiting.popleft())
            count = min(sequence.wanted - sequence.computed, budget)
            batch.append(_take(sequence, count))
            budget -= count
        return batch

    def finish(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Drops a sequence that waits or runs."""
        if sequence in self.running:
            self.finish(sequence)
        else:
            self.waiting.remove(sequence)

    def check_integrity(self) -> None:
        self.blocks.check_integrity([s.table for s in self.running])

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Pages for ``tokens`` positions, taken from younger sequences if need be. False: it was the youngest."""
        while not self.blocks.extend(sequence.table, tokens):
            victim = self.running.pop()
            self._release(victim)
            victim.preemptions += 1
            self.preemptions += 1
            self.waiting.appendleft(victim)
            if victim is sequence:
                return False
        return True

    def _admit(self, sequence: Sequence) -> bool:
        """Pages for all that is wanted now, not just the first chunk: half a prompt must not evict another half."""
        prefix = self._common_prefix(sequence)
        if prefix.donor is not None:
            sequence.table = self.blocks.share(prefix.donor.table, prefix.tokens)
        if not self.blocks.extend(sequence.table, sequence.wanted):
            self._release(sequence)
            return False
        sequence.computed = prefix.tokens
        return True

    def _common_prefix(self, sequence: Sequence) -> _Prefix:
        """The running sequence with most full computed pages in common. The last token stays: its logits are needed."""
        page = self.blocks.page_tokens
        best = _Prefix(None, 0)
        for other in self.running:
            most = min(other.computed, sequence.wanted - 1) // page * page
            common = 0
            while common < most and other.tokens[common : common + page] == sequence.tokens[common : common + page]:
                common += page
            if common > best.tokens:
                best = _Prefix(other, common)
        return best

    def _release(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.table)
        sequence.computed = 0
        sequence.table_version += 1


@dataclass(frozen=True)
class _Prefix:
    donor: Sequence | None
    tokens: int


def _take(sequence: Sequence, count: int) -> Scheduled:
    return Scheduled(sequence, sequence.computed, count, sequence.computed + count == sequence.wanted)
