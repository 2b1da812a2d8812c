"""The contract of an operator: axes, tensors, references, cost and buckets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from kforge.core.dtypes import DType
from kforge.core.layout import Layout
from kforge.core.workload import Attr, Problem, Workload

if TYPE_CHECKING:
    import numpy as np

Arrays = Mapping[str, "np.ndarray"]
DENSE = Layout.of("dense")


class Role(StrEnum):
    IN = "in"
    OUT = "out"
    INOUT = "inout"


class Residency(StrEnum):
    """Where a tensor is when the engine calls the kernel; timing reproduces it."""

    STREAMED = "streamed"  # weights, KV: beyond the last-level cache
    HOT = "hot"  # activations just written


class Distribution(StrEnum):
    """How a case's inputs are drawn. What each one is there to expose:"""

    NORMAL = "normal"
    HEAVY_TAIL = "heavy_tail"  # a few values 100 times larger
    POSITIVE = "positive"
    NEGATIVE = "negative"  # a maximum that starts at 0, a sign that is lost
    TINY = "tiny"  # about 1e-6, so that absolute tolerances would hide everything
    LARGE = "large"
    DENORMAL = "denormal"  # below 2^-126: flushed by kernels that must not
    MIXED = "mixed"  # magnitudes over twelve decades, and weights whose scales are denormal
    SPARSE = "sparse"  # half zeros, some of them negative, and rows of nothing else
    EQUAL = "equal"  # every value of a row the same: ties, and what depends on differences
    ONE_HOT = "one_hot"  # single non-zero terms: a dropped term, or a product rounded twice, shows
    CANCEL = "cancel"  # permuted cancellation: terms that sum to almost nothing
    NAN = "nan"  # one in some rows: to be passed on there and nowhere else
    INFINITE = "infinite"  # the same
    ROWS = "rows"  # every row of another distribution: all of them in one call


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a launch. A packed weight is ``u8`` of shape (bytes,). ``touched``: the share of a streamed tensor
    that one call reads, on average."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    role: Role
    residency: Residency = Residency.HOT
    layout: Layout = DENSE
    touched: float = 1.0

    @property
    def bytes(self) -> int:
        size = self.dtype.size
        for n in self.shape:
            size *= n
        return size


@dataclass(frozen=True)
class Bound:
    """An output's float64 reference and the largest error allowed, per element (same shape). ``free``: elements of
    which nothing is known, where any value is right, an infinity or NaN too; None where there are none."""

    reference: np.ndarray
    bound: np.ndarray
    free: np.ndarray | None = None

    def rows(self, rows: np.ndarray) -> Bound:
        """That of these rows (int64) of the first axis."""
        return Bound(self.reference[rows], self.bound[rows], None if self.free is None else self.free[rows])


@dataclass(frozen=True)
class Cost:
    """What a call must at least move and do.

    ``streamed_bytes`` come from memory beyond the cache, ``hot_bytes`` from cache; ``operations`` maps a peak's name
    ("int8_dot", "fp32_fma") to a count, a multiply-add being two.
    """

    streamed_bytes: int
    hot_bytes: int
    operations: tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows of a call's outputs, as a call of their own."""

    workload: Workload
    inputs: Arrays


class Operator(ABC):
    """A mathematical function with a contract. Instances are stateless; get them with ``kforge.operators.get``."""

    name: str
    version: ClassVar[int] = 1
    static_axes: ClassVar[tuple[str, ...]]
    dynamic_axes: ClassVar[tuple[str, ...]]  # the order in kf_launch.axes
    scalar_names: ClassVar[tuple[str, ...]] = ()
    usual: Mapping[str, Attr] = MappingProxyType({})  # axes where a question does not say
    unfit: str = ""  # why checks with it would say nothing
    row_axis: str = ""  # the dynamic axis that counts rows independent of one another, where there is one

    @abstractmethod
    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """Tensors in launch order."""

    def scalars(self, workload: Workload) -> tuple[float, ...]:
        """Scalar values of timed calls, in the order of ``scalar_names``."""
        return ()

    def given_scalars(self, workload: Workload, inputs: Arrays) -> tuple[float, ...]:
        """Those of a case, which stand among its inputs under their names where they are not as in timed calls."""
        usual = zip(self.scalar_names, self.scalars(workload), strict=True)
        return tuple(float(inputs[name]) if name in inputs else value for name, value in usual)

    def part(self, workload: Workload, inputs: Arrays, rows: np.ndarray) -> Part | None:
        """The call whose outputs are these rows (int64, of the first axis) of this one's, or None where rows depend on
        one another."""
        if not self.row_axis:
            return None
        axes = workload.axes

        def of(count: int) -> Workload:
            return Workload.of(workload.problem, workload.count, workload.phase, **{**axes, self.row_axis: count})

        more = zip(self.tensors(workload), self.tensors(of(axes[self.row_axis] + 1)), strict=True)
        by_row = {spec.name for spec, longer in more if spec.shape != longer.shape}
        return Part(of(len(rows)), {name: value[rows] if name in by_row else value for name, value in inputs.items()})

    @abstractmethod
    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        """Every ``in`` and ``inout`` tensor, already in its layout. Deterministic in all arguments."""

    @abstractmethod
    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        """Bound reference: float64 from the exact (unpacked, dequantised) inputs, with the error allowed per element.

        Independent of ``spec``: written in numpy, in another order. Keys are the ``out`` and ``inout`` tensors.
        """

    @abstractmethod
    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        """Order specification (scalar C++): the ``out`` and ``inout`` tensors, to the bit."""

    @abstractmethod
    def cost(self, workload: Workload) -> Cost:
        """Least traffic and operations of one call."""

    @abstractmethod
    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        """The bucket's tuning point for these dynamic axes: the smallest listed one not below them (or the last)."""

    @abstractmethod
    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        """Small shapes inside the workload's bucket to check at: edges (1, odd, off multiples) and random ones."""
