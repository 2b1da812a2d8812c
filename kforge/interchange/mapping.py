"""What a foreign definition and one of kforge's operators have to do with one another: the translation of a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.workload import Problem, Workload
from kforge.interchange import schema
from kforge.interchange.schema import Definition, ElementType
from kforge.operators.base import Bound

if TYPE_CHECKING:
    import numpy as np

FLOATS = {ElementType.FLOAT32: DType.F32, ElementType.FLOAT16: DType.F16, ElementType.BFLOAT16: DType.BF16}
INTEGERS = frozenset({ElementType.INT64, ElementType.INT32})

Given = Mapping[str, "np.ndarray | float"]  # a call's arguments, by the definition's names
Tables = Callable[[str], "np.ndarray | None"]  # the values of an input, where they are stored


@dataclass(frozen=True, eq=False)
class Call:
    """A call of kforge's operator."""

    workload: Workload
    inputs: dict[str, np.ndarray]


@dataclass(frozen=True)
class Translation(ABC):
    """A definition as one of kforge's problems. Where there is a packed weight it has the usual panel height."""

    definition: Definition
    problem: Problem

    @property
    @abstractmethod
    def differences(self) -> tuple[str, ...]:
        """What a caller has to convert, and what kforge's kernel computes more or less than the definition says."""

    @abstractmethod
    def axes(self, workload: schema.Workload, tables: Tables) -> dict[str, int]:
        """Dynamic axes of a workload. Raises ValueError for one that the operator cannot have."""

    def workload(self, workload: schema.Workload, tables: Tables) -> Workload:
        """Raises ValueError with the reason why there is none."""
        if missing := [name for name in self.definition.var if not workload.axes.get(name)]:
            raise ValueError(f"workload {workload.uuid} gives no {missing[0]}")
        return workload_at(self.problem, self.axes(workload, tables))


class Foreign(Translation):
    """Of a definition that somebody else wrote: its signature fits, and a call of it can be compared with kforge's."""

    @classmethod
    @abstractmethod
    def match(cls, definition: Definition) -> Foreign | str:
        """The translation that the signature allows, or why there is none."""

    @abstractmethod
    def example(self, rng: np.random.Generator) -> dict[str, np.ndarray | float]:
        """Arguments of a small call in the definition's order; float tensors as float32 values that every float type
        holds exactly."""

    @abstractmethod
    def call(self, given: Given) -> Call:
        """The same call of kforge's operator."""

    @abstractmethod
    def outputs(self, made: Mapping[str, Bound]) -> dict[str, Bound]:
        """The definition's outputs, in its shapes, from the operator's; without those that kforge does not compute."""

    def small(self) -> dict[str, int]:
        """Other values of const axes at which the same function can be checked with less work."""
        return {}

    def variants(self) -> tuple[Foreign, ...]:
        """What may be meant where the signature alone does not say; the reference decides."""
        return (self,)


def workload_at(problem: Problem, axes: Mapping[str, int]) -> Workload:
    return Workload(problem, tuple(sorted(axes.items())))


def widened(definition: Definition) -> list[str]:
    """The difference in element types, as a sentence or none: kforge's activations are float32."""

    def names(tensors: Mapping[str, schema.Tensor]) -> list[str]:
        return [
            name
            for name, t in tensors.items()
            if t.shape is not None and t.dtype in FLOATS and t.dtype is not ElementType.FLOAT32
        ]

    given, made = names(definition.inputs), names(definition.outputs)
    said = []
    if given:
        said.append(f"{', '.join(given)} widened to float32, which is exact")
    if made:
        said.append(f"{', '.join(made)} made in float32, rounded by the caller")
    return said


def exact_normals(rng: np.random.Generator, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """float32 normal values with seven bits of mantissa and no tiny ones: bfloat16 and float16 hold them exactly."""
    import numpy as np

    values = (scale * rng.standard_normal(shape)).astype(np.float32)
    bits = values.view(np.uint32)
    bits &= np.uint32(0xFFFF0000)
    values[np.abs(values) < 2.0**-14] = 0
    return values


def narrowed(values: np.ndarray, dtype: DType) -> np.ndarray:
    """As kforge holds them: bf16 as its bits."""
    from kforge.operators import numerics

    return numerics.narrow(values, dtype)
