"""The draft model's cache holds what the sequences said, whatever becomes of guesses, pages and steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from toy_model import CONFIG, ToyModel

from kforge.core.errors import KforgeError
from kforge.engine.draft_model import DraftModel, ModelDrafter
from kforge.engine.request import SamplingParams, Sequence
from kforge.engine.steps import StepInputs, StepLimits, StepShape

PAGE, CONTEXT = 4, 40


class Remembering:
    """A runner whose cache remembers which text each slot was computed for, and whose model's next token is a function
    of the whole text: a wrong slot anywhere changes every guess after it."""

    isolated = False

    def __init__(self, limits: StepLimits) -> None:
        self.inputs = StepInputs(limits, np.zeros)
        self.greedy = np.zeros(limits.max_sequences, np.int32)
        self.logits = np.zeros((limits.max_sequences, 1), np.float32)
        self.holds: dict[int, tuple[int, ...]] = {}
        self.tokens = 0
        self.fails = False

    def run(self, shape: StepShape) -> None:
        assert shape.tokens <= self.inputs.limits.max_tokens and shape.sequences <= self.inputs.limits.max_sequences
        if self.fails:
            raise KforgeError("the draft model failed")
        i, ends = self.inputs, {}
        for at in range(shape.sequences):
            first, stop, context = int(i.query_start[at]), int(i.query_start[at + 1]), int(i.context[at])
            assert i.positions[first:stop].tolist() == list(range(context - stop + first, context))
            text: tuple[int, ...] = ()
            for position in range(context):
                slot = int(i.block_table[at, position // PAGE]) * PAGE + position % PAGE
                if position < context - stop + first:
                    held = self.holds[slot]
                    assert held[:-1] == text, "attention would read another text"
                    text = held
                else:
                    token = first + position - (context - stop + first)
                    assert slot == i.slots[token]
                    text = self.holds[slot] = (*text, int(i.ids[token]))
                    ends[token] = text
        for row in range(shape.rows):
            self.greedy[row] = following(ends[int(i.index[row])])
        self.tokens += shape.tokens

    def kernels_used(self):
        return []

    def close(self) -> None:
        pass


def following(text: tuple[int, ...]) -> int:
    return hash(text) % 50 + 1


def guesses(tokens: list[int], count: int) -> list[int]:
    text = tuple(tokens)
    for _ in range(count):
        text = (*text, following(text))
    return list(text[len(tokens) :])


class Told:
    """A policy that a test decides for; each sequence in turn."""

    def __init__(self) -> None:
        self.wanted = [0]

    def lengths(self, rates, offered, spare, price=None):
        lengths = []
        for at, offer in enumerate(offered):
            lengths.append(min(self.wanted[at % len(self.wanted)], offer, spare))
            spare -= lengths[-1]
        return lengths

    def passed(self, sequences, tokens, seconds, guessing=0.0):
        pass


def make(pages: int, budget: int, most: int, catch_up: int,
         cache: bool = True) -> tuple[ModelDrafter, Remembering, Told]:
    policy, limits = Told(), StepLimits(budget, most, pages, PAGE, min(CONTEXT, pages * PAGE))
    runner = Remembering(limits)
    asked = DraftModel(ToyModel(), policy=policy)
    drafter = ModelDrafter(asked, runner, limits, vocab=CONFIG.vocab, stop_ids=frozenset({0}), catch_up=catch_up,
                           prefix_cache=cache)
    return drafter, runner, policy


def sequence(number: int, tokens: list[int], limit: int = CONTEXT) -> Sequence:
    return Sequence(number, list(tokens), len(tokens), SamplingParams(), limit)


class DraftMachine(RuleBasedStateMachine):
    """Sequences come, decode or wait, say what was guessed or something else, and go; passes fail. What is guessed must
    at all times be what the model makes of the sequence's own text."""

    @initialize(pages=st.integers(10, 13), most=st.integers(1, 4), budget=st.integers(4, 40),
                catch_up=st.integers(1, 40), cache=st.booleans())
    def begin(self, pages, most, budget, catch_up, cache):
        self.drafter, self.runner, self.policy = make(pages, budget, most, catch_up, cache)
        self.most = most
        self.open: list[Sequence] = []
        self.number = 0

    @rule(stem=st.integers(1, 2), shared=st.integers(0, 25), own=st.integers(0, 5))
    def add(self, stem, shared, own):
        self.number += 1
        tokens = [stem] * shared + [100 + (self.number * 7 + i) % 200 for i in range(own)] or [stem]
        self.open.append(sequence(self.number, tokens))

    @precondition(lambda self: self.open)
    @rule(first=st.integers(0, 9), times=st.integers(1, 4),
          lengths=st.lists(st.sampled_from([3, 2, 6, 0]), min_size=1, max_size=4),
          right=st.lists(st.integers(0, 6), min_size=4, max_size=4), spare=st.integers(4, 20),
          fails=st.sampled_from([False] * 7 + [True]))
    def steps(self, first, times, lengths, right, spare, fails):
        """Some decode, the others wait or have lost their pages; of the guesses some are right. A step that fails says
        nothing."""
        self.policy.wanted = lengths
        for time in range(times):
            decoding = [self.open[(first + n) % len(self.open)] for n in range(min(self.most, len(self.open)))]
            rooms = [s.limit - len(s.tokens) - 1 for s in decoding]
            self.runner.fails = fails and time == 1
            try:
                drafts = self.drafter.propose(decoding, rooms, spare)
            except KforgeError:
                continue
            finally:
                self.runner.fails = False
            assert sum(map(len, drafts)) <= spare
            for s, draft, room, accepted in zip(decoding, drafts, rooms, right, strict=False):
                assert draft == guesses(s.tokens, len(draft)) and len(draft) <= max(room, 0)
                produced = min(accepted, len(draft))
                s.tokens += [*draft[:produced], 60 + len(s.tokens) % 3]
                self.drafter.learn(s, produced + 1)
                if len(s.tokens) >= s.limit:
                    self.leave(s)
            self.drafter.cache.check_integrity()
            if not self.open:
                break

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), right=st.integers(0, 3), count=st.integers(1, 6))
    def tokens_come_without_being_asked_for(self, which, right, count):
        """As in steps with somebody's prompt: some are what would have been guessed, the rest is not."""
        s = self.open[which % len(self.open)]
        said = guesses(s.tokens, right) + [60 + n % 3 for n in range(count)]
        s.tokens += said[: max(s.limit - len(s.tokens) - 1, 0)]

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99))
    def drop(self, which):
        self.leave(self.open[which % len(self.open)])

    @rule()
    def forget(self):
        self.drafter.cache.blocks.forget()

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99))
    def whoever_goes_on_asking_is_guessed_for(self, which):
        """Alone and in as many steps as its text takes, whoever holds the pages."""
        s = self.open[which % len(self.open)]
        room = s.limit - len(s.tokens) - 1
        self.policy.wanted = [2]
        for _ in range(len(s.tokens) + 1):
            [draft] = self.drafter.propose([s], [room], 9)
            if draft:
                break
        assert draft == guesses(s.tokens, min(2, max(room, 0)))

    def leave(self, gone: Sequence) -> None:
        self.open.remove(gone)
        self.drafter.drop(gone.id)

    @invariant()
    def pages_are_whole(self):
        if hasattr(self, "drafter"):
            self.drafter.cache.check_integrity()
            if not self.open:
                assert self.drafter.cache.blocks.free_pages == self.drafter.cache.blocks.pages


TestDraftCache = DraftMachine.TestCase
TestDraftCache.settings = settings(max_examples=50, stateful_step_count=30, deadline=None,
                                   suppress_health_check=list(HealthCheck))


@pytest.mark.slow
class TestDraftCacheLong(DraftMachine.TestCase):
    """Twenty thousand rules in all."""

    settings = settings(max_examples=250, stateful_step_count=80, deadline=None,
                        suppress_health_check=list(HealthCheck))


def test_what_was_accepted_is_not_computed_again():
    drafter, runner, policy = make(pages=20, budget=64, most=2, catch_up=64)
    s = sequence(1, [5, 6, 7])
    policy.wanted = [4]
    [draft] = drafter.propose([s], [20], 9)
    assert runner.tokens == 3 + 3, "the text, and three of four guesses"
    s.tokens += [*draft, 60]
    drafter.propose([s], [20], 9)
    assert runner.tokens == 6 + 2 + 3, "the last guess, the token after it, and three of four guesses"
    s.tokens.append(61)
    drafter.propose([s], [20], 9)
    assert runner.tokens == 11 + 1 + 3, "all were refused"


def test_a_long_text_is_caught_up_with_in_chunks_beside_others_who_do_not_wait():
    drafter, runner, policy = make(pages=40, budget=64, most=2, catch_up=8)
    short, long = sequence(1, [5, 6]), sequence(2, [9] * 30)
    policy.wanted = [3]
    steps = []
    for _ in range(5):
        before = runner.tokens
        drafts = drafter.propose([long, short], [9, 9], 9)
        steps.append((len(drafts[0]), len(drafts[1])))
        assert runner.tokens - before <= 8 + 2 * 2
        short.tokens.append(60)
    assert steps == [(0, 3)] * 4 + [(3, 3)], "30 tokens at 8 a step, less what the other one needs"


def test_a_prompt_that_begins_alike_is_not_computed_again():
    drafter, runner, policy = make(pages=40, budget=64, most=2, catch_up=64)
    policy.wanted = [1]
    drafter.propose([sequence(1, [7] * 18)], [9], 9)
    drafter.drop(1)
    drafter.propose([sequence(2, [7] * 18 + [8])], [9], 9)
    assert runner.tokens == 18 + 3, "four full pages of four were found"


def test_who_waits_keeps_its_pages_until_they_are_needed():
    drafter, runner, policy = make(pages=10, budget=64, most=2, catch_up=64, cache=False)
    policy.wanted = [1]
    waits, decodes = sequence(1, [7] * 18), sequence(2, [8] * 18)
    for s in (waits, decodes, waits):
        drafter.propose([s], [9], 9)
        s.tokens.append(60)
    assert runner.tokens == 18 + 18 + 1
    decodes.tokens += [61] * 4
    drafter.propose([decodes], [9], 9)
    drafter.propose([waits], [9], 9)
    assert runner.tokens == 37 + 5 + 20, "of ten pages the other one needed a sixth: the one that waited begins again"


def test_a_place_in_the_step_forgets_the_pages_that_were_given_back():
    drafter, _, policy = make(pages=10, budget=64, most=2, catch_up=64, cache=False)
    policy.wanted = [2]
    loses, grows, other = sequence(1, [7] * 10), sequence(2, [8] * 9), sequence(3, [9] * 3)
    drafter.propose([grows, loses], [9, 9], 9)
    grows.tokens += [61] * 21
    drafter.propose([grows], [9], 9)
    drafter.drop(grows.id)
    for _ in range(3):
        assert drafter.propose([other, loses], [9, 9], 9) == [guesses(other.tokens, 2), guesses(loses.tokens, 2)]
        for s in (other, loses):
            s.tokens.append(62)


def test_what_the_draft_model_has_no_place_for_is_not_guessed():
    drafter, _, policy = make(pages=40, budget=64, most=1, catch_up=64)
    policy.wanted = [8]
    lengths = [len(drafter.propose([sequence(n, [7] * n, limit=99)], [50], 9)[0]) for n in (38, 39, 40, 41, 42)]
    assert lengths == [3, 2, 1, 0, 0], "position 39 is its last, and the last guess need not be computed"


def test_tokens_that_the_draft_model_does_not_know_are_not_fed_to_it():
    drafter, _, policy = make(pages=40, budget=64, most=1, catch_up=64)
    policy.wanted = [2]
    s = sequence(1, [CONFIG.vocab - 1, 3])
    assert len(drafter.propose([s], [9], 9)[0]) == 2
    s.tokens.append(CONFIG.vocab)
    assert drafter.propose([s], [9], 9) == [[]]
