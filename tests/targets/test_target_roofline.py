"""The least time that a target's limits allow."""

from __future__ import annotations

import dataclasses

import pytest

from kforge.core.errors import KforgeError
from kforge.core.target import Peak, Target
from kforge.operators.base import Cost
from kforge.targets import time_limit

TARGET = Target(name="made-up", kind="cpu", vendor="v", model="m", arch="x86_64", features=(), cores=4, caches=(),
                memory_bytes=1 << 30, bandwidth=((1, Peak(10e9)), (2, Peak(18e9)), (4, Peak(20e9))),
                peaks=(("fp32_fma", Peak(400e9)), ("int8_dot", Peak(1600e9))))


def test_few_operations_a_byte_are_bound_by_memory():
    limit = time_limit(Cost(20_000_000, 1000, (("int8_dot", 80_000_000),)), TARGET)
    assert limit.bound_by == "memory" and limit.seconds == limit.memory_seconds == pytest.approx(1e-3)
    assert limit.compute_seconds == pytest.approx(50e-6) and limit.intensity == 4


def test_many_operations_a_byte_are_bound_by_the_slowest_peak():
    limit = time_limit(Cost(1000, 0, (("int8_dot", 1_600_000_000), ("fp32_fma", 800_000_000))), TARGET)
    assert limit.bound_by == "fp32_fma" and limit.seconds == pytest.approx(2e-3)


def test_threads_take_their_share_of_peaks_and_their_own_bandwidth():
    cost = Cost(9_000_000, 0, (("fp32_fma", 100_000_000),))
    assert time_limit(cost, TARGET, threads=1).memory_seconds == pytest.approx(0.9e-3)
    assert time_limit(cost, TARGET, threads=2).memory_seconds == pytest.approx(0.5e-3)
    assert time_limit(cost, TARGET, threads=1).compute_seconds == pytest.approx(1e-3)
    assert time_limit(cost, TARGET, threads=99) == time_limit(cost, TARGET)


def test_a_bandwidth_measured_just_now_replaces_the_stored_one():
    limit = time_limit(Cost(9_000_000, 0, ()), TARGET, bandwidth=9e9)
    assert limit.seconds == pytest.approx(1e-3) and limit.bandwidth == 9e9


def test_nothing_streamed_needs_no_bandwidth():
    bare = dataclasses.replace(TARGET, bandwidth=())
    limit = time_limit(Cost(0, 5000, (("fp32_fma", 400_000),)), bare)
    assert limit.seconds == pytest.approx(1e-6) and limit.intensity == float("inf")


def test_a_missing_figure_is_an_error_not_a_guess():
    with pytest.raises(KforgeError, match="made-up has no figure for bf16_dot"):
        time_limit(Cost(1, 0, (("bf16_dot", 1),)), TARGET)
    with pytest.raises(KforgeError, match="made-up has no bandwidth figure"):
        time_limit(Cost(1, 0, ()), dataclasses.replace(TARGET, bandwidth=()))
