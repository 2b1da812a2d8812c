"""Which layers share a block table, and how many pages the KV cache needs.

Layers that see equally far are a *group*: they write and read the same pages, so one table serves them all. A page is
64 positions of one group, with room for as many layers as the largest group has; so every page fits every group, and
all groups take theirs from one pool.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kforge.models.config import ModelConfig

ANY_LENGTH = sys.maxsize


@dataclass(frozen=True)
class CacheLayout:
    """``windows``: of each group, 0 (sees all) first. By layer: its group, and its place among the layers of a page."""

    windows: tuple[int, ...]
    groups: tuple[int, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, config: ModelConfig) -> CacheLayout:
        each = [config.window(layer) for layer in range(config.layers)]
        windows = tuple(sorted(set(each)))
        before: Counter[int] = Counter()
        places = []
        for window in each:
            places.append(before[window])
            before[window] += 1
        return cls(windows, tuple(windows.index(window) for window in each), tuple(places))

    @property
    def depth(self) -> int:
        """Layers of a page."""
        return max(self.places) + 1


@dataclass(frozen=True)
class CachePlan:
    """``pages`` of the pool, and the ``positions`` that one sequence may reach in it (``ANY_LENGTH``: as many as it
    likes, for all its layers forget)."""

    pages: int
    positions: int

    @classmethod
    def of(cls, windows: Sequence[int], kv_pages: int, page_tokens: int, max_sequences: int, max_tokens: int
           ) -> CachePlan:
        """For ``kv_pages`` pages of text, however ``max_sequences`` share it.

        A group that sees all holds every page of it. One with a window needs no more than what all sequences see, and
        the tokens of a step, if that is less.
        """
        most = [most_pages(window, max_tokens, page_tokens) for window in windows]
        moving = -(-max_tokens // page_tokens)
        wanted = [max_sequences * most_pages(window, 1, page_tokens) + moving for window in windows]
        return cls(sum(min(kv_pages, pages) for pages in wanted),
                   ANY_LENGTH if max(most) <= kv_pages else kv_pages * page_tokens)


def most_pages(window: int, queries: int, page_tokens: int) -> int:
    """Pages that ``queries`` consecutive queries can see in a window: w + n - 1 positions, wherever pages begin; all
    that there are where the window is 0."""
    return (window + queries - 3) // page_tokens + 2 if window else ANY_LENGTH


def first_page(window: int, position: int, page_tokens: int) -> int:
    """The first page that the query at ``position`` sees; the window counts its own position."""
    return max(position - window + 1, 0) // page_tokens if window else 0


def page_bytes(config: ModelConfig, page_tokens: int, kv: str) -> int:
    """Bytes of one page; ``kv``: element type."""
    return page_tokens * CacheLayout.of(config).depth * config.kv_bytes_per_token(kv) // config.layers
