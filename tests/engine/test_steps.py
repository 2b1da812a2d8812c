"""A step's inputs say which tokens are computed where, and after which of them logits are wanted."""

import numpy as np

from kforge.engine.request import SamplingParams, Sequence
from kforge.engine.scheduler import Scheduled
from kforge.engine.steps import StepInputs, StepLimits

PAGE = 4
LIMITS = StepLimits(max_tokens=16, max_sequences=8, pages=9, page_tokens=PAGE, context=24)


def sequence(number: int, tokens: list[int], table: list[int]) -> Sequence:
    return Sequence(number, tokens, len(tokens), SamplingParams(), 24, table=table)


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
    assert inputs.slots[:11].tolist() == [22, 10, 11, 28, 29, 5, 6, 7, 32, 33, 34]
    assert inputs.query_start[:5].tolist() == [0, 1, 5, 8, 11]
    assert inputs.context[:4].tolist() == [3, 6, 4, 3]
    assert inputs.index[:7].tolist() == [0, 1, 2, 3, 4, 9, 10]
    assert inputs.block_table[1, :2].tolist() == [2, 7]


def test_a_table_that_started_afresh_replaces_the_one_that_was_there():
    inputs = StepInputs(LIMITS, np.zeros)
    item = sequence(0, [1, 2, 3, 4, 5], [5, 6])
    inputs.fill([Scheduled(item, 0, 5, 1, True)])
    item.table = [5, 6, 7]
    inputs.fill([Scheduled(item, 4, 1, 1, True)])
    assert inputs.block_table[0, :3].tolist() == [5, 6, 7], "a table grows"
    item.table, item.table_version = [3, 4, 8], 1
    inputs.fill([Scheduled(item, 4, 1, 1, True)])
    assert inputs.block_table[0, :3].tolist() == [3, 4, 8]
    other = sequence(1, [1, 2, 3, 4, 5], [0, 1, 2])
    inputs.fill([Scheduled(other, 4, 1, 1, True)])
    assert inputs.block_table[0, :3].tolist() == [0, 1, 2]
