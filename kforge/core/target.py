"""A target: one kind of hardware with its toolchain."""

from __future__ import annotations

from dataclasses import dataclass

from kforge.core.workload import stable_hash


@dataclass(frozen=True)
class Peak:
    """A limit of the hardware. ``source`` is "measured" or where a vendor states the figure."""

    value: float  # bytes/s or operations/s
    spread: float = 0.0  # interquartile range over median; 0 for vendor figures
    source: str = "measured"


@dataclass(frozen=True)
class Compiler:
    path: str
    name: str  # "g++" or "clang++"
    version: str


@dataclass(frozen=True)
class Cache:
    level: int
    bytes: int
    shared_by: int  # cores, of a GPU units, that share one instance
    line: int = 64  # bytes; 0 where nobody says


@dataclass(frozen=True)
class Level:
    """What one core alone gets from a level of its memory, "L1", "L2", ... or "memory"."""

    name: str
    read: Peak  # bytes/s of sequential loads
    latency: Peak  # seconds of a load whose address is what the load before it brought


@dataclass(frozen=True)
class Link:
    """A way out of a device. ``bandwidth`` in bytes/s, both directions together, as vendors state it."""

    name: str  # "NVLink 4", "PCIe 5.0 x16", ...
    bandwidth: Peak


@dataclass(frozen=True)
class Gpu:
    """What a GPU, or another accelerator, offers kernels beside cores, caches and peaks.

    A *unit* is what has a register file and a shared memory of its own: an SM, a compute unit, an Xe-core, a TPC, a
    NeuronCore. ``Target.cores`` counts them. A figure of None is not published, or the device has no such thing:
    whoever needs it refuses, and never guesses.
    """

    pci_id: str  # "10de:2335", vendor and device of the PCI ID database
    devices: tuple[str, ...]  # names as the drivers report them: a device is this target by one of these or its PCI ID
    warp: int | None = None  # threads that run in step: warp, wavefront, sub-group
    threads_per_block: int | None = None
    threads_per_unit: int | None = None
    blocks_per_unit: int | None = None
    warps_per_unit: int | None = None
    registers_per_unit: int | None = None  # of 32 bits
    registers_per_thread: int | None = None  # of 32 bits, the most that one thread may have
    register_granularity: int | None = None  # registers of a thread are given out in multiples of this
    shared_per_unit: int | None = None  # bytes of shared memory, LDS or SLM
    shared_per_block: int | None = None  # bytes, the most that one block may have
    clock_hz: int | None = None  # boost clock
    power_watts: int | None = None  # of the whole board or module, as the vendor limits it
    links: tuple[Link, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()  # figure, or "cores", "memory_bytes", "caches" -> who states it


@dataclass(frozen=True)
class Target:
    """What kernels are built for and rooflines are drawn from.

    ``bandwidth`` maps a number of threads (of units, on a GPU) to the read bandwidth of its memory in bytes/s.
    ``peaks`` maps a name to operations/s of all cores together, a multiply-add being two, without sparsity: "fp32_fma"
    and all that end with ``_fma`` are rates of the vector units, "bf16_dot", "int8_dot" and all that end with ``_dot``
    those of dot-product or matrix instructions.
    """

    name: str
    kind: str  # "cpu", "gpu", or "accelerator" for what runs no threads
    vendor: str
    model: str
    arch: str  # "x86_64", "aarch64", "sm_90", "gfx942", ...
    features: tuple[str, ...]  # ISA features as the kernel spells them (of GPUs: ``kforge.targets.gpu``), sorted
    cores: int  # of a GPU: its units
    caches: tuple[Cache, ...]
    memory_bytes: int
    bandwidth: tuple[tuple[int, Peak], ...]
    peaks: tuple[tuple[str, Peak], ...]
    compilers: tuple[Compiler, ...] = ()
    levels: tuple[Level, ...] = ()  # the nearest first; none where nobody measured them
    backends: tuple[str, ...] = ("cpp",)  # whose kernels run on it, the usual one first; none: it is only described
    gpu: Gpu | None = None  # exactly for kinds other than "cpu"

    @property
    def identity(self) -> str:
        """What registry entries match exactly: vendor, architecture, features that kernels may use, core count; of a
        GPU also its PCI ID, which tells boards with one chip apart."""
        facts: list[object] = [self.kind, self.vendor, self.arch, list(self.features), self.cores]
        if self.gpu:
            facts.append(self.gpu.pci_id)
        return stable_hash(facts)

    def has(self, *features: str) -> bool:
        return set(features) <= set(self.features)

    @property
    def llc_bytes(self) -> int:
        return max((c.bytes for c in self.caches), default=0)

    def best_bandwidth(self, threads: int | None = None) -> float:
        """Bytes/s with ``threads`` threads (all cores when None); the nearest measured count at most that."""
        wanted = threads or self.cores
        usable = [(n, peak.value) for n, peak in self.bandwidth if n <= wanted] or [
            (n, p.value) for n, p in self.bandwidth
        ]
        return max(value for _, value in usable) if usable else 0.0

    def peak(self, name: str) -> float:
        return dict(self.peaks)[name].value if name in dict(self.peaks) else 0.0
