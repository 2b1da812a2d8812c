"""Measures what this machine reaches: memory reads, caches and arithmetic.

Each measurement stands alone, because the bandwidth of a shared machine can change by half between minutes: measure it
beside whatever is held against it.
"""

from __future__ import annotations

import ctypes
import functools
import statistics
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from kforge.core.errors import KforgeError
from kforge.core.summary import Summary
from kforge.core.target import Level, Peak, Target
from kforge.native import build_library, find_compilers, source_dir
from kforge.targets.cpu import CpuFacts, read_cpu

PEAKS = ("fp32_fma", "bf16_dot", "int8_dot")
_CAPACITY = 1024
_UNDISTURBED = 0.95
_READ_STEP = 256  # bytes: what native readers read a multiple of
_MOST_CHAINED = 512 << 20  # bytes of a chain of loads: making one touches every line in a random order


@dataclass(frozen=True)
class _Loop:
    """A native loop and the features that it executes, best first in the lists below."""

    name: str
    needs: tuple[str, ...]


_LOOPS = {
    "fp32_fma": (_Loop("fp32_fma/avx512f", ("avx512f",)), _Loop("fp32_fma/avx2", ("avx2", "fma")),
                 _Loop("fp32_fma/asimd", ("asimd",)), _Loop("fp32_fma/portable", ())),
    "bf16_dot": (_Loop("bf16_dot/avx512_bf16", ("avx512f", "avx512_bf16")), _Loop("bf16_dot/avx512f", ("avx512f",)),
                 _Loop("bf16_dot/avx2", ("avx2", "fma")), _Loop("bf16_dot/bf16", ("asimd", "bf16")),
                 _Loop("bf16_dot/portable", ())),
    "int8_dot": (_Loop("int8_dot/avx512_vnni", ("avx512f", "avx512_vnni")),
                 _Loop("int8_dot/avx_vnni", ("avx2", "avx_vnni")), _Loop("int8_dot/avx2", ("avx2",)),
                 _Loop("int8_dot/asimddp", ("asimddp",)), _Loop("int8_dot/portable", ())),
    "read": (_Loop("read/avx512f", ("avx512f",)), _Loop("read/avx2", ("avx2",)), _Loop("read/portable", ())),
}


def loops_for(peak: str, features: Sequence[str]) -> tuple[str, ...]:
    """Names of the native loops for a peak (or "read") that a CPU with these features executes, best first."""
    return tuple(loop.name for loop in _LOOPS[peak] if set(loop.needs) <= set(features))


def measure_peak(name: str, threads: int | None = None, seconds: float = 0.25, loop: str | None = None) -> Peak:
    """Operations/s of ``threads`` threads together (default: all cores) for "fp32_fma", "bf16_dot" or "int8_dot".

    Independent chains of the best instruction that this CPU has for it (or of ``loop``, from ``loops_for``), on
    operands in registers. The value is the 95th percentile of samples of about a millisecond: other load only ever
    takes away, and arithmetic, unlike memory, has one speed. The spread is that of all samples. Raises KforgeError for
    an unknown name or without a compiler.
    """
    if name not in PEAKS:
        raise KforgeError(f"unknown peak {name!r}: one of {', '.join(PEAKS)}")
    facts = read_cpu()
    chosen = loop or loops_for(name, facts.features)[0]
    samples = (ctypes.c_double * _CAPACITY)()
    count = _library().kf_probe_arithmetic(chosen.encode(), threads or facts.cores, seconds, samples, _CAPACITY)
    if count < 0:
        raise KforgeError(f"no native loop {chosen!r} on {facts.arch}")
    values = sorted(samples[:count])
    return Peak(values[min(count - 1, int(_UNDISTURBED * count))], Summary.of(values).spread, f"measured, {chosen}")


class BandwidthProbe:
    """Memory to read, kept between measurements so that one can stand beside each of many comparisons.

    In all four times the caches in reach (at least 256 MiB, at most an eighth of memory), huge pages, one sequential
    stream a thread. Raises KforgeError without memory or compiler.
    """

    def __init__(self, threads: int) -> None:
        facts = read_cpu()
        total = _read_bytes(facts, threads)
        native = _library()
        loops = loops_for("read", facts.features)[:2]
        self._handle = native.kf_probe_memory_new(loops[0].encode(), threads, max(total // threads, 1 << 21))
        if not self._handle:
            raise KforgeError(f"cannot get {total >> 20} MiB of memory to measure bandwidth with")
        self._finalizer = weakref.finalize(self, native.kf_probe_memory_delete, self._handle)
        # Which width of loads reads fastest differs between CPUs: three passes each decide.
        self._loop = max(loops, key=self._median)
        native.kf_probe_memory_use(self._handle, self._loop.encode())

    def measure(self, seconds: float = 0.2) -> Peak:
        """Bytes/s of all threads together: the median over passes (at least three), and their spread."""
        summary = Summary.of(self._samples(seconds))
        return Peak(summary.median, summary.spread, f"measured, {self._loop}")

    def _median(self, loop: str) -> float:
        _library().kf_probe_memory_use(self._handle, loop.encode())
        return statistics.median(self._samples(0.0))

    def _samples(self, seconds: float) -> list[float]:
        samples = (ctypes.c_double * _CAPACITY)()
        count = _library().kf_probe_memory_read(self._handle, seconds, samples, _CAPACITY)
        return sorted(samples[:count])

    def close(self) -> None:
        self._finalizer()

    def __enter__(self) -> BandwidthProbe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def measure_bandwidth(threads: int, seconds: float = 0.2) -> Peak:
    """Bytes/s that ``threads`` threads read from memory together; see BandwidthProbe, which saves repeated set-up."""
    with BandwidthProbe(threads) as probe:
        return probe.measure(seconds)


def measure_levels(facts: CpuFacts, memory_read: Peak, seconds: float = 0.1) -> tuple[Level, ...]:
    """Each cache and the memory as one core alone sees them; medians of samples of a fraction of a millisecond.

    Reads go over three quarters of a cache, or eight times the next smaller one where that is less: an outer cache may
    be shared with others. ``memory_read``: what one thread reads from memory. Raises KforgeError without memory.
    """
    loops = loops_for("read", facts.features)[:2]
    found: list[Level] = []
    inner = 0
    for cache in facts.caches:
        block = min(cache.bytes * 3 // 4, 8 * inner or cache.bytes) // _READ_STEP * _READ_STEP
        reads = (Peak(*_middle(functools.partial(_library().kf_probe_block_read, loop.encode(), block), seconds),
                      f"measured, {loop}") for loop in loops)
        found.append(Level(f"L{cache.level}", max(reads, key=lambda peak: peak.value),
                           _latency(block, cache.line, seconds)))
        inner = cache.bytes
    line = facts.caches[-1].line if facts.caches else 64
    return (*found, Level("memory", memory_read, _latency(min(_read_bytes(facts, 1), _MOST_CHAINED), line, seconds)))


def _latency(block: int, line: int, seconds: float) -> Peak:
    ring = functools.partial(_library().kf_probe_latency, block, line)
    return Peak(*_middle(ring, seconds), "measured, a chain of loads")


def _middle(measure: Callable[..., int], seconds: float) -> tuple[float, float]:
    """Median and spread of a native measurement's samples."""
    samples = (ctypes.c_double * _CAPACITY)()
    count = measure(seconds, samples, _CAPACITY)
    if count < 0:
        raise KforgeError("cannot get the memory to measure the caches with")
    summary = Summary.of(samples[:count])
    return summary.median, summary.spread


def thread_counts(cores: int) -> tuple[int, ...]:
    """Thread counts to measure bandwidth at: all up to 4, then doubling, and all cores."""
    counts = [n for n in range(1, min(cores, 4) + 1)]
    while counts[-1] * 2 < cores:
        counts.append(counts[-1] * 2)
    return tuple(sorted({*counts, cores}))


def probe(name: str = "host", facts: CpuFacts | None = None) -> Target:
    """This machine as a target, in a few seconds. Without a compiler nothing is measured: no bandwidth, no peaks."""
    facts = facts or read_cpu()
    compilers = find_compilers()
    bandwidth = tuple((n, measure_bandwidth(n)) for n in thread_counts(facts.cores)) if compilers else ()
    peaks = tuple((peak, measure_peak(peak, facts.cores)) for peak in PEAKS) if compilers else ()
    levels = measure_levels(facts, bandwidth[0][1]) if compilers else ()
    return Target(name=name, kind="cpu", vendor=facts.vendor, model=facts.model, arch=facts.arch,
                  features=facts.features, cores=facts.cores, caches=facts.caches, memory_bytes=facts.memory_bytes,
                  bandwidth=bandwidth, peaks=peaks, compilers=compilers, levels=levels)


def _read_bytes(facts: CpuFacts, threads: int) -> int:
    """Bytes to read, so many that caches serve few of them. ``threads`` may sit on as many instances of a cache."""
    reach = max((cache.bytes * min(-(-facts.cores // cache.shared_by), threads) for cache in facts.caches), default=0)
    return min(max(256 << 20, 4 * reach), facts.memory_bytes // 8)


@functools.cache
def _library() -> ctypes.CDLL:
    source = source_dir()
    executor = (source / f"{name}.cc" for name in ("memory", "team", "wait"))
    sources = [*sorted((source / "probe").glob("*.cc")), *executor]
    library = ctypes.CDLL(str(build_library("kforge_probe", sources)))
    samples = ctypes.POINTER(ctypes.c_double)
    library.kf_probe_arithmetic.argtypes = [ctypes.c_char_p, ctypes.c_int32, ctypes.c_double, samples, ctypes.c_int32]
    library.kf_probe_memory_new.argtypes = [ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64]
    library.kf_probe_memory_new.restype = ctypes.c_void_p
    library.kf_probe_memory_use.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.kf_probe_memory_delete.argtypes = [ctypes.c_void_p]
    library.kf_probe_memory_read.argtypes = [ctypes.c_void_p, ctypes.c_double, samples, ctypes.c_int32]
    library.kf_probe_block_read.argtypes = [
        ctypes.c_char_p, ctypes.c_int64, ctypes.c_double, samples, ctypes.c_int32]
    library.kf_probe_latency.argtypes = [
        ctypes.c_int64, ctypes.c_int64, ctypes.c_double, samples, ctypes.c_int32]
    return library
