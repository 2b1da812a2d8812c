"""Pages of the KV cache: who holds which, and whose contents can be found again."""

from __future__ import annotations

import os
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

Key = bytes  # names a full page's tokens and all that came before them; see ``BlockManager.extend_keys``


class BlockManager:
    """Free pages, reference counts and the prefix cache of a pool of pages.

    A block table is append-only: entry i holds positions i*P .. i*P+P-1 and never changes while its owner keeps it.
    Only *full, computed* pages are shared, so a shared page is never written again and needs no copy on write.

    A page that was published under a key is found by it as long as its contents are there: while somebody holds it, and
    after that until the page is taken for something else. Pages without contents worth keeping are taken first, then
    the least recently freed; of one sequence's pages the last ones, which serve the fewest others. Every operation
    takes constant time per page that it touches.
    """

    def __init__(self, pages: int, page_tokens: int, cache: bool = True) -> None:
        self.pages = pages
        self.page_tokens = page_tokens
        self.cache = cache  # False: nothing is published or found
        # Popped from the end: low pages first, and a page that was just freed (still warm) first of all.
        self._blank = list(range(pages - 1, -1, -1))  # free, without a key
        self._kept: OrderedDict[int, None] = OrderedDict()  # free, found by their key; the next to be taken first
        self._references = [0] * pages
        self._key_of: list[Key | None] = [None] * pages
        self._page_of: dict[Key, int] = {}
        # Nobody who does not know it can make up tokens whose keys collide, and keys of two engines never meet.
        self._salt = os.urandom(16)

    @property
    def free_pages(self) -> int:
        return len(self._blank) + len(self._kept)

    @property
    def kept_pages(self) -> int:
        """How many of the free pages still hold contents that can be found."""
        return len(self._kept)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def extend(self, table: list[int], tokens: int) -> bool:
        """Appends pages until ``table`` holds ``tokens`` positions. All or nothing; False when the pool is dry."""
        missing = self.pages_for(tokens) - len(table)
        if missing <= 0:
            return True
        if missing > self.free_pages:
            return False
        for _ in range(missing):
            page = self._take()
            self._references[page] = 1
            table.append(page)
        return True

    def release(self, table: list[int]) -> None:
        """Gives the table's pages back and empties it. A page is free once nobody holds it."""
        for page in reversed(table):
            self._references[page] -= 1
            if self._references[page] == 0:
                if self._key_of[page] is None:
                    self._blank.append(page)
                else:
                    self._kept[page] = None
        table.clear()

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

    def find(self, keys: Iterable[Key]) -> list[int]:
        """Pages of the longest known beginning of ``keys``. They are nobody's until ``share`` takes them."""
        found = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            found.append(page)
        return found

    def fits(self, shared: Sequence[int], tokens: int, released: Iterable[Sequence[int]] = ()) -> bool:
        """Whether a new table of ``tokens`` positions that begins with the pages ``shared`` can be had: now, or once
        the tables ``released`` are given back."""
        given = Counter(page for table in released for page in table)
        freed = sum(self._references[page] == count for page, count in given.items())
        taken = sum(self._references[page] == given[page] for page in shared)
        return self.pages_for(tokens) - len(shared) + taken <= self.free_pages + freed

    def share(self, table: list[int], pages: Sequence[int]) -> None:
        """Begins the empty ``table`` with ``pages`` that were found, each held once more."""
        assert not table, "only a new table begins with shared pages"
        for page in pages:
            if self._references[page] == 0:
                del self._kept[page]
            self._references[page] += 1
            table.append(page)

    def publish(self, page: int, key: Key) -> None:
        """Makes a held page known by ``key``, now that all of it is computed. The first page of a key stays known."""
        assert self._references[page] > 0 and self._key_of[page] is None, "only a held page can be published, and once"
        if self.cache and key not in self._page_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def forget(self) -> None:
        """Empties the prefix cache. What is held stays held, and unknown."""
        self._blank += reversed(self._kept)
        self._kept.clear()
        self._page_of.clear()
        self._key_of = [None] * self.pages

    def key_of(self, page: int) -> Key | None:
        return self._key_of[page]

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless ``tables`` are all that is held: every page is free or counted, never both, and
        found by a key exactly when it has that key."""
        held = Counter(page for table in tables for page in table)
        for page, count in enumerate(self._references):
            assert count == held[page], f"page {page} counts {count} references, {held[page]} tables hold it"
        unheld = [page for page in range(self.pages) if not held[page]]
        assert sorted([*self._blank, *self._kept]) == unheld, "the free pages are not what nobody holds"
        assert all(self._key_of[page] is None for page in self._blank), "a blank page has a key"
        assert all(self._key_of[page] is not None for page in self._kept), "a kept page can't be found"
        keyed = {key: page for page, key in enumerate(self._key_of) if key is not None}
        assert keyed == self._page_of, "the index is not what the pages say"
        assert self.cache or not keyed, "a page was published without a cache"

    def _take(self) -> int:
        if self._blank:
            return self._blank.pop()
        page, _ = self._kept.popitem(last=False)
        key, self._key_of[page] = self._key_of[page], None
        assert key is not None
        del self._page_of[key]
        return page
