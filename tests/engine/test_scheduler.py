"""Every sequence gets every token computed once per life of its pages, inside the budget, whatever the pool."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kforge.engine.block_manager import BlockManager
from kforge.engine.request import SamplingParams, Sequence
from kforge.engine.scheduler import Scheduler


def sequence(number: int, tokens: list[int], wanted: int) -> Sequence:
    return Sequence(number, list(tokens), len(tokens), SamplingParams(max_tokens=wanted), limit=10_000)


def run(scheduler: Scheduler, sequences: list[Sequence]) -> dict[int, int]:
    """Plays the engine: computes what is scheduled, appends a token when a chunk reaches the end. Returns lives."""
    for item in sequences:
        scheduler.add(item)
    for _ in range(20_000):
        if scheduler.idle:
            return {s.id: s.preemptions for s in sequences}
        batch = scheduler.schedule()
        scheduler.check_integrity()
        assert batch, "work waits, but nothing was scheduled"
        assert sum(s.count for s in batch) <= scheduler.max_tokens
        assert len({s.sequence.id for s in batch}) == len(batch) <= scheduler.max_sequences
        for item in batch:
            seq = item.sequence
            assert item.count >= 1 and item.start == seq.computed
            assert len(seq.table) * scheduler.blocks.page_tokens >= item.start + item.count
            assert item.samples == (item.start + item.count == seq.wanted)
        for item in batch:
            item.sequence.computed += item.count
            if item.samples:
                item.sequence.tokens.append(1000 + len(item.sequence.tokens))
                if len(item.sequence.generated) == item.sequence.params.max_tokens:
                    scheduler.finish(item.sequence)
    raise AssertionError("the loop does not end")


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=8),
    st.integers(1, 32),
    st.integers(1, 6),
    st.integers(0, 20),
)
@settings(max_examples=80, deadline=None)
def test_everything_finishes_inside_the_budget(requests, budget, most, spare):
    pages = max(-(-(p + n) // 4) for p, n in requests) + spare
    blocks = BlockManager(pages, 4)
    sequences = [sequence(i, [i * 100 + j for j in range(p)], n) for i, (p, n) in enumerate(requests)]
    run(Scheduler(blocks, budget, most), sequences)
    assert blocks.free_pages == pages
    for (prompt, wanted), item in zip(requests, sequences, strict=True):
        assert item.wanted == prompt + wanted


def test_a_dry_pool_preempts_the_youngest_and_the_oldest_never():
    sequences = [sequence(i, list(range(i * 50, i * 50 + 8)), 20) for i in range(3)]
    lives = run(Scheduler(BlockManager(10, 4), 64, 8), sequences)
    assert lives[0] == 0
    assert lives[1] + lives[2] > 0


def test_decode_goes_on_while_a_long_prompt_is_computed_in_chunks():
    scheduler = Scheduler(BlockManager(100, 4), max_tokens=8, max_sequences=4)
    first, second = sequence(0, [1, 2], 8), sequence(1, list(range(10, 40)), 1)
    scheduler.add(first)
    scheduler.schedule()
    first.computed = 2
    first.tokens.append(3)
    scheduler.add(second)
    batch = scheduler.schedule()
    assert [(s.sequence.id, s.count, s.samples) for s in batch] == [(0, 1, True), (1, 7, False)]


def test_full_pages_of_a_common_prompt_are_shared_not_recomputed():
    scheduler = Scheduler(BlockManager(100, 4), max_tokens=64, max_sequences=4)
    first, second = sequence(0, list(range(11)), 8), sequence(1, list(range(11)), 8)
    scheduler.add(first)
    scheduler.schedule()
    first.computed = 11
    first.tokens.append(99)
    scheduler.add(second)
    batch = scheduler.schedule()
    assert [(s.start, s.count) for s in batch] == [(11, 1), (8, 3)]
    assert second.table[:2] == first.table[:2] and second.table[2] != first.table[2]
    scheduler.finish(first)
    scheduler.check_integrity()
