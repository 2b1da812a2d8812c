"""Every sequence gets every token computed once per life of its pages, inside the budget, whatever the pool."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduler_play import PAGE, compute, run, sequence

from kforge.engine.block_manager import GONE, BlockManager, BlockTable
from kforge.engine.cache_groups import most_pages
from kforge.engine.request import Sequence
from kforge.engine.scheduler import Scheduled, Scheduler


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=8),
    st.integers(1, 32),
    st.integers(1, 6),
    st.integers(0, 20),
    st.booleans(),
    st.sampled_from([(0,), (0, 5), (1,), (6,), (0, 3, 9)]),
)
@settings(max_examples=120, deadline=None)
def test_everything_finishes_inside_the_budget(requests, budget, most, spare, cache, windows):
    longest = max(-(-(p + n) // PAGE) for p, n in requests)
    pages = sum(min(longest, most_pages(w, budget, PAGE)) if w else longest for w in windows) + spare
    blocks = BlockManager(pages, PAGE, cache, windows, budget)
    sequences = [sequence(i, [i * 100 + j for j in range(p)], n) for i, (p, n) in enumerate(requests)]
    run(Scheduler(blocks, budget, most), sequences)
    assert blocks.free_pages == pages
    for (prompt, wanted), item in zip(requests, sequences, strict=True):
        assert item.wanted == prompt + wanted


def test_a_table_that_was_given_back_has_another_version():
    scheduler = Scheduler(BlockManager(10, PAGE), 64, 8)
    sequences = [sequence(i, list(range(i * 50, i * 50 + 8)), 20) for i in range(3)]
    run(scheduler, sequences)
    assert all(s.table_version == s.preemptions + 1 for s in sequences), "given back when preempted, and at the end"


def test_decode_goes_on_while_a_long_prompt_is_computed_in_chunks():
    scheduler = Scheduler(BlockManager(100, PAGE), max_tokens=8, max_sequences=4)
    scheduler.add(sequence(0, [1, 2], 8))
    compute(scheduler, scheduler.schedule())
    scheduler.add(sequence(1, list(range(10, 40)), 1))
    batch = scheduler.schedule()
    assert [(s.sequence.id, s.count, s.samples) for s in batch] == [(0, 1, True), (1, 7, False)]


def test_an_older_prompt_does_not_take_the_step_from_younger_answers():
    scheduler = Scheduler(BlockManager(100, PAGE), max_tokens=8, max_sequences=4)
    scheduler.add(sequence(0, list(range(100, 200)), 1))
    compute(scheduler, scheduler.schedule())
    scheduler.add(sequence(1, [1, 2], 8, priority=1))
    compute(scheduler, scheduler.schedule())
    for _ in range(5):
        batch = scheduler.schedule()
        assert [(s.sequence.id, s.count) for s in batch] == [(1, 1), (0, 7)], "the answer goes on, and first"
        compute(scheduler, batch)


def test_prompts_are_bounded_while_others_decode_and_only_then():
    scheduler = Scheduler(BlockManager(100, PAGE), max_tokens=64, max_sequences=4, max_prefill_tokens=5)
    scheduler.add(sequence(0, list(range(50)), 3))
    batch = scheduler.schedule()
    assert [s.count for s in batch] == [50], "nobody waits for a token"
    compute(scheduler, batch)
    scheduler.add(sequence(1, list(range(100, 112)), 1))
    counts = []
    while not scheduler.idle:
        batch = scheduler.schedule()
        counts.append([s.count for s in batch])
        compute(scheduler, batch)
    assert counts == [[1, 5], [1, 5], [2]]


def test_a_sequence_can_be_dropped_while_it_waits_and_while_it_runs():
    scheduler = Scheduler(BlockManager(8, PAGE), max_tokens=64, max_sequences=1)
    running, waiting = sequence(0, list(range(9)), 5), sequence(1, list(range(9)), 5)
    scheduler.add(running)
    scheduler.add(waiting)
    scheduler.schedule()
    for item in (waiting, running):
        scheduler.abort(item)
        scheduler.check_integrity()
    assert scheduler.idle


def test_every_row_of_a_prompt_can_be_asked_for_within_what_others_leave():
    scheduler = Scheduler(BlockManager(100, PAGE), max_tokens=64, max_sequences=2, max_rows=5)
    scored = sequence(0, list(range(20)), 2, prompt_logprobs=0)
    scheduler.add(scored)
    rows = []
    while not scored.generated:
        batch = scheduler.schedule()
        scored.prompt_rows += [()] * min(batch[0].rows, 19 - len(scored.prompt_rows))
        rows.append(batch[0].rows)
        assert batch[0].count == batch[0].rows
        compute(scheduler, batch)
    assert rows == [5, 5, 5, 5]
    scheduler.add(sequence(1, list(range(20)), 1))
    assert [(s.start, s.count) for s in scheduler.schedule()] == [(20, 1), (16, 4)], "what it computed is shared"


def test_rows_of_several_prompts_are_shared_out():
    scheduler = Scheduler(BlockManager(100, PAGE), max_tokens=64, max_sequences=3, max_rows=7)
    for number in range(3):
        scheduler.add(sequence(number, [number] * 20, 2, prompt_logprobs=0))
    assert [s.rows for s in scheduler.schedule()] == [5, 1, 1], "one each, and four that nobody else needs"


class Guesses:
    """A drafter whose drafts a test decides, at most what it may."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def propose(self, sequences, rooms, spare):
        drafts = []
        for at, room in enumerate(rooms):
            length = max(min(self.lengths[at % len(self.lengths)] if self.lengths else 0, room, spare), 0)
            spare -= length
            drafts.append([7] * length)
        return drafts


def test_drafts_take_rows_tokens_and_pages_that_nobody_else_wants():
    guesses = Guesses()
    scheduler = Scheduler(BlockManager(4, PAGE), max_tokens=16, max_sequences=2, max_rows=6, drafter=guesses)
    for number in range(2):
        scheduler.add(sequence(number, [number] * 6, 9))
    compute(scheduler, scheduler.schedule())
    guesses.lengths = [9]
    batch = scheduler.schedule()
    assert [(s.count, s.rows, len(s.drafts)) for s in batch] == [(2, 2, 1), (1, 1, 0)], "four rows, one position"
    assert scheduler.preemptions == 0, "nobody is preempted for a guess"


def test_a_step_with_a_prompt_verifies_nothing():
    guesses = Guesses()
    guesses.lengths = [2]
    scheduler = Scheduler(BlockManager(100, PAGE), max_tokens=16, max_sequences=4, max_rows=9, drafter=guesses)
    scheduler.add(sequence(0, [1] * 6, 9))
    compute(scheduler, scheduler.schedule())
    scheduler.add(sequence(1, [2] * 6, 9))
    batch = scheduler.schedule()
    assert [(s.count, s.drafts) for s in batch] == [(1, ()), (6, ())]
    compute(scheduler, batch)
    assert [(s.count, s.rows, s.drafts) for s in scheduler.schedule()] == 2 * [(3, 3, (7, 7))]


class SchedulingMachine(RuleBasedStateMachine):
    """Random requests, steps, failed steps, refused drafts and drops; a model of the cache's memory says what each page
    really holds, so a page that is shared, reused, published or given back wrongly shows as contents of another text,
    or as none: what nobody holds or finds is forgotten."""

    rules = steps = 0  # of all machines so far: rules carried out, and steps of the scheduler

    @initialize(windows=st.sampled_from([(0,), (0,), (0, 3), (0, 7), (1,), (6,), (0, 2, 9)]), spare=st.integers(0, 8),
                budget=st.integers(1, 12), most=st.integers(1, 5), extra=st.integers(0, 4),
                prefill=st.integers(1, 12), cache=st.booleans(), ageing=st.integers(0, 5))
    def begin(self, windows, spare, budget, most, extra, prefill, cache, ageing):
        self.guesses = Guesses()
        most = min(most, budget)
        pages = sum(min(6, most_pages(w, budget, PAGE)) if w else 6 for w in windows) + spare
        self.scheduler = Scheduler(BlockManager(pages, PAGE, cache, windows, budget), budget, most,
                                   max_prefill_tokens=prefill, max_rows=most + extra, ageing_steps=ageing,
                                   drafter=self.guesses)
        self.open: list[Sequence] = []
        # slot: the group, and the text up to and with the token that was computed there
        self.holds: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.number = 0

    @rule(stem=st.integers(0, 2), shared=st.integers(0, 12), own=st.integers(0, 6), answer=st.integers(1, 6),
          priority=st.integers(-1, 1), scored=st.booleans())
    def add(self, stem, shared, own, answer, priority, scored):
        """Prompts of at most 18 tokens that often begin alike; with their answers they fit the smallest pool."""
        SchedulingMachine.rules += 1
        self.number += 1
        tokens = [stem] * shared + [100 + self.number * 10 + i for i in range(own)] or [stem]
        item = sequence(self.number, tokens, answer, priority, **({"prompt_logprobs": 0} if scored and own > 3 else {}))
        self.scheduler.add(item)
        self.open.append(item)

    @rule(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=3), right=st.integers(0, 4),
          fails=st.sampled_from([False] * 7 + [True]))
    def step(self, lengths, right, fails):
        SchedulingMachine.rules += 1
        self.play(lengths, right, fails)

    def play(self, lengths: list[int], right: int, fails: bool) -> None:
        s = self.scheduler
        SchedulingMachine.steps += 1
        self.guesses.lengths = lengths
        decoders = {i.id for i in s.running if i.wanted - i.computed == 1}
        batch = s.schedule()
        assert bool(batch) == bool(self.open), "a step is empty only when there is nothing to do"
        assert sum(i.count for i in batch) <= s.max_tokens and sum(i.rows for i in batch) <= s.max_rows
        assert len({i.sequence.id for i in batch}) == len(batch) <= s.max_sequences
        decoding = [i for i in batch if i.sequence.id in decoders]
        assert len(decoding) == sum(i.id in decoders for i in s.running), "somebody's next token did not come"
        if decoding:
            assert sum(i.count for i in batch if i not in decoding) <= s.max_prefill_tokens
        for item in batch:
            self.write(item)
        for item in batch:
            self.read(item)
        if not fails:
            for item in batch:
                self.take(item, min(right, len(item.drafts)))

    def write(self, item: Scheduled) -> None:
        text = self.text(item)
        assert item.start == item.sequence.computed
        for group, table in enumerate(item.sequence.tables):
            for position in range(item.start, len(text)):
                self.holds[self.slot(table, position)] = group, text[: position + 1]

    def read(self, item: Scheduled) -> None:
        """What attention reads, once all of the step is written: all that the first query sees, and all behind it."""
        text = self.text(item)
        for group, table in enumerate(item.sequence.tables):
            window = self.scheduler.blocks.windows[group]
            for position in range(max(item.start - window + 1, 0) if window else 0, len(text)):
                held = self.holds.get(self.slot(table, position))
                assert held == (group, text[: position + 1]), "attention would read another text"

    def text(self, item: Scheduled) -> tuple[int, ...]:
        end = item.start + item.count
        text = (*item.sequence.tokens[: end - len(item.drafts)], *item.drafts)
        assert len(text) == end
        return text

    def slot(self, table: BlockTable, position: int) -> int:
        page = table.pages[position // PAGE]
        assert page != GONE, "a page that was given back is read or written"
        return page * PAGE + position % PAGE

    def take(self, item: Scheduled, accepted: int) -> None:
        seq = item.sequence
        if seq.wants_prompt_rows:
            first = item.start + item.count - item.rows
            assert first <= len(seq.prompt_rows), "logits of the prompt were left out"
            known = min(first + item.rows, seq.prompt_length - 1)
            seq.prompt_rows += [()] * (known - len(seq.prompt_rows))
        if item.samples:
            assert not seq.wants_prompt_rows, "an answer begins before its prompt is known"
            seq.tokens += [*item.drafts[:accepted], 50 + len(seq.tokens) % 3]
        self.scheduler.advance(seq, item.count - len(item.drafts) + accepted)
        if item.samples and seq.wanted >= seq.limit:
            self.scheduler.finish(seq)
            self.open.remove(seq)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99))
    def drop(self, which):
        SchedulingMachine.rules += 1
        self.scheduler.abort(self.open.pop(which % len(self.open)))

    @rule()
    def forget(self):
        SchedulingMachine.rules += 1
        self.scheduler.blocks.forget()

    @invariant()
    def pages_and_queues_are_whole(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            assert {s.id for s in self.open} == {s.id for s in (*self.scheduler.waiting, *self.scheduler.running)}
            held = {page for s in self.scheduler.running for table in s.tables for page in table.held}
            for page in range(self.scheduler.blocks.pages):
                known = self.scheduler.blocks.known(page)
                if known is not None:
                    group, text = self.holds[page * PAGE + PAGE - 1]
                    keys: list[bytes] = []
                    self.scheduler.blocks.extend_keys(keys, text, len(text) // PAGE)
                    assert len(text) % PAGE == 0 and known == (group, keys[-1]), "a page is known by another's key"
                elif page not in held:
                    for slot in range(page * PAGE, (page + 1) * PAGE):
                        self.holds.pop(slot, None)

    def teardown(self):
        for _ in range(10_000):
            if not getattr(self, "open", None):
                return
            self.play([1], 1, False)
        raise AssertionError("what is open does not come to an end")


TestScheduling = SchedulingMachine.TestCase
TestScheduling.settings = settings(max_examples=25, stateful_step_count=30, deadline=None,
                                   suppress_health_check=list(HealthCheck))


@pytest.mark.slow
class TestSchedulingLong(SchedulingMachine.TestCase):
    """At least fifty thousand rules, and about as many steps of the scheduler (the machine's end makes some, too)."""

    settings = settings(max_examples=620, stateful_step_count=100, deadline=None,
                        suppress_health_check=list(HealthCheck))

    def runTest(self):
        rules, steps = SchedulingMachine.rules, SchedulingMachine.steps
        super().runTest()
        rules, steps = SchedulingMachine.rules - rules, SchedulingMachine.steps - steps
        print(f"{rules} rules, {steps} steps of the scheduler")
        assert rules >= 50_000
