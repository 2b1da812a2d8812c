"""Tokens that several prompts begin with are computed once, and found only after they were computed."""

from __future__ import annotations

from scheduler_play import PAGE, compute, run, sequence

from kforge.engine.block_manager import BlockManager
from kforge.engine.scheduler import Scheduler


def test_full_pages_of_a_common_prompt_are_shared_not_recomputed():
    scheduler = Scheduler(BlockManager(100, PAGE), max_tokens=64, max_sequences=4)
    first, second = sequence(0, list(range(11)), 8), sequence(1, list(range(11)), 8)
    scheduler.add(first)
    compute(scheduler, scheduler.schedule())
    scheduler.add(second)
    batch = scheduler.schedule()
    assert [(s.start, s.count) for s in batch] == [(11, 1), (8, 3)]
    mine, theirs = second.tables[0].pages, first.tables[0].pages
    assert mine[:2] == theirs[:2] and mine[2] != theirs[2]
    scheduler.finish(first)
    scheduler.check_integrity()


def test_a_prompt_that_is_known_to_its_last_token_computes_that_one_s_page():
    scheduler = Scheduler(BlockManager(100, PAGE), max_tokens=64, max_sequences=4)
    run(scheduler, [sequence(0, list(range(12)), 1)])
    again = sequence(1, list(range(12)), 1)
    scheduler.add(again)
    assert [(s.start, s.count) for s in scheduler.schedule()] == [(8, 4)]
    assert (scheduler.prefix.queries, scheduler.prefix.query_tokens, scheduler.prefix.hit_tokens) == (2, 24, 8)


def test_equal_prompts_that_come_together_are_computed_once():
    scheduler = Scheduler(BlockManager(100, PAGE), max_tokens=8, max_sequences=4)
    sequences = [sequence(i, list(range(21)), 2) for i in range(3)]
    for item in sequences:
        scheduler.add(item)
    computed = 0
    while not scheduler.idle:
        batch = scheduler.schedule()
        scheduler.check_integrity()
        computed += sum(s.count for s in batch)
        compute(scheduler, batch)
    assert computed == 21 + 2 * 1 + 3 * 1, "the prompt, the last token of the others, and a decoded token of each"


def test_who_waits_for_a_prefix_does_not_hold_up_others():
    scheduler = Scheduler(BlockManager(100, PAGE), max_tokens=16, max_sequences=4)
    for item in (sequence(0, list(range(13)), 1), sequence(1, list(range(13)), 1), sequence(2, [500] * 3, 1)):
        scheduler.add(item)
    assert [s.sequence.id for s in scheduler.schedule()] == [0, 2]


def test_what_a_failed_step_should_have_computed_is_not_found():
    scheduler = Scheduler(BlockManager(100, PAGE), max_tokens=64, max_sequences=4)
    first = sequence(0, list(range(11)), 8)
    scheduler.add(first)
    assert scheduler.schedule()  # and it fails: nothing is advanced
    assert scheduler.blocks.find(first.keys).length == 0
    scheduler.abort(first)
    scheduler.check_integrity()
    run(scheduler, [sequence(1, list(range(11)), 1)])
    assert scheduler.prefix.hit_tokens == 0
