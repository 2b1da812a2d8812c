"""Pages are held by whoever's table lists them, and by nobody else; what is found under a key is what was put there."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kforge.engine.block_manager import GONE, BlockManager, BlockTable

PAGES, PAGE_TOKENS = 14, 4
WINDOWS = st.sampled_from([(0,), (0,), (0, 3), (0, 6), (1,), (9,), (0, 2, 7)])


class Owner:
    """A sequence as far as pages go: its tokens, those computed, and the tables."""

    def __init__(self, tokens: list[int], manager: BlockManager) -> None:
        self.tokens = tokens
        self.tables = manager.new_tables()
        self.keys: list[bytes] = []
        self.computed = self.published = 0


class PoolMachine(RuleBasedStateMachine):
    """Random begin, extend, compute, release and forget, against the plain statement of what must hold."""

    @initialize(windows=WINDOWS, step=st.integers(1, 12))
    def make(self, windows: tuple[int, ...], step: int) -> None:
        self.manager = BlockManager(PAGES, PAGE_TOKENS, True, windows, step)
        self.owners: list[Owner] = []
        # Of a published page: the group, and the tokens from the first on, up to and with those of the page.
        self.contents: dict[int, tuple[int, list[int]]] = {}

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24))
    def begin(self, tokens: list[int]) -> None:
        manager = self.manager
        owner = Owner(tokens, manager)
        manager.extend_keys(owner.keys, tokens, len(tokens) // PAGE_TOKENS)
        found = manager.find(owner.keys)
        for group, pages in enumerate(found.pages):
            for i, page in enumerate(pages, found.length - len(pages)):
                assert self.contents[page] == (group, tokens[: (i + 1) * PAGE_TOKENS]), "a page holds something else"
        assert found.length == max(n for n in range(len(owner.keys) + 1) if self.sees_all(tokens, n))
        fits, free = manager.fits(found, len(tokens)), manager.free_pages
        assert manager.begin(owner.tables, found, len(tokens)) == fits
        assert fits or sum(map(manager.pages_for, [len(tokens)] * len(manager.windows))) > free
        if fits:
            owner.published, owner.computed = found.length, found.length * PAGE_TOKENS
            self.owners.append(owner)
        else:
            assert manager.free_pages == free and not any(table.pages for table in owner.tables)

    def sees_all(self, tokens: list[int], length: int) -> bool:
        """Whether every position that the query behind ``length`` pages sees is in some page that is known."""
        known = [self.contents[page] for page in range(PAGES) if self.manager.known(page)]
        position = length * PAGE_TOKENS
        return all((group, tokens[: (at // PAGE_TOKENS + 1) * PAGE_TOKENS]) in known
                   for group, window in enumerate(self.manager.windows)
                   for at in range(max(position - window + 1, 0) if window else 0, position))

    @precondition(lambda self: self.owners)
    @rule(which=st.integers(0, 99), more=st.lists(st.integers(0, 1), max_size=12), whole=st.booleans())
    def extend(self, which: int, more: list[int], whole: bool) -> None:
        owner, manager = self.owners[which % len(self.owners)], self.manager
        before, free = [list(table.pages) for table in owner.tables], manager.free_pages
        pages = manager.pages_for(len(owner.tokens) + len(more))
        wanted = sum(max(pages - len(table), 0) for table in before)
        if whole:
            grown = manager.extend(owner.tables, len(owner.tokens) + len(more))
            assert grown == (wanted <= free)
            assert grown or manager.free_pages == free, "a failed extension takes nothing"
        else:
            room = manager.grow(owner.tables, len(owner.tokens) + len(more))
            assert room == manager.room(owner.tables)
            grown = room >= len(owner.tokens) + len(more)
            assert grown == (wanted <= free)
            assert grown or manager.free_pages < len(owner.tables), "some pages were left"
        for table, had in zip(owner.tables, before, strict=True):
            assert table.pages[: len(had)] == had, "what a table has does not change"
        if grown:
            owner.tokens = owner.tokens + more

    @precondition(lambda self: self.owners)
    @rule(which=st.integers(0, 99), tokens=st.integers(0, 24))
    def compute(self, which: int, tokens: int) -> None:
        owner, manager = self.owners[which % len(self.owners)], self.manager
        owner.computed = min(owner.computed + tokens, len(owner.tokens), manager.room(owner.tables))
        full = owner.computed // PAGE_TOKENS
        manager.extend_keys(owner.keys, owner.tokens, full)
        manager.publish(owner.tables, owner.keys, owner.published, full)
        for i in range(owner.published, full):
            for group, table in enumerate(owner.tables):
                self.contents[table.pages[i]] = group, owner.tokens[: (i + 1) * PAGE_TOKENS]
        owner.published = full
        then = manager.release_behind(owner.tables, owner.computed)
        held = [list(table.held) for table in owner.tables]
        assert then > owner.computed
        if then <= manager.room(owner.tables) and full == owner.computed // PAGE_TOKENS:
            manager.release_behind(owner.tables, then - 1)
            assert held == [table.held for table in owner.tables], "there was more to give back before it was said"

    @precondition(lambda self: self.owners)
    @rule(which=st.integers(0, 99), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=40))
    def release(self, which: int, tokens: list[int]) -> None:
        manager, owner = self.manager, self.owners.pop(which % len(self.owners))
        keys: list[bytes] = []
        manager.extend_keys(keys, tokens, len(tokens) // PAGE_TOKENS)
        expected = manager.fits(manager.find(keys), len(tokens), [owner.tables])
        free = manager.free_pages
        others = {page for other in self.owners for table in other.tables for page in table.held}
        given = len({page for table in owner.tables for page in table.held} - others)
        manager.release(owner.tables)
        assert not any(table.pages or table.first for table in owner.tables)
        assert manager.free_pages == free + given
        assert manager.fits(manager.find(keys), len(tokens)) == expected
        if manager.windows == (0,):
            assert manager.fits(manager.find([]), (free + given) * PAGE_TOKENS)
            assert not manager.fits(manager.find([]), (free + given) * PAGE_TOKENS + 1)

    @rule()
    def forget(self) -> None:
        self.manager.forget()
        assert self.manager.kept_pages == 0

    @invariant()
    def nothing_is_lost_or_held_twice(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity([table for owner in self.owners for table in owner.tables])
        for owner in self.owners:
            for table, window in zip(owner.tables, self.manager.windows, strict=True):
                assert len(set(table.held)) == len(table.held)
                assert table.first == (max(owner.computed - window + 1, 0) // PAGE_TOKENS if window else 0)
                assert set(table.pages[: table.first]) <= {GONE} and GONE not in table.held


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.slow
class TestPoolLong(PoolMachine.TestCase):
    settings = settings(max_examples=500, stateful_step_count=100, deadline=None,
                        suppress_health_check=list(HealthCheck))


def published(manager: BlockManager, tokens: list[int]) -> tuple[list[BlockTable], list[bytes]]:
    """Held tables of ``tokens`` with all their full pages known, and their keys."""
    tables, keys = manager.new_tables(), list[bytes]()
    assert manager.extend(tables, len(tokens))
    manager.extend_keys(keys, tokens, len(tokens) // PAGE_TOKENS)
    manager.publish(tables, keys, 0, len(keys))
    return tables, keys


def take(manager: BlockManager, pages: int) -> None:
    assert manager.extend([BlockTable()], pages * PAGE_TOKENS)


def test_a_freed_page_is_found_until_its_place_is_needed_and_the_least_recent_goes_first():
    manager = BlockManager(4, PAGE_TOKENS)
    first, early = published(manager, [1] * 8)
    second, late = published(manager, [2] * 8)
    manager.release(first)
    manager.release(second)
    assert manager.find(early).length == manager.find(late).length == 2 and manager.free_pages == 4
    take(manager, 1)
    assert (manager.find(early).length, manager.find(late).length) == (1, 2), "the last page of what was freed first"
    take(manager, 2)
    assert (manager.find(early).length, manager.find(late).length) == (0, 1)


def test_using_a_page_again_makes_it_recent():
    manager = BlockManager(4, PAGE_TOKENS)
    first, early = published(manager, [1] * 4)
    second, late = published(manager, [2] * 4)
    manager.release(first)
    manager.release(second)
    again = manager.new_tables()
    assert manager.begin(again, manager.find(early), 4)
    manager.release(again)
    take(manager, 3)
    assert (manager.find(early).length, manager.find(late).length) == (1, 0)


def test_a_key_names_all_tokens_from_the_first_on():
    manager = BlockManager(8, PAGE_TOKENS)
    _, keys = published(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    other: list[bytes] = []
    manager.extend_keys(other, [0, 2, 3, 4, 5, 6, 7, 8], 2)
    assert keys[1] != other[1] and manager.find([other[0], keys[1]]).length == 0
    elsewhere: list[bytes] = []
    BlockManager(8, PAGE_TOKENS).extend_keys(elsewhere, [1, 2, 3, 4], 1)
    assert elsewhere[0] != keys[0], "each pool has a salt of its own"


def test_without_a_cache_nothing_is_found():
    manager = BlockManager(4, PAGE_TOKENS, cache=False)
    tables, keys = published(manager, [1] * 8)
    assert manager.find(keys).length == 0
    manager.release(tables)
    manager.check_integrity([])
    assert manager.kept_pages == 0


def test_pages_behind_a_window_are_free_and_found_until_they_are_taken():
    """A window of 6 at position 16 sees 11 .. 16, of which pages 2 and 3 hold what is computed."""
    manager = BlockManager(8, PAGE_TOKENS, windows=(0, 6))
    (full, windowed), keys = published(manager, list(range(16)))
    pages = list(windowed.pages)
    assert manager.release_behind([full, windowed], 16) == 3 * PAGE_TOKENS + 6 - 1
    assert windowed.pages == [GONE, GONE, *pages[2:]] and len(full.held) == 4
    assert (manager.free_pages, manager.kept_pages) == (2, 2)
    assert manager.find(keys).pages == (full.pages, pages[2:])
    assert manager.find(keys[:3]).pages == (full.pages[:3], pages[1:3]), "a text that parts earlier needs earlier ones"
    take(manager, 1)
    assert manager.find(keys[:3]).length == 3, "page 0 was taken, which nobody behind page 2 sees"
    take(manager, 1)
    assert (manager.find(keys).length, manager.find(keys[:3]).length) == (4, 0), "page 1 is gone, and pages 1 to 3 fail"


def test_a_beginning_that_one_group_lacks_is_not_found():
    manager = BlockManager(12, PAGE_TOKENS, windows=(0, 3, 6))
    tables, keys = published(manager, list(range(16)))
    for table in tables:
        table.pages, gone = table.pages[:3], table.pages[3:]
        manager.release([BlockTable(gone)])  # page 3 of each group
    take(manager, 1)  # the first one's
    assert manager.find(keys).length == 3


def test_a_text_fits_a_window_that_holds_less():
    manager = BlockManager(5, PAGE_TOKENS, windows=(6,), step_tokens=8)
    nothing = manager.find([])
    assert manager.fits(nothing, 1000), "6 - 1 positions and a step of 8 lie in 4 pages at most"
    tables = manager.new_tables()
    assert manager.begin(tables, nothing, 1000) and len(tables[0].pages) == 2, "pages of one step"
    assert not manager.fits(nothing, 1000), "three are left"
    assert manager.fits(nothing, 12)
