"""Layers that see a window alone: pages out of sight are given back, and a prompt of any length goes through."""

from __future__ import annotations

from scheduler_play import PAGE, compute, run, sequence

from kforge.engine.block_manager import GONE, BlockManager, BlockTable
from kforge.engine.cache_groups import most_pages
from kforge.engine.scheduler import Scheduler


def test_a_prompt_of_any_length_goes_through_a_window_and_a_step_of_pages():
    scheduler = Scheduler(BlockManager(4, PAGE, windows=(6,), step_tokens=8), max_tokens=8, max_sequences=4)
    assert most_pages(6, 8, PAGE) == 4
    sequences = [sequence(i, list(range(1000 * i, 1000 * i + 150)), 20) for i in range(2)]
    run(scheduler, sequences)
    assert scheduler.preemptions == 0 and scheduler.blocks.free_pages == 4


def test_what_a_window_sees_is_enough_to_go_on_from():
    scheduler = Scheduler(BlockManager(30, PAGE, windows=(0, 6)), max_tokens=64, max_sequences=4)
    run(scheduler, [sequence(0, list(range(20)), 3)])
    again = sequence(1, list(range(18)), 1)
    scheduler.add(again)
    assert [(s.start, s.count) for s in scheduler.schedule()] == [(16, 2)]
    full, windowed = again.tables
    assert windowed.pages[:2] == [GONE, GONE] and windowed.first == 2, "position 16 sees 11 and what follows"
    assert len(full.held) == 5 and len(windowed.held) == 3 and not set(full.held) & set(windowed.held)
    scheduler.check_integrity()


def test_a_chunk_is_as_long_as_there_are_pages_and_the_first_in_rank_takes_those_of_the_last():
    blocks = BlockManager(20, PAGE, windows=(9,), step_tokens=9)
    scheduler = Scheduler(blocks, max_tokens=9, max_sequences=4)
    first, second = sequence(0, [1, 2], 50), sequence(1, list(range(100, 140)), 1)
    for item in (first, second):
        scheduler.add(item)
        compute(scheduler, scheduler.schedule())
    assert (first.room, second.computed, second.room) == (4, 8, 12)
    assert blocks.extend([BlockTable()], blocks.free_pages * PAGE), "somebody else has the rest"
    batch = scheduler.schedule()
    assert [(s.sequence.id, s.count) for s in batch] == [(0, 1), (1, 4)]
    compute(scheduler, batch)
    for _ in range(4):  # the one page that went out of the second's sight
        batch = scheduler.schedule()
        assert [(s.sequence.id, s.count) for s in batch] == [(0, 1)] and second in scheduler.running
        compute(scheduler, batch)
    assert [(s.sequence.id, s.start) for s in scheduler.schedule()] == [(0, 8)]
    assert (first.preemptions, second.preemptions) == (0, 1)
