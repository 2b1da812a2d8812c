"""Target files of GPUs and other accelerators: what is shipped, what is refused, and how a device is recognised."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from kforge.core.errors import KforgeError
from kforge.core.paths import shipped
from kforge.core.target import Target
from kforge.targets import list_targets, load_target, save_target, target_of_device, time_limit
from kforge.targets.gpu import GPU_FEATURES

CHIPS = ("amd-mi300x", "amd-mi325x", "amd-mi355x", "aws-trainium2", "intel-arc-b580", "intel-gaudi3", "nvidia-b200",
         "nvidia-h100", "nvidia-h200", "nvidia-rtx-pro-6000")
# Wider types never have the higher peak; each list is one kind of unit.
NARROWING = (("fp32_dot", "tf32_dot", "bf16_dot", "fp8_dot", "fp4_dot"), ("bf16_dot", "int8_dot"),
             ("fp16_dot", "fp8_dot"), ("fp32_fma", "fp16_fma"), ("fp32_fma", "fp32_dot"), ("fp16_fma", "fp16_dot"))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def chips() -> list[Target]:
    return [load_target(name) for name in CHIPS]


def test_every_shipped_file_of_another_kind_than_a_cpu_is_tested_here():
    kinds = {name: load_target(name).kind for name in list_targets()}
    assert sorted(CHIPS) == sorted(name for name, kind in kinds.items() if kind != "cpu")


@pytest.mark.parametrize("name", CHIPS)
def test_every_figure_names_its_source(name):
    target = load_target(name)
    gpu = target.gpu
    assert gpu is not None and target.name == name
    sourced = dict(gpu.sources)
    figures = [f.name for f in dataclasses.fields(gpu) if isinstance(getattr(gpu, f.name), int)]
    assert {"cores", "memory_bytes", "caches", *figures} == set(sourced)
    told = [*sourced.values(), *(p.source for _, p in (*target.bandwidth, *target.peaks)),
            *(link.bandwidth.source for link in gpu.links)]
    assert all(len(source) > 20 and "measured" not in source for source in told)


@pytest.mark.parametrize("name", CHIPS)
def test_bandwidth_and_peaks_are_plausible(name):
    target = load_target(name)
    assert set(target.features) <= GPU_FEATURES
    # Reading all of its memory once takes 15 to 60 ms on all of these: bytes and bytes/s belong together.
    assert 0.015 < target.memory_bytes / target.best_bandwidth() < 0.06
    # Operations per byte at which the widest matrix peak and memory balance.
    assert 50 < target.peak("bf16_dot") / target.best_bandwidth() < 700
    for widths in NARROWING:
        known = [target.peak(name) for name in widths if target.peak(name)]
        assert known == sorted(known), widths
    assert all(value.spread == 0 for _, value in target.peaks)
    assert all(1 <= cache.shared_by <= target.cores for cache in target.caches)
    assert [cache.level for cache in target.caches] == sorted(cache.level for cache in target.caches)
    assert target.llc_bytes < target.memory_bytes / 200


@pytest.mark.parametrize("name", CHIPS)
def test_limits_of_a_unit_fit_one_another(name):
    gpu = load_target(name).gpu
    assert gpu is not None
    if gpu.threads_per_unit is not None:
        assert gpu.warp and gpu.warps_per_unit and gpu.blocks_per_unit and gpu.threads_per_block
        assert gpu.threads_per_unit == gpu.warps_per_unit * gpu.warp
        assert gpu.threads_per_block % gpu.warp == 0 and gpu.threads_per_block <= gpu.threads_per_unit
        assert gpu.blocks_per_unit <= gpu.warps_per_unit
    if gpu.registers_per_unit is not None:
        assert gpu.warp and gpu.threads_per_unit and gpu.register_granularity and gpu.registers_per_thread
        assert gpu.registers_per_unit % (gpu.warp * gpu.register_granularity) == 0
        # A unit that is full of threads leaves each at least one step of registers, and 32 on all of these.
        assert gpu.registers_per_unit // gpu.threads_per_unit >= max(32, gpu.register_granularity)
        assert gpu.registers_per_thread * gpu.warp <= gpu.registers_per_unit
    if gpu.shared_per_block is not None:
        assert gpu.shared_per_unit and gpu.shared_per_block <= gpu.shared_per_unit


@pytest.mark.parametrize("target", [t for t in map(load_target, CHIPS) if t.gpu and t.gpu.clock_hz],
                         ids=lambda target: target.name)
def test_vector_peaks_are_units_times_clock(target):
    """All of these have 32-bit multiply-adds of 128 lanes a unit and cycle (AMD's by issuing two at once)."""
    lanes = target.peak("fp32_fma") / (2 * target.cores * target.gpu.clock_hz)
    assert lanes == pytest.approx(128, rel=0.01)  # data sheets round to three or four digits


def test_chips_are_told_apart_and_survive_their_files(home):
    known = chips()
    assert len({t.identity for t in known}) == len(CHIPS)
    assert len({t.gpu.pci_id for t in known if t.gpu}) == len(CHIPS)
    for target in known:
        mine = dataclasses.replace(target, name=f"my-{target.name}")
        assert load_target(save_target(mine)) == mine


def test_identity_is_the_board_and_what_kernels_may_use():
    target = load_target("nvidia-h200")
    assert target.gpu
    renamed = dataclasses.replace(target, gpu=dataclasses.replace(target.gpu, devices=("NVIDIA H200", "H200")))
    assert renamed.identity == target.identity  # one more name of the same board loses no kernels
    other = dataclasses.replace(target.gpu, pci_id="10de:2330")
    for changed in (dataclasses.replace(target, gpu=other), dataclasses.replace(target, cores=114),
                    dataclasses.replace(target, features=("mma",))):
        assert changed.identity != target.identity


def test_a_device_is_recognised_by_its_whole_name_or_pci_id():
    for target in chips():
        assert target.gpu
        for name in (*target.gpu.devices, target.gpu.pci_id, target.gpu.pci_id.upper()):
            assert target_of_device(name).name == target.name
    assert target_of_device("NVIDIA H200", 132).name == "nvidia-h200"


@pytest.mark.parametrize("device", ["NVIDIA H200 NVL", "NVIDIA H100", "H200", "nvidia h200", "", "Radeon", "10de:ffff"])
def test_an_unknown_device_is_asked_about_never_assumed(device):
    with pytest.raises(KforgeError, match=re.escape(f"no target describes the device {device!r}: write a target file")):
        target_of_device(device)


def test_a_part_of_a_device_is_another_target():
    with pytest.raises(KforgeError, match="has 16 units, target nvidia-h200 132: a part of a device"):
        target_of_device("NVIDIA H200", 16)


def test_a_device_that_two_files_name_is_asked_about():
    save_target(dataclasses.replace(load_target("nvidia-h200"), name="mine"))
    with pytest.raises(KforgeError, match="named by several targets: mine, nvidia-h200"):
        target_of_device("NVIDIA H200")


def test_a_roofline_uses_the_matrix_peaks_and_refuses_what_is_not_known():
    from kforge.operators.base import Cost

    h200, gaudi = load_target("nvidia-h200"), load_target("intel-gaudi3")
    limit = time_limit(Cost(4_800_000, 0, (("int8_dot", 1978.9e6),)), h200)
    assert limit.memory_seconds == pytest.approx(1e-6) and limit.compute_seconds == pytest.approx(1e-6)
    with pytest.raises(KforgeError, match="intel-gaudi3 has no figure for fp32_fma"):
        time_limit(Cost(1, 0, (("fp32_fma", 1),)), gaudi)


BROKEN = {
    "field gpu.warp must be a positive integer, not 0": ("warp = 32", "warp = 0"),
    "field gpu.pci_id is missing": ('pci_id = "10de:2335"', ""),
    "field gpu.devices must be a list of texts": ('devices = ["NVIDIA H200"]', "devices = [1]"),
    "unknown field gpu.wrap": ("warp = 32", "wrap = 32"),
    "field gpu.sources.power_watts is missing": ("\npower_watts = \"", "\n# power_watts = \""),
    "unknown field gpu.sources.clock_hz": ("clock_hz = 1980000000", ""),
    "field gpu.links\\[0\\].value must be a positive number": ("value = 900e9", "value = 0"),
}


@pytest.mark.parametrize(("message", "change"), BROKEN.items(), ids=range(len(BROKEN)))
def test_a_broken_file_of_a_gpu_is_named_with_its_field(tmp_path, message, change):
    text = (shipped("targets") / "nvidia-h200.toml").read_text()
    path = tmp_path / "broken.toml"
    path.write_text(text.replace(*change))
    assert path.read_text() != text
    with pytest.raises(KforgeError, match=f"broken.toml: {message}"):
        load_target(path)


def test_a_gpu_without_its_table_is_refused(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text((shipped("targets") / "zen4.toml").read_text().replace('kind = "cpu"', 'kind = "gpu"'))
    with pytest.raises(KforgeError, match=r"broken\.toml: field gpu is missing"):
        load_target(path)


def test_a_cpu_has_no_gpu_table(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text((shipped("targets") / "zen4.toml").read_text() + "[gpu]\nwarp = 32\n")
    with pytest.raises(KforgeError, match="unknown field gpu"):
        load_target(path)
