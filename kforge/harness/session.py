"""A workload made ready for measuring: its inputs in a zygote's arena, its slots, and what timed calls must give."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kforge.core.dtypes import DType
from kforge.core.image import Loadable
from kforge.core.trial import Failure, NumericsClass
from kforge.core.workload import Workload
from kforge.harness.cases import call_seconds_allowed
from kforge.harness.control import SharedMemory
from kforge.harness.expected import Expected
from kforge.harness.forms import Form, dense_strides
from kforge.harness.process import SCRATCH, SCRATCH_LIMIT, Process, TensorArgument
from kforge.harness.proof import proven
from kforge.harness.slots import ALIGN, PAGE, SlotFile, SlotRequest, round_up
from kforge.harness.zygote import ArenaSegment, Zygote
from kforge.operators.base import Distribution, Operator, Residency, Role, TensorSpec
from kforge.operators.numerics import numpy_dtype

# At least this much memory, or four times the cache, between two uses of one copy. A guest may be told of less cache
# than it has: at 128 MiB kernels read 1.13 times as fast as memory can where 32 MiB are reported, from 256 MiB on 1.00.
_ROTATION_BYTES = 256 << 20
_LARGEST_ROTATION = 1 << 30
_LEAD_PAGES = 64
_NEIGHBOURS = (1, 2, 3)  # copies, in either direction
_DRAWN_STEPS = 100
_LEAST_SHIFTS = 1 << 16
NUMBERS = (DType.F32, DType.F16, DType.BF16)
GAP_LINES = 8  # at most, and at least one, of 64 bytes between rows of a slot
_FREE_BITS = {DType.U8: np.uint8(0xFF), DType.I8: np.uint8(0xFF), DType.F32: np.uint32(0x807FFFFF),
              DType.F16: np.uint16(0x83FF), DType.BF16: np.uint16(0x807F)}  # of floats sign and mantissa
DRAWS = 2  # of a workload's inputs, for timed calls to alternate between


@dataclass(frozen=True)
class ArenaTensor:
    """Where timed calls read a tensor: ``copies``, ``copy_stride`` bytes apart, from ``offset`` of the arena on."""

    offset: int
    copies: int
    copy_stride: int


class TimedInputs:
    """What timed calls of a workload read: written to a memory file once, from which every zygote fills its arena.

    Inputs are drawn ``DRAWS`` times, and call i reads draw i mod DRAWS of every tensor: two calls in a row never have
    the same answer, so the last one's is worth nothing. Streamed tensors come in so many copies that one has left the
    last-level cache before it is used again, and no two copies are equal (``_varied``): a kernel that reads another
    one, which the cache still has, is wrong. Where a single copy is that large there is one, and draws differ in the
    tensors of numbers that are hot.
    """

    def __init__(self, operator: Operator, workload: Workload, seed: int, llc_bytes: int,
                 backend: str = "cpp") -> None:
        """``backend``: whose runner the sessions of these inputs start."""
        self.operator = operator
        self.backend = backend
        self.workload = workload
        self._expected: dict[NumericsClass, Expected] = {}
        self._specs = [spec for spec in operator.tensors(workload) if spec.role is Role.IN]
        copies = rotation_copies(self._specs, llc_bytes)
        first = operator.inputs(workload, seed, Distribution.NORMAL)
        whole = copies > 1 or not any(spec.residency is Residency.STREAMED for spec in self._specs)
        if whole:
            second = operator.inputs(workload, seed + 1, Distribution.NORMAL)
        else:
            rng = np.random.default_rng([seed, 9])
            hot = [s.name for s in self._specs if s.residency is Residency.HOT and s.dtype in NUMBERS]
            second = {**first, **{name: redrawn(first[name], 1, rng)[0] for name in hot}}
        self.draws: tuple[Mapping[str, np.ndarray], ...] = (first, second)
        self.period = round_up(copies, DRAWS)  # calls so far apart read the same
        self.tensors: dict[str, ArenaTensor] = {}
        self._sources: dict[str, int] = {}
        destination = source = 0
        # Streamed tensors lie last, and begin where the address of no other tensor tells.
        for spec in sorted(self._specs, key=lambda s: s.residency is Residency.STREAMED):
            streamed = spec.residency is Residency.STREAMED
            n = (self.period if whole else 1) if streamed else DRAWS
            stride = round_up(spec.bytes, PAGE)
            if streamed:
                destination += PAGE * secrets.randbelow(_LEAD_PAGES)
            self.tensors[spec.name] = ArenaTensor(destination, n, stride)
            self._sources[spec.name] = source
            destination += n * stride
            source += n * stride
        self.arena_bytes = destination
        self.source = SharedMemory("kforge-inputs", max(source, PAGE))
        # Of which calls references are kept: one for each draw, in copies that nobody is told of.
        self.checked = tuple(DRAWS * secrets.randbelow(self.period // DRAWS) + draw for draw in range(DRAWS))
        for spec in self._specs:
            self._fill(spec)

    @property
    def resident_bytes(self) -> int:
        """With a zygote that was filled from them."""
        return self.source.size + self.arena_bytes

    @property
    def segments(self) -> list[ArenaSegment]:
        """How the arena is filled from ``source``."""
        return [ArenaSegment(at.offset, self._sources[name], at.copies * at.copy_stride, 1, 0)
                for name, at in self.tensors.items()]

    def inputs(self, number: int) -> dict[str, np.ndarray]:
        """What call ``number`` reads, and what stands in its in/out tensors at first."""
        made = dict(self.draws[number % DRAWS])
        for spec in self._specs:
            if spec.residency is Residency.STREAMED:
                at = self.tensors[spec.name]
                copy = self._copies(spec)[number % at.copies, :spec.bytes]
                made[spec.name] = copy.view(numpy_dtype(spec.dtype)).reshape(made[spec.name].shape)
        return made

    def _copies(self, spec: TensorSpec) -> np.ndarray:
        """A tensor's copies in ``source``, u8 [copies, stride]."""
        at, start = self.tensors[spec.name], self._sources[spec.name]
        view = np.frombuffer(self.source.map, np.uint8, at.copies * at.copy_stride, start)
        return view.reshape(at.copies, at.copy_stride)

    def _fill(self, spec: TensorSpec) -> None:
        copies = self._copies(spec)
        given = [np.ascontiguousarray(draw[spec.name]).reshape(-1).view(np.uint8) for draw in self.draws]
        for number, copy in enumerate(copies):
            copy[:spec.bytes] = given[number % DRAWS]
        if spec.residency is Residency.STREAMED and len(copies) > 1:
            _varied(copies[:, :spec.bytes], given[0] ^ given[1], spec.dtype)

    def expected(self, numerics: NumericsClass) -> Expected:
        """What timed calls must leave; computed on first use."""
        if numerics not in self._expected:
            self._expected[numerics] = Expected(self.operator, self.workload, self.inputs, numerics)
        return self._expected[numerics]

    def close(self) -> None:
        self._expected.clear()  # its answers look at the source
        self.source.close()


def _varied(copies: np.ndarray, differing: np.ndarray, dtype: DType) -> None:
    """Makes every copy of a tensor, u8 [copies, bytes], a mixture of two draws bit by bit.

    Of numbers the exponents stay, so that they remain what they are by size; in packed weights codes are free and
    scales are below one, of which any mixture is, too.
    """
    bits = np.array([_FREE_BITS[dtype]]).view(np.uint8)
    free = np.tile(bits, -(-differing.size // bits.size))[: differing.size] & differing
    # Each copy takes a window of its own of one stretch of random bytes: drawing as many as there are copies takes
    # longer than writing them.
    rng = np.random.Generator(np.random.SFC64(secrets.randbits(128)))
    shifts = rng.permutation(max(_LEAST_SHIFTS, len(copies)))[: len(copies)]
    pool = np.frombuffer(rng.bytes(free.size + int(shifts.max())), np.uint8)
    for copy, shift in zip(copies, shifts, strict=True):
        copy ^= pool[shift : shift + free.size] & free


def redrawn(values: np.ndarray, times: int, rng: np.random.Generator) -> np.ndarray:
    """``times`` tensors like this one, [times, *shape], each value drawn from the values that it has."""
    chosen = rng.integers(0, values.size, (times, values.size), np.uint32)
    return values.reshape(-1)[chosen].reshape(times, *values.shape)


def rotation_copies(specs: Sequence[TensorSpec], llc_bytes: int) -> int:
    """Copies of the streamed tensors of which calls read more than four times the last-level cache (and 256 MiB), as
    far as a gigabyte holds them."""
    streamed = [(round_up(s.bytes, PAGE), s.touched) for s in specs if s.residency is Residency.STREAMED]
    if not streamed:
        return 1
    read = sum(round(size * share) for size, share in streamed)
    most = -(-_LARGEST_ROTATION // sum(size for size, _ in streamed))
    return min(-(-min(max(_ROTATION_BYTES, 4 * llc_bytes), _LARGEST_ROTATION) // read), most)


def walking_step(period: int) -> int:
    """By how much the numbers of timed calls go up, drawn for each session: what the next call will read, and might be
    fetched ahead for it, is not to be told from where this one's inputs lie.

    It has no divisor in common with the period: all copies are read before one is read again (and, as the period is
    even, draws alternate). Where there are copies enough, the nearest neighbours of a copy in memory are read at least
    an eighth of the walk before or after it, so that the cache has lost them.
    """
    step = 1
    for _ in range(_DRAWN_STEPS):
        step = 1 + secrets.randbelow(period - 1)
        while math.gcd(step, period) != 1:
            step = 1 + secrets.randbelow(period - 1)
        calls = pow(step, -1, period)  # from one copy to its neighbour
        if all(period <= 8 * (distance * calls % period) <= 7 * period for distance in _NEIGHBOURS):
            break
    return step


class Session:
    """One zygote for one workload, and the slots of its processes.

    Processes of a session share the slot file: the same physical pages at the same addresses for candidate and
    incumbent. What one left behind in outputs and scratch is poisoned before the other runs.
    """

    def __init__(self, timed: TimedInputs, shapes: Sequence[Workload], cpus: Sequence[int], *, copies: int = 1) -> None:
        """``shapes``: more shapes that slots must have room for. ``copies``: room for so many of each hot tensor, up to
        GAP_LINES apart.
        """
        self.timed = timed
        self.cpus = tuple(cpus)
        self.operator = timed.operator
        self.workload = timed.workload
        self.step = walking_step(timed.period)
        sizes: dict[str, SlotRequest] = {}
        for shape in (timed.workload, *shapes):
            for spec in self.operator.tensors(shape):
                before = sizes[spec.name].size if spec.name in sizes else 0
                size = max(spec.bytes, Form.of(spec, strided=True).bytes, before)
                if copies > 1 and spec.residency is Residency.HOT:
                    size = max(size, copies * (round_up(spec.bytes, ALIGN) + GAP_LINES * ALIGN))
                sizes[spec.name] = SlotRequest(spec.name, size, spec.role is not Role.IN)
        self.slots = SlotFile([*sizes.values(), SlotRequest(SCRATCH, SCRATCH_LIMIT, True)], len(cpus))
        try:
            self.zygote = Zygote(timed.arena_bytes, self.slots.reserve_bytes, timed.source, timed.segments,
                                 timed.backend)
        except BaseException:
            self.slots.close()
            raise

    def start(self, image: Loadable, cpu_seconds: int = 120) -> Process | Failure:
        child = self.zygote.spawn(image, self.slots, self.cpus, cpu_seconds, proven().run.needed)
        if isinstance(child, Failure):
            return child
        return Process(child, self.slots, self.operator, self.zygote.reserve_address)

    def timed_arguments(self, process: Process) -> list[TensorArgument]:
        """Inputs in the arena, outputs page-aligned in their slots."""
        arguments = []
        for spec in self.operator.tensors(self.workload):
            strides = dense_strides(spec.shape)
            if spec.name in self.timed.tensors:
                at = self.timed.tensors[spec.name]
                address = self.zygote.arena_address + at.offset
                arguments.append(TensorArgument(address, strides, at.copies, at.copy_stride))
            else:
                place = self.slots.place_at_page(spec.name, spec.bytes)
                spoil = spec.bytes if spec.role is Role.OUT else 0
                arguments.append(TensorArgument(process.address(place), strides, spoil_bytes=spoil))
        return arguments

    def seconds_allowed(self) -> float:
        """Time limit of the first call at the workload's size."""
        return call_seconds_allowed(self.operator, self.workload)

    def close(self) -> None:
        self.zygote.close()
        self.slots.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
