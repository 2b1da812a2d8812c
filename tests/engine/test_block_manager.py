"""Pages are held by whoever's table lists them, and by nobody else; what is found under a key is what was put there."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kforge.engine.block_manager import BlockManager

PAGES, PAGE_TOKENS = 12, 4


class Owner:
    """A sequence as far as pages go: its tokens, those computed, and the table."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.table: list[int] = []
        self.keys: list[bytes] = []
        self.published = 0


class PoolMachine(RuleBasedStateMachine):
    """Random begin, extend, publish, release and forget, against the plain statement of what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(PAGES, PAGE_TOKENS)
        self.owners: list[Owner] = []
        self.contents: dict[int, list[int]] = {}  # tokens from the first on, up to and with those of a published page

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24))
    def begin(self, tokens: list[int]) -> None:
        owner = Owner(tokens)
        self.manager.extend_keys(owner.keys, tokens, len(tokens) // PAGE_TOKENS)
        found = self.manager.find(owner.keys)
        for i, page in enumerate(found):
            assert self.contents[page] == tokens[: (i + 1) * PAGE_TOKENS], "a page was found that holds something else"
        fits, free = self.manager.fits(found, len(tokens)), self.manager.free_pages
        self.manager.share(owner.table, found)
        assert self.manager.extend(owner.table, len(tokens)) == fits
        assert fits or self.manager.pages_for(len(tokens)) > free, "what fits without sharing fits with it"
        if fits:
            owner.published = len(found)
            self.owners.append(owner)
        else:
            self.manager.release(owner.table)
            assert self.manager.free_pages == free

    @precondition(lambda self: self.owners)
    @rule(which=st.integers(0, 99), more=st.lists(st.integers(0, 1), max_size=12))
    def extend(self, which: int, more: list[int]) -> None:
        owner = self.owners[which % len(self.owners)]
        before, free = list(owner.table), self.manager.free_pages
        wanted = self.manager.pages_for(len(owner.tokens) + len(more)) - len(before)
        grown = self.manager.extend(owner.table, len(owner.tokens) + len(more))
        assert grown == (wanted <= free)
        assert owner.table[: len(before)] == before, "a block table is append-only"
        if grown:
            owner.tokens = owner.tokens + more
        else:
            assert owner.table == before, "a failed extension takes nothing"

    @precondition(lambda self: self.owners)
    @rule(which=st.integers(0, 99), pages=st.integers(0, 9))
    def publish(self, which: int, pages: int) -> None:
        owner = self.owners[which % len(self.owners)]
        until = min(pages, len(owner.tokens) // PAGE_TOKENS)
        self.manager.extend_keys(owner.keys, owner.tokens, until)
        for i in range(owner.published, until):
            self.manager.publish(owner.table[i], owner.keys[i])
            self.contents[owner.table[i]] = owner.tokens[: (i + 1) * PAGE_TOKENS]
        owner.published = max(owner.published, until)

    @precondition(lambda self: self.owners)
    @rule(which=st.integers(0, 99))
    def release(self, which: int) -> None:
        owner = self.owners.pop(which % len(self.owners))
        free = self.manager.free_pages
        others = {page for other in self.owners for page in other.table}
        given = len(set(owner.table) - others)
        assert self.manager.fits([], (free + given) * PAGE_TOKENS, [owner.table])
        assert not self.manager.fits([], (free + given + 1) * PAGE_TOKENS, [owner.table])
        self.manager.release(owner.table)
        assert owner.table == [] and self.manager.free_pages == free + given

    @rule()
    def forget(self) -> None:
        self.manager.forget()
        assert self.manager.kept_pages == 0

    @invariant()
    def nothing_is_lost_or_held_twice(self) -> None:
        self.manager.check_integrity([owner.table for owner in self.owners])
        for owner in self.owners:
            assert len(set(owner.table)) == len(owner.table)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.slow
class TestPoolLong(PoolMachine.TestCase):
    settings = settings(max_examples=500, stateful_step_count=100, deadline=None,
                        suppress_health_check=list(HealthCheck))


def published(manager: BlockManager, tokens: list[int]) -> tuple[list[int], list[bytes]]:
    """A held table of ``tokens`` with all its full pages known, and their keys."""
    table: list[int] = []
    keys: list[bytes] = []
    assert manager.extend(table, len(tokens))
    manager.extend_keys(keys, tokens, len(tokens) // PAGE_TOKENS)
    for page, key in zip(table, keys, strict=False):
        manager.publish(page, key)
    return table, keys


def test_a_freed_page_is_found_until_its_place_is_needed_and_the_least_recent_goes_first():
    manager = BlockManager(4, PAGE_TOKENS)
    first, early = published(manager, [1] * 8)
    second, late = published(manager, [2] * 8)
    manager.release(first)
    manager.release(second)
    assert len(manager.find(early)) == len(manager.find(late)) == 2 and manager.free_pages == 4
    table: list[int] = []
    assert manager.extend(table, PAGE_TOKENS)
    assert (len(manager.find(early)), len(manager.find(late))) == (1, 2), "the last page of what was freed first"
    assert manager.extend(table, 3 * PAGE_TOKENS)
    assert (len(manager.find(early)), len(manager.find(late))) == (0, 1)


def test_using_a_page_again_makes_it_recent():
    manager = BlockManager(4, PAGE_TOKENS)
    first, early = published(manager, [1] * 4)
    second, late = published(manager, [2] * 4)
    manager.release(first)
    manager.release(second)
    again: list[int] = []
    manager.share(again, manager.find(early))
    manager.release(again)
    assert manager.extend([], 3 * PAGE_TOKENS)
    assert (len(manager.find(early)), len(manager.find(late))) == (1, 0)


def test_a_key_names_all_tokens_from_the_first_on():
    manager = BlockManager(8, PAGE_TOKENS)
    _, keys = published(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    other: list[bytes] = []
    manager.extend_keys(other, [0, 2, 3, 4, 5, 6, 7, 8], 2)
    assert keys[1] != other[1] and manager.find([other[0], keys[1]]) == []
    elsewhere: list[bytes] = []
    BlockManager(8, PAGE_TOKENS).extend_keys(elsewhere, [1, 2, 3, 4], 1)
    assert elsewhere[0] != keys[0], "each pool has a salt of its own"


def test_without_a_cache_nothing_is_found():
    manager = BlockManager(4, PAGE_TOKENS, cache=False)
    table, keys = published(manager, [1] * 8)
    assert manager.find(keys) == []
    manager.release(table)
    manager.check_integrity([])
    assert manager.kept_pages == 0
