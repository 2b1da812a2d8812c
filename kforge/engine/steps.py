"""What a step is: fixed buffers whose contents change, and its dynamic axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kforge.engine.request import Sequence
from kforge.engine.scheduler import Scheduled

Allocate = Callable[[tuple[int, ...], "np.dtype"], np.ndarray]
INT32 = np.dtype(np.int32)


@dataclass(frozen=True)
class StepLimits:
    """The largest step and the cache that it works in."""

    max_tokens: int
    max_sequences: int
    pages: int
    page_tokens: int
    context: int  # positions that one sequence may reach

    @property
    def table_width(self) -> int:
        """Pages of the longest sequence: columns of the block table."""
        return -(-self.context // self.page_tokens)


class StepShape(NamedTuple):
    """Dynamic axes of one step: T tokens of S sequences, the logits of R of which are wanted; the longest context in
    positions."""

    tokens: int
    sequences: int
    rows: int
    max_context: int


class StepInputs:
    """Integer inputs of a step, allocated once for the largest one; replays see new contents at the same addresses.

    ids, positions, slots i32[max_tokens]; block_table i32[max_sequences, table_width]; query_start
    i32[max_sequences + 1]; context, index i32[max_sequences]. ``index`` lists the tokens whose logits are wanted: at
    most max_sequences of them, of one sequence or of many.
    """

    def __init__(self, limits: StepLimits, allocate: Allocate) -> None:
        self.limits = limits
        self.ids = allocate((limits.max_tokens,), INT32)
        self.positions = allocate((limits.max_tokens,), INT32)
        self.slots = allocate((limits.max_tokens,), INT32)
        self.block_table = allocate((limits.max_sequences, limits.table_width), INT32)
        self.query_start = allocate((limits.max_sequences + 1,), INT32)
        self.context = allocate((limits.max_sequences,), INT32)
        self.index = allocate((limits.max_sequences,), INT32)
        self._counting = np.arange(max(limits.context, limits.max_tokens), dtype=np.int32)
        self._rows = [_TableRow() for _ in range(limits.max_sequences)]

    def fill(self, batch: list[Scheduled]) -> StepShape:
        """Writes one step's inputs. The single-token branch is the decode path: scalar stores, no temporary arrays."""
        page = self.limits.page_tokens
        token = rows = longest = 0
        for at, item in enumerate(batch):
            sequence, start = item.sequence, item.start
            self._copy_table(at, sequence)
            if item.count == 1:
                self.ids[token] = sequence.tokens[start]
                self.positions[token] = start
                self.slots[token] = sequence.table[start // page] * page + start % page
            else:
                self._fill_chunk(token, at, item)
            token += item.count
            self.query_start[at + 1] = token
            context = start + item.count
            self.context[at] = context
            longest = max(longest, context)
            if item.rows == 1:
                self.index[rows] = token - 1
            elif item.rows:
                self.index[rows : rows + item.rows] = self._counting[token - item.rows : token]
            rows += item.rows
        return StepShape(token, len(batch), rows, longest)

    def _fill_chunk(self, token: int, at: int, item: Scheduled) -> None:
        page, stop, end = self.limits.page_tokens, token + item.count, item.start + item.count
        positions = self._counting[item.start : end]
        drafted = len(item.drafts)
        self.ids[token : stop - drafted] = item.sequence.tokens[item.start : end - drafted]
        if drafted:
            self.ids[stop - drafted : stop] = item.drafts
        self.positions[token:stop] = positions
        self.slots[token:stop] = self.block_table[at][positions // page] * page + positions % page

    def _copy_table(self, at: int, sequence: Sequence) -> None:
        """Brings row ``at`` up to date. Tables are append-only, so for the same owner only the tail is new."""
        row, length = self._rows[at], len(sequence.table)
        if row.sequence != sequence.id or row.version != sequence.table_version:
            row.sequence, row.version, row.length = sequence.id, sequence.table_version, 0
        if row.length != length:
            self.block_table[at, row.length : length] = sequence.table[row.length :]
            row.length = length


@dataclass(slots=True)
class _TableRow:
    """Whose block table a row holds, and how much of it."""

    sequence: int = -1
    version: int = 0
    length: int = 0
