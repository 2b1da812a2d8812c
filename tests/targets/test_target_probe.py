"""Measuring: every loop runs where its features are, and figures are of the right order."""

from __future__ import annotations

import dataclasses
import os

import pytest

from kforge.core.errors import KforgeError
from kforge.core.target import Cache, Peak
from kforge.targets.cpu import CpuFacts, read_cpu
from kforge.targets.probe import (
    PEAKS,
    BandwidthProbe,
    _read_bytes,
    loops_for,
    measure_bandwidth,
    measure_levels,
    measure_peak,
    probe,
    thread_counts,
)

FEATURES = read_cpu().features
LOOPS = [(peak, loop) for peak in PEAKS for loop in loops_for(peak, FEATURES)]


@pytest.mark.parametrize(("peak", "loop"), LOOPS, ids=[loop for _, loop in LOOPS])
def test_every_loop_that_this_cpu_can_run_gives_a_figure(peak, loop):
    before = os.sched_getaffinity(0)
    figure = measure_peak(peak, threads=1, seconds=0.03, loop=loop)
    assert 1e8 < figure.value < 5e12 and figure.spread >= 0
    assert figure.source == f"measured, {loop}"
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif("avx512_vnni" not in FEATURES, reason="needs AVX-512 VNNI")
def test_int8_dot_products_are_about_four_times_as_fast_as_fp32():
    # One instruction a cycle each, on lanes a quarter as wide. The best of three, since other load takes from any.
    fp32, int8 = (max(measure_peak(name, threads=1, seconds=0.1).value for _ in range(3))
                  for name in ("fp32_fma", "int8_dot"))
    assert 2 < int8 / fp32 < 6


def test_features_choose_the_loop():
    assert loops_for("int8_dot", ()) == ("int8_dot/portable",)
    assert loops_for("int8_dot", ("avx2",))[0] == "int8_dot/avx2"
    assert loops_for("int8_dot", ("avx2", "avx512f", "avx512_vnni"))[0] == "int8_dot/avx512_vnni"
    assert loops_for("bf16_dot", ("asimd", "bf16"))[0] == "bf16_dot/bf16"


def test_a_bandwidth_probe_measures_again_and_again():
    with BandwidthProbe(1) as probe:
        first, second = probe.measure(0.05), probe.measure(0.05)
    for figure in (first, second):
        assert 5e8 < figure.value < 1e12 and figure.source.startswith("measured, read/")


def test_caches_and_memory_are_measured_from_one_core():
    caches = (Cache(1, 32 << 10, 1), Cache(2, 512 << 10, 1))
    facts = CpuFacts("AMD", "small", "x86_64", FEATURES, 1, caches, 1 << 28)
    before = os.sched_getaffinity(0)
    l1, l2, memory = measure_levels(facts, Peak(5e9), seconds=0.02)
    assert (l1.name, l2.name, memory.name) == ("L1", "L2", "memory")
    assert l1.read.value > 5e9 and l1.read.source.startswith("measured, read/") and memory.read == Peak(5e9)
    assert 1e-10 < l1.latency.value < memory.latency.value < 1e-5
    assert os.sched_getaffinity(0) == before


def test_bandwidth_works_with_more_threads_than_cores():
    assert measure_bandwidth(2 * len(os.sched_getaffinity(0)), seconds=0.01).value > 5e8


def test_reads_outgrow_every_cache_in_reach():
    facts = CpuFacts("AMD", "many dies", "x86_64", (), 96, (Cache(2, 1 << 20, 1), Cache(3, 32 << 20, 8)), 1 << 40)
    assert _read_bytes(facts, 1) == 256 << 20
    assert _read_bytes(facts, 96) == 4 * 12 * (32 << 20)
    assert _read_bytes(dataclasses.replace(facts, memory_bytes=1 << 30), 96) == 1 << 27


def test_unknown_peaks_and_loops_are_refused():
    with pytest.raises(KforgeError, match="unknown peak 'fp64'"):
        measure_peak("fp64")
    with pytest.raises(KforgeError, match="no native loop 'int8_dot/none'"):
        measure_peak("int8_dot", loop="int8_dot/none")


@pytest.mark.slow
def test_a_probe_measures_everything():
    target = probe()
    assert [n for n, _ in target.bandwidth] == list(thread_counts(target.cores))
    assert [name for name, _ in target.peaks] == list(PEAKS)
    assert target.compilers and target.memory_bytes > 1 << 30
    assert [level.name for level in target.levels] == [*(f"L{cache.level}" for cache in target.caches), "memory"]


@pytest.mark.parametrize(("cores", "counts"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 3, 4, 6)),
                                               (64, (1, 2, 3, 4, 8, 16, 32, 64)),
                                               (96, (1, 2, 3, 4, 8, 16, 32, 64, 96))])
def test_thread_counts_end_at_all_cores(cores, counts):
    assert thread_counts(cores) == counts
