"""Whatever the schedule, every request gets what it gets alone, to the bit (default kernels, a small model)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedules import BANK, STEPS, Arrival, Guessing, Lab, Schedule, random_schedule
from toy_model import ToyModel, gpt_oss_toy

ENGINES = 5
LONG_SECONDS = 100


@pytest.fixture(scope="module")
def lab(kernels) -> Iterator[Lab]:
    made = Lab(kernels, ENGINES)
    yield made
    made.close()


ARRIVALS = st.lists(
    st.builds(Arrival, st.integers(0, BANK - 1), st.integers(0, STEPS - 1), st.integers(0, 1),
              st.none() | st.integers(0, 19), st.none() | st.integers(1, 20)),
    min_size=1, max_size=8).map(tuple)
SCHEDULES = st.builds(Schedule, st.integers(0, ENGINES - 1), st.sampled_from(Guessing), ARRIVALS)


@given(schedule=SCHEDULES)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_schedule_changes_no_bit(lab, schedule):
    assert lab.differing(schedule) == []


def test_the_schedules_do_what_might_change_a_bit(lab):
    """Those of a fixed seed, too, and they cover what there is to cover."""
    rng = random.Random(5)
    for _ in range(20):
        assert lab.differing(random_schedule(rng, ENGINES)) == []
    seen = lab.coverage
    assert min(seen.dropped, seen.dropped_inside, seen.failed, seen.preemptions, seen.prefix_hit_tokens,
               seen.accepted, seen.draft_passes) > 0
    assert seen.drafted > seen.accepted


@pytest.mark.slow
def test_many_schedules_on_many_engines_change_no_bit(kernels):
    rng, until = random.Random(7), time.monotonic() + LONG_SECONDS
    differing, count, round_ = [], 0, 0
    while time.monotonic() < until:
        model = gpt_oss_toy() if round_ % 2 else ToyModel()
        made = Lab(kernels, 12, seed=100 + round_, model=model)
        try:
            while count < 200 * (round_ + 1) and time.monotonic() < until:
                schedule = random_schedule(rng, 12)
                differing += [(round_, schedule)] if made.differing(schedule) else []
                count += 1
        finally:
            made.close()
        round_ += 1
    print(f"{count} schedules, {len(differing)} of them differ")
    assert count >= 50, "so few in this time prove little: is the machine busy?"
    assert differing == []
