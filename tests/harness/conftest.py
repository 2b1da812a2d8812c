"""One harness for the room's tests: this machine, two of its CPUs where it has them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kforge.core.target import Target
from kforge.harness import Harness
from kforge.targets import host


@pytest.fixture(scope="session")
def target() -> Target:
    return host()


@pytest.fixture(scope="session")
def threads() -> int:
    return min(2, len(os.sched_getaffinity(0)))


@pytest.fixture(scope="session")
def harness(target: Target, threads: int) -> Iterator[Harness]:
    with Harness(target, threads) as made:
        yield made
