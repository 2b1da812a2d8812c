"""What holds of a scheduler and its pages between any two steps, said once more and in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kforge.engine.block_manager import GONE, Key
from kforge.engine.cache_groups import first_page

if TYPE_CHECKING:
    from kforge.engine.request import Sequence
    from kforge.engine.scheduler import Scheduler


def check_scheduler(scheduler: Scheduler) -> None:
    """Raises AssertionError unless pages are exactly those of running sequences, which hold what they see and nothing
    in front of it, and pages are known only where they are computed, full, and named by their own tokens."""
    s, blocks = scheduler, scheduler.blocks
    blocks.check_integrity([table for sequence in s.running for table in sequence.tables])
    for queue in (s.waiting, s.running):
        ranks = [sequence.rank for sequence in queue]
        assert ranks == sorted(ranks), "a queue is not in the order of rank"
    assert not set(s.waiting) & set(s.running), "a sequence waits and runs"
    assert len(s.running) <= s.max_sequences, "more run than may"
    for sequence in s.waiting:
        has = sequence.computed, sequence.published, sequence.promised, sequence.room
        assert not any(has) and not any(t.pages for t in sequence.tables), f"{sequence.id} waits but has something"
    for sequence in s.running:
        _check_running(scheduler, sequence)
    for key, donor in s.coming.items():
        promised = donor.keys[donor.published : donor.promised]
        assert donor in s.running and key in promised, "a page is promised by nobody"
    assert not s.idle or blocks.free_pages == blocks.pages, "idle, but pages are held"


def _check_running(scheduler: Scheduler, s: Sequence) -> None:
    blocks, size = scheduler.blocks, scheduler.blocks.page_tokens
    assert s.computed < len(s.tokens) <= s.limit, f"{s.id} has {s.computed} of {len(s.tokens)} computed"
    assert s.computed <= s.room == blocks.room(s.tables), f"{s.id} computed more than its pages hold"
    assert s.published == s.computed // size, f"{s.id} has full pages that it did not publish"
    keys: list[Key] = []
    blocks.extend_keys(keys, s.tokens, len(s.keys))
    assert keys == s.keys, f"{s.id} has keys of other tokens"
    for group, table in enumerate(s.tables):
        seen = first_page(blocks.windows[group], s.computed, size)
        assert table.first == seen, f"{s.id} holds what it no longer sees, or lacks what it does"
        assert set(table.pages[:seen]) <= {GONE}, f"{s.id} names pages that it does not hold"
        for i, page in enumerate(table.held, seen):
            known = blocks.known(page)
            assert known is None or (i < s.published and known == (group, keys[i])), f"page {page} is known too early"
