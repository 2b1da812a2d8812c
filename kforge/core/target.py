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
    shared_by: int  # cores that share one instance
    line: int = 64


@dataclass(frozen=True)
class Level:
    """What one core alone gets from a level of its memory, "L1", "L2", ... or "memory"."""

    name: str
    read: Peak  # bytes/s of sequential loads
    latency: Peak  # seconds of a load whose address is what the load before it brought


@dataclass(frozen=True)
class Target:
    """What kernels are built for and rooflines are drawn from.

    ``bandwidth`` maps a thread count to the DRAM read bandwidth in bytes/s; ``peaks`` maps "fp32_fma", "bf16_dot" and
    "int8_dot" to operations/s of all cores together (a multiply-add is two operations).
    """

    name: str
    kind: str  # "cpu" or "gpu"
    vendor: str
    model: str
    arch: str  # "x86_64", "aarch64", "sm_90", "gfx942", ...
    features: tuple[str, ...]  # ISA features as the kernel spells them, sorted
    cores: int
    caches: tuple[Cache, ...]
    memory_bytes: int
    bandwidth: tuple[tuple[int, Peak], ...]
    peaks: tuple[tuple[str, Peak], ...]
    compilers: tuple[Compiler, ...] = ()
    levels: tuple[Level, ...] = ()  # the nearest first; none where nobody measured them
    backends: tuple[str, ...] = ("cpp",)  # whose kernels run on it, the usual one first; none: it is only described

    @property
    def identity(self) -> str:
        """What registry entries match exactly: vendor, architecture, ISA features that kernels may use, core count."""
        return stable_hash([self.kind, self.vendor, self.arch, list(self.features), self.cores])

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
