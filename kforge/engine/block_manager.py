"""Pages of the KV cache: who holds which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


class BlockManager:
    """Free list and reference counts of a pool of pages.

    A block table is append-only: entry i holds positions i*P .. i*P+P-1 and never changes while its owner keeps it.
    Only *full* pages are shared, so a shared page is never written again and needs no copy on write.
    """

    def __init__(self, pages: int, page_tokens: int) -> None:
        self.pages = pages
        self.page_tokens = page_tokens
        # Popped from the end: low pages first, and a page that was just freed (still warm) first of all.
        self._free = list(range(pages - 1, -1, -1))
        self._references = [0] * pages

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def extend(self, table: list[int], tokens: int) -> bool:
        """Appends pages until ``table`` holds ``tokens`` positions. All or nothing; False when the pool is dry."""
        missing = self.pages_for(tokens) - len(table)
        if missing <= 0:
            return True
        if missing > len(self._free):
            return False
        for _ in range(missing):
            page = self._free.pop()
            self._references[page] = 1
            table.append(page)
        return True

    def share(self, table: Sequence[int], tokens: int) -> list[int]:
        """A new table over the full pages among the first ``tokens`` positions of ``table``, each held once more."""
        shared = list(table[: tokens // self.page_tokens])
        for page in shared:
            self._references[page] += 1
        return shared

    def release(self, table: list[int]) -> None:
        """Gives the table's pages back and empties it. A page is free once nobody holds it."""
        for page in reversed(table):
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)
        table.clear()

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless ``tables`` are all that is held: every page is free or counted, never both."""
        held = Counter(page for table in tables for page in table)
        for page, count in enumerate(self._references):
            assert count == held[page], f"page {page} counts {count} references, {held[page]} tables hold it"
        unheld = [page for page in range(self.pages) if not held[page]]
        assert sorted(self._free) == unheld, "the free list is not what nobody holds"
