"""Honest kernels stay below half of the bound, and every mistake of ``bench/mistakes.py`` is caught in every check.

``bench/checker.py`` measures the same with more checks.
"""

from __future__ import annotations

import pytest

from bench.checker import tallies
from bench.mistakes import subjects

CHECKS = 2
SUBJECTS = subjects()
# The output's own rounding is granted in full, and nothing else is done to a value that goes into a bf16 cache; a silu
# below float32's range may be zero.
IN_FULL = ("rope_kv_write, bf16", "silu_mul")


@pytest.mark.parametrize("name", SUBJECTS)
def test_honest_kernels_have_room_and_mistakes_are_caught(name: str) -> None:
    subject = SUBJECTS[name]
    found = tallies(name, subject, CHECKS)
    for label in subject.honest:
        assert found[label].refused == 0 and found[label].worst <= (1 if name in IN_FULL else 0.5), label
    assert not [label for label in subject.wrong if found[label].refused < CHECKS]
