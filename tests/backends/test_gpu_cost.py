"""The static cost model: what it derives from limits, and that it orders what must be ordered."""

from __future__ import annotations

import dataclasses

import pytest

from kforge.backends.gpu.binary import DeviceBinary, Entry
from kforge.backends.gpu.cost import LATENCY, START, report, residency
from kforge.core.errors import KforgeError
from kforge.core.launch import Launch
from kforge.core.target import Target
from kforge.core.workload import Problem, Workload
from kforge.targets import load_target

H200 = load_target("nvidia-h200")
GEMM = Problem.of("linear", K=4096, N=4096, weight="bf16", act="f32", epilogue="none", bias=0, rows=16)


def entry(**changes: object) -> Entry:
    resources = {"registers": 64, "spill_bytes": 0, "static_shared_bytes": 0, "loop_instructions": 100,
                 "loop_load_bytes": 64, "has_loop": 1, "stages": 3}
    resources |= {name: changes.pop(name) for name in list(changes) if name in resources}
    mix = (("load_global", 4), ("mma_bf16", 8), ("integer", 88))
    made = Entry("product", "cubin", (8,), 4, 32, 0, tuple(resources.items()), mix, b"")
    return dataclasses.replace(made, **changes)


def predicted(entries: Entry, grid: tuple[str, ...], m: int = 16, target: Target = H200):
    binary = DeviceBinary(target.arch, "test", (entries,), (Launch("product", grid, ()),))
    return report(binary, Workload.of(GEMM, M=m), target)


@pytest.mark.parametrize(("changes", "groups", "limit"), [
    ({}, 8, "registers"),  # 65536 / (64 * 128)
    ({"registers": 32}, 16, "warps"),  # 64 / 4
    ({"registers": 33}, 12, "registers"),  # rounded up to 40: 65536 / (40 * 128)
    ({"registers": 255}, 2, "registers"),
    ({"shared_bytes": 100_000, "static_shared_bytes": 1024}, 2, "shared memory"),
    ({"warps": 1, "registers": 16}, 32, "groups"),
], ids=range(6))
def test_residency_is_the_least_of_all_limits(changes: dict, groups: int, limit: str) -> None:
    found = residency(entry(**changes), H200)
    assert (found.groups, found.limit) == (groups, limit)
    assert found.occupancy == groups * changes.get("warps", 4) / 64


def test_time_is_never_below_the_roofline_nor_the_start() -> None:
    found = predicted(entry(), ("1056",))
    moved = 2 * 4096 * 4096
    assert found.seconds >= START + moved / H200.best_bandwidth()
    assert found.bound in ("memory", "memory latency")
    assert predicted(entry(), ("0",)).seconds == 0


def test_too_few_bytes_under_way_cost_bandwidth() -> None:
    needed = H200.best_bandwidth() * LATENCY / H200.cores  # bytes of each unit
    few, many = predicted(entry(loop_load_bytes=4), ("132",)), predicted(entry(loop_load_bytes=64), ("1056",))
    assert 4 * 128 < needed < 64 * 128 * 8
    assert few.bound == "memory latency" and few.seconds > 3 * many.seconds


def test_a_last_wave_of_one_group_costs_a_whole_wave() -> None:
    places = 132 * 8
    full, more = predicted(entry(), (str(places),)), predicted(entry(), (str(places + 1),))
    assert dict(full.resources)["waves"] == 1 and dict(more.resources)["waves"] == 2
    assert more.seconds - START == pytest.approx(2 * places / (places + 1) * (full.seconds - START))


def test_many_instructions_for_each_byte_are_the_limit() -> None:
    slow = predicted(entry(loop_instructions=4000), ("1056",))
    assert slow.bound == "issue"
    assert slow.seconds > 2 * predicted(entry(), ("1056",)).seconds


def test_matrices_bound_large_products_by_the_peak_of_their_type() -> None:
    large = predicted(entry(), ("4096",), m=8192)
    assert large.bound == "bf16 matrices"
    flops = 2 * 8192 * 4096 * 4096
    assert large.seconds >= flops / 989.4e12
    scalar = predicted(entry(mix=(("load_global", 4), ("float", 96))), ("4096",), m=8192)
    assert scalar.bound == "float32" and scalar.seconds > 5 * large.seconds


def test_a_report_says_what_is_assumed_and_what_is_not_known() -> None:
    found = predicted(entry(spill_bytes=64), ("132",))
    assert any("assumed" in note for note in found.notes) and any("spills 64 bytes" in note for note in found.notes)


def test_stages_that_fit_are_told() -> None:
    found = dict(predicted(entry(shared_bytes=60_000), ("132",)).resources)
    assert found["stages"] == 3 and found["stages_that_fit"] == 232448 * 3 // 60_000


def test_without_a_clock_instructions_are_not_timed_and_the_report_says_so() -> None:
    b200 = load_target("nvidia-b200")
    assert b200.gpu is not None and b200.gpu.clock_hz is None
    found = predicted(entry(loop_instructions=4000), ("1184",), target=b200)
    assert found.bound != "issue" and any("clock of nvidia-b200" in note for note in found.notes)


def test_without_limits_there_is_no_prediction() -> None:
    assert H200.gpu is not None
    bare = dataclasses.replace(H200, gpu=dataclasses.replace(H200.gpu, registers_per_unit=None))
    with pytest.raises(KforgeError, match=r"nvidia-h200 does not say gpu.registers_per_unit"):
        predicted(entry(), ("132",), target=bare)
    with pytest.raises(KforgeError, match="is no GPU"):
        predicted(entry(), ("132",), target=load_target("zen4"))
