"""Pages of the KV cache: who holds which, and whose contents can be found again."""

from __future__ import annotations

import os
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import zip_longest

from kforge.engine.cache_groups import ANY_LENGTH, first_page, most_pages

Key = bytes  # names a full page's tokens and all that came before them; see ``BlockManager.extend_keys``
GONE = -1  # entry of a block table whose page was given back, or never taken


@dataclass(slots=True)
class BlockTable:
    """A sequence's pages in one group of layers: entry i holds positions i*P .. i*P+P-1, or is ``GONE``.

    New entries come at the end, and those in front of ``first`` are gone: no query to come sees them. Nothing else
    changes while the sequence runs.
    """

    pages: list[int] = field(default_factory=list)
    first: int = 0

    @property
    def held(self) -> list[int]:
        return self.pages[self.first :]


Tables = Sequence[BlockTable]  # of a sequence, one for each group of layers


@dataclass(frozen=True, slots=True)
class Found:
    """A known beginning of a text: its first ``length`` pages. ``pages`` has for each group the last of them, as many
    as the next query sees."""

    length: int
    pages: tuple[list[int], ...]


class BlockManager:
    """Free pages, reference counts and the prefix cache of a pool of pages that all groups of layers take from.

    ``windows``: how far each group sees (0: all), the window counting a query's own position; ``step_tokens``: the most
    tokens of a sequence that one step computes. Only *full, computed* pages are shared, so a shared page is never
    written again and needs no copy on write.

    A page that was published under a key is found by it as long as its contents are there: while somebody holds it, and
    after that until the page is taken for something else. Pages without contents worth keeping are taken first, then
    the least recently freed; of one sequence's pages the last ones, which serve the fewest others. Every operation
    takes constant time per page that it touches.
    """

    def __init__(self, pages: int, page_tokens: int, cache: bool = True, windows: Sequence[int] = (0,),
                 step_tokens: int = 1) -> None:
        self.pages = pages
        self.page_tokens = page_tokens
        self.cache = cache  # False: nothing is published or found
        self.windows = tuple(windows)
        self._step_pages = -(-step_tokens // page_tokens)
        self._most = [most_pages(window, step_tokens, page_tokens) for window in windows]
        # Popped from the end: low pages first, and a page that was just freed (still warm) first of all.
        self._blank = list(range(pages - 1, -1, -1))  # free, without a key
        self._kept: OrderedDict[int, None] = OrderedDict()  # free, found by their key; the next to be taken first
        self._references = [0] * pages
        self._key_of: list[Key | None] = [None] * pages
        self._group_of = [0] * pages  # of a page with a key
        self._page_of: tuple[dict[Key, int], ...] = tuple({} for _ in windows)
        # Nobody who does not know it can make up tokens whose keys collide, and keys of two engines never meet.
        self._salt = os.urandom(16)

    @property
    def free_pages(self) -> int:
        return len(self._blank) + len(self._kept)

    @property
    def kept_pages(self) -> int:
        """How many of the free pages still hold contents that can be found."""
        return len(self._kept)

    def new_tables(self) -> list[BlockTable]:
        return [BlockTable() for _ in self.windows]

    def pages_for(self, tokens: int) -> int:
        """Of one group that sees all of them."""
        return -(-tokens // self.page_tokens)

    def room(self, tables: Tables) -> int:
        """Positions that every table has come to."""
        return min(len(table.pages) for table in tables) * self.page_tokens

    def extend(self, tables: Tables, tokens: int) -> bool:
        """Appends pages until all ``tables`` come to ``tokens`` positions. All or nothing; False when the pool is
        dry."""
        wanted = self.pages_for(tokens)
        if sum(max(wanted - len(table.pages), 0) for table in tables) > self.free_pages:
            return False
        for table in tables:
            self._append(table, wanted)
        return True

    def grow(self, tables: Tables, tokens: int) -> int:
        """Appends pages towards ``tokens`` positions, as many as there are; returns the positions that all ``tables``
        have then come to."""
        pages, wanted = min(len(table.pages) for table in tables), self.pages_for(tokens)
        while pages < wanted and self.extend(tables, (pages + 1) * self.page_tokens):
            pages += 1
        return pages * self.page_tokens

    def release_behind(self, tables: Tables, position: int) -> int:
        """Gives back what no query at ``position`` or after it sees; returns the first position at which there is more
        to give back."""
        then = ANY_LENGTH
        for table, window in zip(tables, self.windows, strict=True):
            if not window:
                continue
            for i in range(table.first, first_page(window, position, self.page_tokens)):
                self._give_back(table.pages[i])
                table.pages[i] = GONE
                table.first = i + 1
            then = min(then, (table.first + 1) * self.page_tokens + window - 1)
        return then

    def release(self, tables: Tables) -> None:
        """Gives all pages of the tables back and empties them. A page is free once nobody holds it."""
        for pages in zip_longest(*(reversed(table.held) for table in tables)):
            for page in pages:
                if page is not None:
                    self._give_back(page)
        for table in tables:
            table.pages.clear()
            table.first = 0

    # The prefix cache

    def extend_keys(self, keys: list[Key], tokens: Sequence[int], pages: int) -> None:
        """Appends to ``keys``, those of the first full pages of ``tokens``, until there are ``pages`` of them.

        Each is a hash of the page's tokens and of the key before it, the first one of a salt that this pool drew: 128
        bits of BLAKE2b, so that equal keys mean equal tokens from the first on.
        """
        size = self.page_tokens
        for i in range(len(keys), pages):
            content = array("i", tokens[i * size : (i + 1) * size]).tobytes()
            keys.append(blake2b((keys[-1] if keys else self._salt) + content, digest_size=16).digest())

    def find(self, keys: Sequence[Key]) -> Found:
        """The longest beginning of ``keys`` of which every group knows what the next query sees. Its pages are nobody's
        until ``begin`` takes them."""
        length = len(keys) if self.cache else 0
        agreed, group = 0, 0
        while agreed < len(self.windows):  # in turn, until none shortens it any more
            shorter = self._known(group, keys, length)
            agreed = agreed + 1 if shorter == length else 1
            length, group = shorter, (group + 1) % len(self.windows)
        starts = [first_page(window, length * self.page_tokens, self.page_tokens) for window in self.windows]
        return Found(length, tuple([index[key] for key in keys[start:length]]
                                   for index, start in zip(self._page_of, starts, strict=True)))

    def fits(self, found: Found, tokens: int, released: Iterable[Tables] = ()) -> bool:
        """Whether new tables of ``tokens`` positions that begin with what was ``found`` can be had: now, or once the
        tables ``released`` are given back. With room for what groups with a window hold at most."""
        given = Counter(page for tables in released for table in tables for page in table.held)
        freed = sum(self._references[page] == count for page, count in given.items())
        wanted, rest = 0, self.pages_for(tokens) - found.length
        for pages, most in zip(found.pages, self._most, strict=True):
            wanted += min(rest + len(pages), most) - len(pages)
            wanted += sum(self._references[page] == given[page] for page in pages)
        return wanted <= self.free_pages + freed

    def begin(self, tables: Tables, found: Found, tokens: int) -> bool:
        """Begins empty ``tables`` with what was ``found``, each page held once more, and with pages for ``tokens``
        positions; groups with a window get those of one step. All or nothing, as ``fits`` says."""
        if not self.fits(found, tokens):
            return False
        pages = self.pages_for(tokens)
        for table, shared in zip(tables, found.pages, strict=True):
            assert not table.pages, "only a new table begins with shared pages"
            table.first = found.length - len(shared)
            table.pages += [GONE] * table.first + shared
            for page in shared:
                if self._references[page] == 0:
                    del self._kept[page]
                self._references[page] += 1
        for table, window in zip(tables, self.windows, strict=True):
            self._append(table, min(pages, found.length + self._step_pages) if window else pages)
        return True

    def publish(self, tables: Tables, keys: Sequence[Key], start: int, stop: int) -> None:
        """Makes entries ``start`` .. ``stop - 1`` of ``tables``, all of them held, known by their ``keys``, now that
        all of each is computed. The first page of a key stays known."""
        for group, (table, index) in enumerate(zip(tables, self._page_of, strict=True)):
            for page, key in zip(table.pages[start:stop], keys[start:stop], strict=True):
                once = self._references[page] > 0 and self._key_of[page] is None
                assert once, "only a held page can be published, and once"
                if self.cache and key not in index:
                    index[key] = page
                    self._key_of[page] = key
                    self._group_of[page] = group

    def forget(self) -> None:
        """Empties the prefix cache. What is held stays held, and unknown."""
        self._blank += reversed(self._kept)
        self._kept.clear()
        for index in self._page_of:
            index.clear()
        self._key_of = [None] * self.pages

    def known(self, page: int) -> tuple[int, Key] | None:
        """The group that finds this page, and by which key."""
        key = self._key_of[page]
        return None if key is None else (self._group_of[page], key)

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Raises AssertionError unless ``tables`` are all that is held: every page is free or counted, never both, and
        found by a key exactly when it has that key."""
        held = Counter(page for table in tables for page in table.held)
        assert GONE not in held, "a table lacks a page behind its first"
        for page, count in enumerate(self._references):
            assert count == held[page], f"page {page} counts {count} references, {held[page]} tables hold it"
        unheld = [page for page in range(self.pages) if not held[page]]
        assert sorted([*self._blank, *self._kept]) == unheld, "the free pages are not what nobody holds"
        assert all(self._key_of[page] is None for page in self._blank), "a blank page has a key"
        assert all(self._key_of[page] is not None for page in self._kept), "a kept page can't be found"
        keyed = {(self._group_of[page], key): page for page, key in enumerate(self._key_of) if key is not None}
        index = {(group, key): page for group, pages in enumerate(self._page_of) for key, page in pages.items()}
        assert keyed == index, "the index is not what the pages say"
        assert self.cache or not keyed, "a page was published without a cache"

    def _known(self, group: int, keys: Sequence[Key], length: int) -> int:
        """The longest beginning of at most ``length`` pages of which the group knows what the next query sees."""
        index, window = self._page_of[group], self.windows[group]
        if not window:
            return next((i for i in range(length) if keys[i] not in index), length)
        at = length
        while length and at > first_page(window, length * self.page_tokens, self.page_tokens):
            at -= 1
            if keys[at] not in index:
                length = at
        return length

    def _append(self, table: BlockTable, pages: int) -> None:
        for _ in range(pages - len(table.pages)):
            page = self._take()
            self._references[page] = 1
            table.pages.append(page)

    def _give_back(self, page: int) -> None:
        self._references[page] -= 1
        if self._references[page] == 0:
            if self._key_of[page] is None:
                self._blank.append(page)
            else:
                self._kept[page] = None

    def _take(self) -> int:
        if self._blank:
            return self._blank.pop()
        page, _ = self._kept.popitem(last=False)
        key, self._key_of[page] = self._key_of[page], None
        assert key is not None
        del self._page_of[self._group_of[page]][key]
        return page
