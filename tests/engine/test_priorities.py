"""Who goes first, who makes room for whom, and that nobody waits for ever."""

from __future__ import annotations

import pytest
from scheduler_play import PAGE, compute, run, sequence

from kforge.engine.block_manager import BlockManager
from kforge.engine.scheduler import Scheduler


def test_a_dry_pool_preempts_the_youngest_and_the_oldest_never():
    sequences = [sequence(i, list(range(i * 50, i * 50 + 8)), 20) for i in range(3)]
    run(Scheduler(BlockManager(10, PAGE), 64, 8), sequences)
    assert sequences[0].preemptions == 0
    assert sequences[1].preemptions + sequences[2].preemptions > 0


def test_a_dry_pool_preempts_the_lowest_priority_whatever_its_age():
    sequences = [sequence(i, list(range(i * 50, i * 50 + 8)), 20, priority=i) for i in range(3)]
    run(Scheduler(BlockManager(10, PAGE), 64, 8), sequences)
    assert sequences[2].preemptions == 0 and sequences[0].preemptions > 0


def test_a_higher_priority_goes_first_and_equals_go_as_they_came():
    scheduler = Scheduler(BlockManager(100, PAGE), max_tokens=8, max_sequences=1)
    sequences = [sequence(i, [i], 1, priority=p) for i, p in enumerate([0, 5, 0, 5, -1])]
    for item in sequences:
        scheduler.add(item)
    order = []
    while not scheduler.idle:
        batch = scheduler.schedule()
        order += [s.sequence.id for s in batch]
        compute(scheduler, batch)
    assert order == [1, 3, 0, 2, 4]


def test_a_higher_priority_takes_the_place_of_a_lower_one_but_not_of_an_equal():
    scheduler = Scheduler(BlockManager(20, PAGE), max_tokens=64, max_sequences=2)
    low, high = sequence(0, list(range(12)), 9), sequence(1, list(range(50, 62)), 9, priority=1)
    late, equal = sequence(2, list(range(80, 92)), 9, priority=1), sequence(3, [7], 1, priority=1)
    for item in (low, high):
        scheduler.add(item)
        compute(scheduler, scheduler.schedule())
    scheduler.add(late)
    scheduler.add(equal)
    batch = scheduler.schedule()
    scheduler.check_integrity()
    assert [s.sequence.id for s in batch] == [1, 2] and low.preemptions == 1 and low in scheduler.waiting
    run(scheduler, [])
    assert high.preemptions == late.preemptions == 0


def test_room_is_not_taken_where_it_would_not_be_enough():
    scheduler = Scheduler(BlockManager(8, PAGE), max_tokens=64, max_sequences=4)
    low, high = sequence(0, list(range(4)), 3), sequence(1, list(range(50, 70)), 9, priority=2)
    for item in (low, high):
        scheduler.add(item)
        compute(scheduler, scheduler.schedule())
    scheduler.add(sequence(2, list(range(80, 96)), 9, priority=1))
    assert sorted(s.sequence.id for s in scheduler.schedule()) == [0, 1]
    assert low.preemptions == 0


@pytest.mark.parametrize("pool", [4, 100])
def test_a_stream_of_higher_priorities_cannot_starve_anybody(pool):
    """Every step brings a request of a high priority, more than can be served; the lowest is served all the same."""
    scheduler = Scheduler(BlockManager(pool, PAGE), max_tokens=4, max_sequences=2, ageing_steps=10)
    lowest = sequence(0, list(range(9)), 4)
    scheduler.add(lowest)
    for step in range(1, 400):
        for n in range(2):
            scheduler.add(sequence(2 * step + n, [step, n, 1], 3, priority=9))
        compute(scheduler, scheduler.schedule())
        scheduler.check_integrity()
        if lowest not in scheduler.waiting and lowest not in scheduler.running:
            break
    assert len(lowest.generated) == 4
    assert step < 300, "180 came in the first 90 steps, which nine levels of priority are worth; those may go first"
    assert len(scheduler.waiting) > 100, "the others came faster than they were served"
