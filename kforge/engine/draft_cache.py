"""The draft model's KV cache: what is in it of each sequence, kept in step with the target's tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from kforge.engine.block_manager import BlockManager, Key
from kforge.engine.request import Sequence


@dataclass(eq=False)
class Follower(Sequence):
    """A sequence as the draft model has it. The first ``settled`` of its tokens are the sequence's own; what comes
    after them was guessed, and may turn out otherwise."""

    settled: int = 0
    largest: int = 0  # id among its settled tokens

    @property
    def has_pages(self) -> bool:
        return bool(self.tables[0].pages)

    @property
    def lacking(self) -> int:
        """Tokens that are to be computed before the next one can be guessed."""
        return len(self.tokens) - self.computed


class DraftCache:
    """Pages of its own for the sequences that are guessed for, and for those that may come back to it.

    Nothing tells it of preemption or refused guesses: a sequence's tokens only grow, so whenever it decodes, ``follow``
    compares what it said since the last time with what was guessed, and takes back what was refused. A preempted
    sequence keeps its pages here for as long as nobody needs them. Who did not decode for the longest loses them first,
    and has them computed again. Full pages of settled tokens can be found by prompts that begin alike
    (``BlockManager``).
    """

    def __init__(self, pages: int, page_tokens: int, cache: bool = True, groups: int = 1) -> None:
        # Every group keeps all of a text, whatever it sees: what is guessed goes back and forth, and models are small.
        self.blocks = BlockManager(pages, page_tokens, cache, (0,) * groups)
        self._followers: OrderedDict[int, Follower] = OrderedDict()  # who did not decode for the longest first

    def follow(self, sequence: Sequence) -> Follower:
        """The sequence's follower, with its tokens and no others; at least the last one of them is not computed."""
        own = self._followers.get(sequence.id)
        if own is None:
            own = self._followers[sequence.id] = Follower(sequence.id, [], sequence.prompt_length, sequence.params,
                                                          sequence.limit, tables=self.blocks.new_tables())
        self._followers.move_to_end(sequence.id)
        tokens, at = sequence.tokens, own.settled
        both = min(len(tokens), len(own.tokens))
        while at < both and own.tokens[at] == tokens[at]:
            at += 1
        del own.tokens[at:]
        own.tokens += tokens[at:]
        own.largest = max(own.largest, max(tokens[own.settled :], default=0))
        own.settled = len(tokens)
        own.computed = min(own.computed, at, own.settled - 1)
        if not own.has_pages:
            self._begin(own)
        return own

    def make_room(self, follower: Follower, tokens: int, busy: Collection[int]) -> bool:
        """Pages for ``tokens`` positions, taken from sequences that are not ``busy`` if need be. False: there are none.
        """
        while not self.blocks.extend(follower.tables, tokens):
            victim = next((f for f in self._followers.values() if f.has_pages and f.id not in busy), None)
            if victim is None:
                return False
            self._release(victim)
        return True

    def advance(self, follower: Follower, count: int) -> None:
        """``count`` more of its tokens are computed."""
        follower.computed += count
        full = min(follower.computed, follower.settled - 1) // self.blocks.page_tokens
        if self.blocks.cache and full > follower.published:
            self.blocks.extend_keys(follower.keys, follower.tokens, full)
            self.blocks.publish(follower.tables, follower.keys, follower.published, full)
            follower.published = full

    def drop(self, sequence: int) -> int | None:
        """The sequence is gone; its full pages can still be found. How many tokens it had said when it was followed
        last; None if it never was."""
        follower = self._followers.pop(sequence, None)
        if follower is None:
            return None
        self._release(follower)
        return follower.settled - follower.prompt_length

    def _begin(self, follower: Follower) -> None:
        """What of it is in the cache. The last token stays to be computed: its logits are needed."""
        blocks = self.blocks
        if blocks.cache:
            full = (len(follower.tokens) - 1) // blocks.page_tokens
            blocks.extend_keys(follower.keys, follower.tokens, full)
            found = blocks.find(follower.keys[:full])
            if found.length:  # looked for in every step, as long as its guesses do not pay
                follower.published, follower.computed = found.length, found.length * blocks.page_tokens
                blocks.begin(follower.tables, found, follower.computed)

    def _release(self, follower: Follower) -> None:
        self.blocks.release(follower.tables)
        follower.computed = follower.published = 0
        follower.table_version += 1

    def check_integrity(self) -> None:
        """Raises AssertionError unless pages are exactly those of followers, and known only where all of their tokens
        are settled, computed, and what their keys say."""
        blocks, size = self.blocks, self.blocks.page_tokens
        blocks.check_integrity([table for f in self._followers.values() for table in f.tables])
        for f in self._followers.values():
            assert f.settled <= len(f.tokens), f"{f.id} has settled tokens that it lacks"
            assert f.computed <= min(len(f.tokens), blocks.room(f.tables)), f"{f.id} computed more than its pages hold"
            fixed = min(f.computed, max(f.settled - 1, 0))
            assert f.published * size <= fixed, f"{f.id} published pages that may change"
            keys: list[Key] = []
            blocks.extend_keys(keys, f.tokens[: f.settled], len(f.keys))
            assert len(f.keys) * size <= f.settled and keys == f.keys, f"{f.id} has keys of other tokens"
            for group, table in enumerate(f.tables):
                for i, page in enumerate(table.pages):
                    known = blocks.known(page)
                    early = known is not None and (i >= f.published or known != (group, keys[i]))
                    assert not early, f"page {page} is known too early"
