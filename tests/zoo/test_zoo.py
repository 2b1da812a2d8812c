"""The cheat zoo: each specimen by itself. One for each gate in the default run, all of them among the slow tests."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kforge.harness.zoo import Keeper, Kind, find
from kforge.targets import host

SPECIMENS = {s.name: s for s in find(Path(__file__).parent)}
ONE_FOR_EACH_GATE = (
    "sandbox/template_attr_filter", "sandbox/incbin_of_a_secret", "timing/thread_local_counter",
    "sandbox/hidden_fork_bomb", "sandbox/endless_loop_on_one_thread", "memory/state_in_its_code",
    "memory/scratch_of_a_terabyte", "memory/write_between_rows", "memory/input_changed_and_put_back",
    "semantics/skipped_tail_of_h", "semantics/chunks_of_128", "semantics/rare_race", "honest/online_softmax",
)


@pytest.fixture(scope="module")
def keeper() -> Iterator[Keeper]:
    made = Keeper(host(), min(2, len(os.sched_getaffinity(0))), cold=False)
    yield made
    assert made.close() == []


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in ONE_FOR_EACH_GATE else pytest.mark.slow) for name in SPECIMENS
])
def test_a_specimen_is_stopped_by_its_gate_and_leaves_nothing_behind(keeper: Keeper, name: str) -> None:
    for sighting in keeper.watch([SPECIMENS[name]], SPECIMENS.values()):
        assert sighting.as_told, sighting.sentence


def test_the_zoo_is_as_large_as_was_promised() -> None:
    kinds = Counter(s.kind for s in SPECIMENS.values())
    assert sum(kinds.values()) - kinds[Kind.HONEST] >= 80 and kinds[Kind.HONEST] >= 20
    assert set(kinds) == set(Kind)
    assert set(ONE_FOR_EACH_GATE) <= SPECIMENS.keys()


def test_names_are_unique() -> None:
    files = [p for kind in Kind for p in (Path(__file__).parent / kind).iterdir()]
    assert len(files) == len(SPECIMENS)
