"""What the operating system says of this machine's CPU. Linux: /proc and /sys."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kforge.core.errors import KforgeError
from kforge.core.target import Cache

# Features that a kernel may use, as Linux spells them. Others (virtualisation, mitigations, clocks) come and go with
# the system's version and must not change a target's identity.
KERNEL_FEATURES = frozenset((
    "sse", "sse2", "pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "lahf_lm", "abm", "movbe", "bmi1", "bmi2",
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx_vnni_int8", "avx_ifma", "avx_ne_convert", "gfni", "vaes",
    "vpclmulqdq", "avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl", "avx512ifma", "avx512vbmi",
    "avx512_vbmi2", "avx512_vnni", "avx512_bitalg", "avx512_vpopcntdq", "avx512_bf16", "avx512_fp16",
    "avx512_vp2intersect", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
    "fp", "asimd", "fphp", "asimdhp", "asimdrdm", "asimddp", "asimdfhm", "atomics", "bf16", "i8mm", "sve", "sve2",
    "svei8mm", "svebf16", "sme", "sme2",
))

_VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel", "HygonGenuine": "Hygon", "0x41": "Arm", "0x48": "HiSilicon",
            "0x4e": "NVIDIA", "0x51": "Qualcomm", "0x61": "Apple", "0xc0": "Ampere"}
_ARM_PARTS = {"0xd0c": "Neoverse N1", "0xd40": "Neoverse V1", "0xd49": "Neoverse N2", "0xd4f": "Neoverse V2",
              "0xd84": "Neoverse V3", "0xd8e": "Neoverse N3", "0xd0b": "Cortex-A76", "0xd08": "Cortex-A72"}


@dataclass(frozen=True)
class CpuFacts:
    """Read, not measured."""

    vendor: str
    model: str
    arch: str
    features: tuple[str, ...]
    cores: int  # physical cores that this process may use
    caches: tuple[Cache, ...]
    memory_bytes: int


def read_cpu(root: Path = Path("/")) -> CpuFacts:
    """This machine, or the one whose /proc and /sys are below ``root``. Raises KforgeError outside Linux.

    Without the features that begin with one of the words in ``$KFORGE_WITHOUT`` (``avx512,avx_vnni``): a machine of a
    lesser kind, whose kernels can be tuned, timed and served here.
    """
    info = _cpuinfo(root)
    cpus = sorted(os.sched_getaffinity(0)) if root == Path("/") else _listed_cpus(root)
    implementer = info.get("vendor_id") or info.get("CPU implementer", "")
    model = info.get("model name") or _ARM_PARTS.get(info.get("CPU part", "")) or f"part {info.get('CPU part', '?')}"
    flags = (info.get("flags") or info.get("Features") or "").split()
    without = tuple(filter(None, re.split(r"[,\s]+", os.environ.get("KFORGE_WITHOUT", ""))))
    features = tuple(sorted(f for f in KERNEL_FEATURES & set(flags) if not f.startswith(without)))
    arch = "x86_64" if "flags" in info else "aarch64" if "Features" in info else platform.machine()
    return CpuFacts(vendor=_VENDORS.get(implementer, implementer or "unknown"), model=" ".join(model.split()),
                    arch=arch, features=features, cores=_cores(root, cpus),
                    caches=_caches(root, cpus), memory_bytes=_memory(root))


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's fields."""
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError as error:
        raise KforgeError(f"cannot read {root / 'proc/cpuinfo'} ({error.strerror}): kforge needs Linux") from error
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _listed_cpus(root: Path) -> list[int]:
    return sorted(int(path.name[3:]) for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*"))


def _cores(root: Path, cpus: Iterable[int]) -> int:
    """Physical cores among these CPUs, at most what the control group allows."""
    folder = root / "sys/devices/system/cpu"
    siblings = {_read(folder / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus}
    quota, _, period = (_read(root / "sys/fs/cgroup/cpu.max") or "max").partition(" ")
    allowed = max(1, int(quota) // int(period)) if quota.isdigit() and period.isdigit() else len(siblings)
    return min(len(siblings), allowed)


def _caches(root: Path, cpus: Iterable[int]) -> tuple[Cache, ...]:
    """Data and unified caches of the first usable CPU, inner ones first."""
    cpus = list(cpus)
    caches = []
    for folder in sorted((root / f"sys/devices/system/cpu/cpu{cpus[0]}/cache").glob("index[0-9]*")):
        size = _read(folder / "size")
        if _read(folder / "type") not in {"Data", "Unified"} or not size.rstrip("KM").isdigit():
            continue
        scale = {"K": 2**10, "M": 2**20}.get(size[-1], 1)
        sharing = set(cpus) & set(_cpu_list(_read(folder / "shared_cpu_list")))
        caches.append(Cache(level=int(_read(folder / "level")), bytes=int(size.rstrip("KM")) * scale,
                            shared_by=max(1, _cores(root, sharing) if sharing else 1),
                            line=int(_read(folder / "coherency_line_size") or 64)))
    return tuple(sorted(caches, key=lambda cache: cache.level))


def _cpu_list(text: str) -> list[int]:
    """"0-3,8" as numbers."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _memory(root: Path) -> int:
    """Bytes of memory, at most what the control group allows."""
    lines = (_read(root / "proc/meminfo") or "MemTotal: 0 kB").splitlines()
    total = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal")), 0)
    limit = _read(root / "sys/fs/cgroup/memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
