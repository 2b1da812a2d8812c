"""Continuous batching: which tokens the next step computes."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Protocol

from kforge.engine.block_manager import BlockManager, Found, Key
from kforge.engine.integrity import check_scheduler
from kforge.engine.request import Sequence

AGEING_STEPS = 1000  # a level of priority is worth this many steps of waiting


@dataclass(slots=True)  # not frozen: making a frozen one takes thrice as long, once a token
class Scheduled:
    """Tokens ``start`` .. ``start + count - 1`` of ``sequence`` are computed in this step, the last ones of them
    ``drafts``: guesses that are not among the sequence's tokens."""

    sequence: Sequence
    start: int
    count: int
    rows: int  # logits are wanted after each of the last ``rows`` tokens
    samples: bool = False  # the chunk reaches the last wanted token: its logits choose the next one
    drafts: tuple[int, ...] = ()


class Drafter(Protocol):
    """Guesses tokens ahead (``kforge.engine.drafting.Guesser``)."""

    def propose(self, sequences: Items[Sequence], rooms: Items[int], spare: int) -> list[list[int]]:
        """A draft for each sequence, of at most its room, of at most ``spare`` tokens in all; empty where none pays."""


class Scheduler:
    """Moves each sequence's computed tokens towards its wanted tokens, inside a budget of tokens per step.

    There is no prefill and no decode phase. Every running sequence that wants one token gets it; what is left of the
    budget goes to chunks of longer ones, at most ``max_prefill_tokens`` a step while others decode, which bounds how
    long those wait for their next token. A step without chunks may verify drafts.

    Sequences are served by *rank*: the step of their arrival, less ``ageing_steps`` for every level of priority, then
    the order of arrival. So a higher priority goes first, equals go as they came, and whoever waits long enough goes
    before everybody who comes later, whatever their priority. When the pool is dry the last in rank loses its pages and
    starts over (its generated tokens are then part of what is recomputed). The first in rank is never preempted,
    so there always is one that gets to its end. A waiting sequence takes room from running ones only where both
    priority and rank are above theirs.

    Pages of layers that see all are there for the whole prompt once it is admitted. Those of layers with a window come
    chunk by chunk, and go as the window moves; a chunk is as long as there are pages for, and one that gets none waits,
    unless it is of the first in rank, which takes them from the last.

    A prompt's known pages are not computed again; one that a running sequence is about to compute is waited for.
    ``max_rows``: logits that a step may ask for (None: one a sequence).
    """

    def __init__(self, blocks: BlockManager, max_tokens: int, max_sequences: int, *,
                 max_prefill_tokens: int | None = None, max_rows: int | None = None,
                 ageing_steps: int = AGEING_STEPS, drafter: Drafter | None = None) -> None:
        self.blocks = blocks
        self.max_tokens = max_tokens
        self.max_sequences = min(max_sequences, max_tokens)  # every one that runs may want a token in the same step
        self.max_prefill_tokens = max_prefill_tokens or max_tokens
        self.max_rows = max_rows or self.max_sequences
        self.ageing_steps = ageing_steps
        self.drafter = drafter
        self.waiting: list[Sequence] = []  # both lists by rank
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.prefix = PrefixStats()
        self.coming: dict[Key, Sequence] = {}  # full pages of prompts being computed, and by whom
        self._steps = 0
        self._arrivals = 0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        sequence.rank = (self._steps - sequence.params.priority * self.ageing_steps, self._arrivals)
        sequence.tables = self.blocks.new_tables()
        self._arrivals += 1
        insort(self.waiting, sequence, key=_rank)

    def schedule(self) -> list[Scheduled]:
        """The next step's work, with pages for all of it. Empty only when idle: what can't ever fit is not added."""
        self._steps += 1
        preempted = self.preemptions
        if self.waiting:
            self._make_way()
        if self.running:  # before anything is scheduled that would have to be taken back for it
            self._make_room(self.running[0])
        batch = self._decodes()
        decoding = len(batch)
        if decoding < len(self.running) or self.waiting:
            # A sequence that was just preempted must not come straight back for the pages that it lost.
            self._add_chunks(batch, admit=self.preemptions == preempted)
        if self.drafter is not None and decoding == len(batch):
            self._add_drafts(batch, self.drafter)
        return batch

    def advance(self, sequence: Sequence, count: int) -> None:
        """``count`` more tokens of a running sequence are computed, and stay: full pages can be found from now on, and
        those that no token to come sees are given back."""
        sequence.computed += count
        full = sequence.computed // self.blocks.page_tokens
        if full > sequence.published:
            self._publish(sequence, full)
        if sequence.computed >= sequence.moves_at:
            sequence.moves_at = self.blocks.release_behind(sequence.tables, sequence.computed)

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
        """Raises AssertionError unless all holds that ``kforge.engine.integrity`` says."""
        check_scheduler(self)

    # The parts of a step

    def _decodes(self) -> list[Scheduled]:
        """One token for every running sequence that lacks just one. Whoever is preempted for it comes later in rank."""
        batch: list[Scheduled] = []
        running, at = self.running, 0
        while at < len(running):
            sequence = running[at]
            start = sequence.computed
            if len(sequence.tokens) - start == 1:
                if start == sequence.room and not self._make_room(sequence):
                    break
                batch.append(Scheduled(sequence, start, 1, 1, True))
            at += 1
        return batch

    def _add_chunks(self, batch: list[Scheduled], admit: bool) -> None:
        """Chunks of what lacks more than one token and of what waits, in the order of rank, inside the budget."""
        budget = self.max_tokens - len(batch)
        if batch:
            budget = min(budget, self.max_prefill_tokens)
        spare = self.max_rows - min(self.max_sequences, len(self.running) + len(self.waiting))
        longer = iter([s for s in self.running if len(s.tokens) - s.computed > 1])
        first = next(longer, None)
        while budget > 0:
            admitted = self._admit_before(first) if admit else None
            sequence = admitted or first
            if sequence is None:
                break
            if admitted is None:
                first = next(longer, None)
            room = self._grow(sequence, min(sequence.computed + budget, len(sequence.tokens))) - sequence.computed
            if room <= 0:
                continue
            item = _chunk(sequence, min(room, budget), spare)
            batch.append(item)
            budget -= item.count
            spare -= max(item.rows - 1, 0)

    def _add_drafts(self, batch: list[Scheduled], drafter: Drafter) -> None:
        """Drafts behind the tokens of a step that only decodes, with rows, tokens and pages that nobody else wants."""
        spare = min(self.max_rows, self.max_tokens) - len(batch)
        rooms = [item.sequence.limit - len(item.sequence.tokens) - 1 for item in batch]
        if spare <= 0 or not batch:
            return
        for at, draft in enumerate(drafter.propose([item.sequence for item in batch], rooms, spare)):
            item = batch[at]
            end = item.start + 1
            if draft:
                draft = draft[: self._grow(item.sequence, end + len(draft)) - end]
            if draft:
                item.count, item.rows, item.drafts = 1 + len(draft), 1 + len(draft), tuple(draft)

    # Coming and going

    def _make_way(self) -> None:
        """Admits the first waiting sequence at the cost of running ones of lower priority, if there is no other way."""
        head = self.waiting[0]
        lower = [s for s in self.running if s.params.priority < head.params.priority and s.rank > head.rank]
        if not lower:
            return
        prefix, wanted = self._known_prefix(head), len(head.tokens)
        if prefix.coming or not self.blocks.fits(prefix.found, wanted, [s.tables for s in lower]):
            return
        if len(self.running) < self.max_sequences and self.blocks.fits(prefix.found, wanted):
            return
        while len(self.running) >= self.max_sequences or not self.blocks.fits(prefix.found, wanted):
            self._preempt(lower.pop())
        self._admit(head, prefix)

    def _admit_before(self, other: Sequence | None) -> Sequence | None:
        """Admits the first waiting sequence that ranks before ``other`` (None: any) and need not wait for a prefix."""
        if len(self.running) >= self.max_sequences:
            return None
        for sequence in islice(self.waiting, self.max_sequences):
            if other is not None and sequence.rank > other.rank:
                return None
            prefix = self._known_prefix(sequence)
            if not prefix.coming:
                return sequence if self._admit(sequence, prefix) else None
        return None

    def _admit(self, sequence: Sequence, prefix: _Prefix) -> bool:
        """Pages for all that is wanted now, not just the first chunk: half a prompt must not evict another half."""
        blocks, wanted = self.blocks, len(sequence.tokens)
        if not blocks.begin(sequence.tables, prefix.found, wanted):
            return False
        sequence.published = prefix.found.length
        sequence.computed = sequence.published * blocks.page_tokens
        sequence.room = blocks.room(sequence.tables)
        sequence.moves_at = blocks.release_behind(sequence.tables, sequence.computed)
        if blocks.cache:
            self.prefix.queries += 1
            self.prefix.query_tokens += wanted
            self.prefix.hit_tokens += sequence.computed
            sequence.promised = wanted // blocks.page_tokens
            for key in sequence.keys[sequence.published : sequence.promised]:
                self.coming.setdefault(key, sequence)
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_rank)
        return True

    def _known_prefix(self, sequence: Sequence) -> _Prefix:
        """What of a waiting sequence is in the cache. The last token stays to be computed: its logits are needed."""
        blocks = self.blocks
        if not blocks.cache or sequence.wants_prompt_rows:
            return _Prefix(blocks.find([]), False)
        blocks.extend_keys(sequence.keys, sequence.tokens, len(sequence.tokens) // blocks.page_tokens)
        usable = sequence.keys[: (len(sequence.tokens) - 1) // blocks.page_tokens]
        found = blocks.find(usable)
        donor = self.coming.get(usable[found.length]) if found.length < len(usable) else None
        return _Prefix(found, donor is not None and donor.rank < sequence.rank)

    def _make_room(self, sequence: Sequence) -> bool:
        """Pages for the next token, taken from the last in rank if need be. False: it was the last itself."""
        while self._grow(sequence, sequence.computed + 1) <= sequence.computed:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _grow(self, sequence: Sequence, tokens: int) -> int:
        """Pages towards ``tokens`` positions, as many as nobody else holds; how far they reach now."""
        if sequence.room < tokens:
            sequence.room = self.blocks.grow(sequence.tables, tokens)
        return sequence.room

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self._release(victim)
        victim.preemptions += 1
        self.preemptions += 1
        insort(self.waiting, victim, key=_rank)

    def _publish(self, sequence: Sequence, full: int) -> None:
        if self.blocks.cache:
            self.blocks.extend_keys(sequence.keys, sequence.tokens, full)
            self.blocks.publish(sequence.tables, sequence.keys, sequence.published, full)
            self._withdraw(sequence, sequence.published, full)
        sequence.published = full

    def _release(self, sequence: Sequence) -> None:
        self._withdraw(sequence, sequence.published, sequence.promised)
        self.blocks.release(sequence.tables)
        sequence.computed = sequence.published = sequence.promised = sequence.room = 0
        sequence.table_version += 1

    def _withdraw(self, sequence: Sequence, start: int, stop: int) -> None:
        """Nobody need wait any longer for these full pages of its prompt: they are there, or will not come."""
        for key in sequence.keys[start : min(stop, sequence.promised)]:
            if self.coming.get(key) is sequence:
                del self.coming[key]


@dataclass(slots=True)
class PrefixStats:
    """Admissions that asked the prefix cache, the tokens that they wanted, and those of them that were there."""

    queries: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Prefix:
    found: Found
    coming: bool  # a sequence before it in rank is about to compute its next page


_rank = attrgetter("rank")


def _chunk(sequence: Sequence, budget: int, spare: int) -> Scheduled:
    """The sequence's next tokens inside the budget; ``spare`` rows beyond its own bound the prompt's rows."""
    start, wanted = sequence.computed, len(sequence.tokens)
    count = min(wanted - start, budget)
    if not sequence.wants_prompt_rows:
        return Scheduled(sequence, start, count, int(start + count == wanted), start + count == wanted)
    first = max(start, len(sequence.prompt_rows))
    count = min(count, first - start + 1 + spare)
    return Scheduled(sequence, start, count, max(start + count - first, 0), start + count == wanted)
