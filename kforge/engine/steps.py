"""What a step is: fixed buffers whose contents change, and its dynamic axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kforge.engine.block_manager import GONE, BlockTable
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
    groups: int = 1  # of layers, each with a block table of its own

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

    ids, positions i32[max_tokens]; query_start i32[max_sequences + 1]; context, index i32[max_sequences]; and what each
    of ``groups`` has of its own. ``index`` lists the tokens whose logits are wanted: at most max_sequences of them, of
    one sequence or of many.
    """

    def __init__(self, limits: StepLimits, allocate: Allocate) -> None:
        self.limits = limits
        self.ids = allocate((limits.max_tokens,), INT32)
        self.positions = allocate((limits.max_tokens,), INT32)
        self.groups = tuple(GroupInputs(number, limits, allocate) for number in range(limits.groups))
        self.query_start = allocate((limits.max_sequences + 1,), INT32)
        self.context = allocate((limits.max_sequences,), INT32)
        self.index = allocate((limits.max_sequences,), INT32)
        self._counting = np.arange(max(limits.context, limits.max_tokens), dtype=np.int32)

    def fill(self, batch: list[Scheduled]) -> StepShape:
        """Writes one step's inputs. The single-token branch is the decode path: scalar stores, no temporary arrays."""
        token = rows = longest = 0
        for at, item in enumerate(batch):
            start = item.start
            if item.count == 1:
                self.ids[token] = item.sequence.tokens[start]
                self.positions[token] = start
            else:
                self._fill_chunk(token, item)
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
        for group in self.groups:
            group.fill(batch, self._counting)
        return StepShape(token, len(batch), rows, longest)

    def _fill_chunk(self, token: int, item: Scheduled) -> None:
        stop, end = token + item.count, item.start + item.count
        drafted = len(item.drafts)
        self.ids[token : stop - drafted] = item.sequence.tokens[item.start : end - drafted]
        if drafted:
            self.ids[stop - drafted : stop] = item.drafts
        self.positions[token:stop] = self._counting[item.start : end]


class GroupInputs:
    """Where a group of layers finds keys and values: slots i32[max_tokens], block_table i32[max_sequences,
    table_width]."""

    def __init__(self, number: int, limits: StepLimits, allocate: Allocate) -> None:
        self.number = number
        self.slots = allocate((limits.max_tokens,), INT32)
        self.block_table = allocate((limits.max_sequences, limits.table_width), INT32)
        self._page = limits.page_tokens
        self._rows = [_TableRow() for _ in range(limits.max_sequences)]

    def fill(self, batch: list[Scheduled], counting: np.ndarray) -> None:
        """Writes a step's tables and slots; ``counting``: i32 0, 1, 2, ... up to the longest context."""
        page, token = self._page, 0
        for at, item in enumerate(batch):
            sequence, start = item.sequence, item.start
            table = sequence.tables[self.number]
            row = self._rows[at]
            if (row.sequence != sequence.id or row.version != sequence.table_version
                    or row.length != len(table.pages) or row.first != table.first):
                self._copy_table(at, row, sequence, table)
            if item.count == 1:
                self.slots[token] = table.pages[start // page] * page + start % page
                token += 1
            else:
                positions = counting[start : start + item.count]
                slots = self.block_table[at][positions // page] * page + positions % page
                self.slots[token : token + item.count] = slots
                token += item.count

    def _copy_table(self, at: int, row: _TableRow, sequence: Sequence, table: BlockTable) -> None:
        """Brings row ``at`` up to date: for the same owner only the tail is new, and what is gone at the front."""
        if row.sequence != sequence.id or row.version != sequence.table_version:
            row.sequence, row.version, row.length, row.first = sequence.id, sequence.table_version, 0, 0
        length = len(table.pages)
        self.block_table[at, row.length : length] = table.pages[row.length :]
        self.block_table[at, row.first : table.first] = GONE
        row.length, row.first = length, table.first


@dataclass(slots=True)
class _TableRow:
    """Whose block table a row holds, and how much of it: entries up to ``length``, those before ``first`` gone."""

    sequence: int = -1
    version: int = 0
    length: int = 0
    first: int = 0
