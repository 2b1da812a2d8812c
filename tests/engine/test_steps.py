"""A step's inputs say which tokens are computed where, and after which of them logits are wanted."""

from dataclasses import replace

import numpy as np

from kforge.engine.block_manager import GONE, BlockTable
from kforge.engine.request import SamplingParams, Sequence
from kforge.engine.scheduler import Scheduled
from kforge.engine.steps import StepInputs, StepLimits

PAGE = 4
LIMITS = StepLimits(max_tokens=16, max_sequences=8, pages=9, page_tokens=PAGE, context=24)


def sequence(number: int, tokens: list[int], table: list[int]) -> Sequence:
    return Sequence(number, tokens, len(tokens), SamplingParams(), 24, tables=[BlockTable(table)])


def test_tokens_drafts_slots_and_rows_of_a_mixed_step():
    inputs = StepInputs(LIMITS, np.zeros)
    decoding, guessed = sequence(0, [10, 11, 12], [5]), sequence(1, [20, 21, 22], [2, 7])
    prompt, scored = sequence(2, [30, 31, 32, 33, 34], [1, 3]), sequence(3, [40, 41, 42], [8])
    shape = inputs.fill([
        Scheduled(decoding, 2, 1, 1, True), Scheduled(guessed, 2, 4, 4, True, (27, 28, 29)),
        Scheduled(prompt, 1, 3, 0), Scheduled(scored, 0, 3, 2)])
    assert shape == (11, 4, 7, 6)
    assert inputs.ids[:11].tolist() == [12, 22, 27, 28, 29, 31, 32, 33, 40, 41, 42]
    assert inputs.positions[:11].tolist() == [2, 2, 3, 4, 5, 1, 2, 3, 0, 1, 2]
    assert inputs.groups[0].slots[:11].tolist() == [22, 10, 11, 28, 29, 5, 6, 7, 32, 33, 34]
    assert inputs.query_start[:5].tolist() == [0, 1, 5, 8, 11]
    assert inputs.context[:4].tolist() == [3, 6, 4, 3]
    assert inputs.index[:7].tolist() == [0, 1, 2, 3, 4, 9, 10]
    assert inputs.groups[0].block_table[1, :2].tolist() == [2, 7]


def test_a_table_that_started_afresh_replaces_the_one_that_was_there():
    inputs = StepInputs(LIMITS, np.zeros)
    item = sequence(0, [1, 2, 3, 4, 5], [5, 6])
    inputs.fill([Scheduled(item, 0, 5, 1, True)])
    item.tables[0].pages.append(7)
    inputs.fill([Scheduled(item, 4, 1, 1, True)])
    assert inputs.groups[0].block_table[0, :3].tolist() == [5, 6, 7], "a table grows"
    item.tables, item.table_version = [BlockTable([3, 4, 8])], 1
    inputs.fill([Scheduled(item, 4, 1, 1, True)])
    assert inputs.groups[0].block_table[0, :3].tolist() == [3, 4, 8]
    other = sequence(1, [1, 2, 3, 4, 5], [0, 1, 2])
    inputs.fill([Scheduled(other, 4, 1, 1, True)])
    assert inputs.groups[0].block_table[0, :3].tolist() == [0, 1, 2]


def test_every_group_has_slots_and_a_table_of_its_own_in_which_what_is_gone_is_named_no_more():
    inputs = StepInputs(replace(LIMITS, groups=2), np.zeros)
    full, windowed = BlockTable([5, 6, 1]), BlockTable([7, 0, 3])
    item = Sequence(0, list(range(10)), 10, SamplingParams(), 24, tables=[full, windowed])
    inputs.fill([Scheduled(item, 4, 5, 0)])
    assert [g.slots[:5].tolist() for g in inputs.groups] == [[24, 25, 26, 27, 4], [0, 1, 2, 3, 12]]
    windowed.pages[:2], windowed.first = [GONE, GONE], 2
    inputs.fill([Scheduled(item, 9, 1, 1, True)])
    assert [g.slots[0] for g in inputs.groups] == [5, 13]
    assert [g.block_table[0, :3].tolist() for g in inputs.groups] == [[5, 6, 1], [GONE, GONE, 3]]
    tables = [BlockTable([2, 4, 8]), BlockTable([GONE, 7, 0], 1)]
    other = Sequence(1, list(range(10)), 10, SamplingParams(), 24, tables=tables)
    inputs.fill([Scheduled(other, 9, 1, 1, True)])
    assert [g.block_table[0, :3].tolist() for g in inputs.groups] == [[2, 4, 8], [GONE, 7, 0]]
