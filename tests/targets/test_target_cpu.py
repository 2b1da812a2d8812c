"""Reading /proc and /sys of machines unlike this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kforge.core.errors import KforgeError
from kforge.core.target import Cache
from kforge.targets.cpu import read_cpu

INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R)  Xeon(R) Platinum 8480+
flags\t\t: fpu vme sse2 avx2 fma avx512f avx512_vnni hypervisor amx_tile ssbd

processor\t: 1
vendor_id\t: GenuineIntel
model name\t: another
flags\t\t: none
"""
GRACE = """processor\t: 0
BogoMIPS\t: 2000.00
Features\t: fp asimd evtstrm asimddp sve sve2 i8mm bf16 paca
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd4f
"""


def machine(root: Path, cpuinfo: str, siblings: list[str]) -> Path:
    """A tree with one CPU per entry of ``siblings``, an L1 per core and an L3 for all."""
    (root / "proc").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(cpuinfo)
    (root / "proc/meminfo").write_text("MemTotal:       16384 kB\nMemFree: 1 kB\n")
    for cpu, sharing in enumerate(siblings):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}"
        everybody = f"0-{len(siblings) - 1}"
        for index, fields in enumerate([("1", "Data", "48K", sharing), ("1", "Instruction", "32K", sharing),
                                        ("3", "Unified", "105M", everybody)]):
            cache = folder / f"cache/index{index}"
            cache.mkdir(parents=True)
            for name, value in zip(("level", "type", "size", "shared_cpu_list"), fields, strict=True):
                (cache / name).write_text(value + "\n")
            (cache / "coherency_line_size").write_text("64\n")
        (folder / "topology").mkdir()
        (folder / "topology/thread_siblings_list").write_text(sharing + "\n")
    return root


def test_hardware_threads_are_not_cores(tmp_path):
    facts = read_cpu(machine(tmp_path, INTEL, ["0,4", "1,5", "2,6", "3,7"] * 2))
    assert facts.cores == 4
    assert facts.caches == (Cache(1, 48 << 10, 1), Cache(3, 105 << 20, 4))
    assert (facts.vendor, facts.model, facts.arch) == ("Intel", "Intel(R) Xeon(R) Platinum 8480+", "x86_64")
    # Sorted, and only what a kernel can use.
    assert facts.features == ("amx_tile", "avx2", "avx512_vnni", "avx512f", "fma", "sse2")
    assert facts.memory_bytes == 16 << 20


def test_a_machine_can_be_taken_for_one_of_a_lesser_kind(tmp_path, monkeypatch):
    monkeypatch.setenv("KFORGE_WITHOUT", "avx512, amx")
    assert read_cpu(machine(tmp_path / "less", INTEL, ["0,4"])).features == ("avx2", "fma", "sse2")
    monkeypatch.setenv("KFORGE_WITHOUT", "")
    assert "avx512f" in read_cpu(machine(tmp_path / "whole", INTEL, ["0,4"])).features


def test_arm_parts_have_names(tmp_path):
    facts = read_cpu(machine(tmp_path, GRACE, ["0", "1"]))
    assert (facts.vendor, facts.model, facts.arch, facts.cores) == ("Arm", "Neoverse V2", "aarch64", 2)
    assert facts.features == ("asimd", "asimddp", "bf16", "fp", "i8mm", "sve", "sve2")


def test_control_groups_limit_cores_and_memory(tmp_path):
    root = machine(tmp_path, INTEL, ["0", "1", "2", "3"])
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("250000 100000\n")
    (group / "memory.max").write_text(f"{8 << 20}\n")
    facts = read_cpu(root)
    assert facts.cores == 2 and facts.memory_bytes == 8 << 20
    (group / "cpu.max").write_text("max 100000\n")
    (group / "memory.max").write_text("max\n")
    facts = read_cpu(root)
    assert facts.cores == 4 and facts.memory_bytes == 16 << 20


def test_a_machine_without_topology_still_has_its_cores(tmp_path):
    root = machine(tmp_path, GRACE, ["0", "1"])
    for file in root.glob("sys/devices/system/cpu/cpu*/topology/*"):
        file.unlink()
    assert read_cpu(root).cores == 2


def test_no_proc_is_one_clear_sentence(tmp_path):
    with pytest.raises(KforgeError, match=r"cpuinfo.*needs Linux"):
        read_cpu(tmp_path)
