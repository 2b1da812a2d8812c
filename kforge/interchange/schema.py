"""FlashInfer-Bench's data as its JSON files hold it: definitions, workloads, solutions, traces.

The fields and rules of its schema, as documented by its own ``docs/flashinfer-trace``; fields that it may add are
ignored. Nothing here runs what a file brings: a ``reference`` is parsed, never executed.
"""

from __future__ import annotations

import ast
import math
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_REFERENCE = 1 << 20  # characters of a definition's reference

Text = Annotated[str, Field(min_length=1)]
MOST_EXTENT = 1 << 40
Count = Annotated[int, Field(ge=0, le=MOST_EXTENT)]
Extent = Annotated[int, Field(ge=1, le=MOST_EXTENT)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    def text(self, indent: int | None = None) -> str:
        """As JSON; what is as by default is left out."""
        return self.model_dump_json(indent=indent, exclude_defaults=True)


class ElementType(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT4_E2M1 = "float4_e2m1"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    BOOL = "bool"


class Axis(_Part):
    """``const`` with a value, or ``var``: bound to the inputs' shapes at each call."""

    type: Literal["const", "var"]
    value: Extent | None = None
    description: str | None = None

    @model_validator(mode="after")
    def _has_its_value(self) -> Axis:
        if (self.type == "const") != (self.value is not None):
            raise ValueError("a const axis has a value, a var axis has none")
        return self


class Tensor(_Part):
    """``shape``: names of axes; None for a scalar of the language."""

    shape: tuple[Text, ...] | None
    dtype: ElementType
    description: str | None = None


class Definition(_Part):
    name: Text
    op_type: Text
    axes: dict[Text, Axis]
    inputs: dict[Text, Tensor]
    outputs: dict[Text, Tensor]
    reference: Annotated[str, Field(min_length=1, max_length=MOST_REFERENCE)]
    tags: tuple[Text, ...] = ()
    description: str | None = None
    constraints: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _is_whole(self) -> Definition:
        if both := sorted(self.inputs.keys() & self.outputs.keys()):
            raise ValueError(f"{both[0]} is an input and an output")
        for name, tensor in (*self.inputs.items(), *self.outputs.items()):
            if unknown := [axis for axis in tensor.shape or () if axis not in self.axes]:
                raise ValueError(f"{name} has the axis {unknown[0]}, which is not defined")
        tree = parsed(self.reference)
        if not any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
            raise ValueError("the reference defines no function run")
        return self

    @property
    def const(self) -> dict[str, int]:
        return {name: axis.value for name, axis in self.axes.items() if axis.value is not None}

    @property
    def var(self) -> tuple[str, ...]:
        return tuple(name for name, axis in self.axes.items() if axis.type == "var")

    def shape(self, tensor: Tensor, axes: dict[str, int]) -> tuple[int, ...]:
        """A tensor's shape with ``axes`` for the var axes. Raises KeyError for one that is missing."""
        known = {**axes, **self.const}
        return tuple(known[name] for name in tensor.shape or ())

    def resized(self, const: dict[str, int]) -> Definition:
        """The same with other values of some const axes."""
        axes = {
            name: Axis(type="const", value=const[name]) if name in const else axis for name, axis in self.axes.items()
        }
        return self.model_copy(update={"axes": axes})


def parsed(source: str) -> ast.Module:
    """The tree of a Python text. Raises ValueError for one that does not parse, however that goes."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"the reference is no Python: {error}") from None
    except (RecursionError, MemoryError):
        raise ValueError("the reference is too deeply nested to be read") from None


class Source(_Part):
    """Where an input's values come from."""

    type: Literal["random", "scalar", "safetensors"]
    value: int | float | bool | None = None  # of a scalar
    path: Text | None = None  # of safetensors: below the dataset's folder
    tensor_key: Text | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Source:
        if self.type == "scalar" and self.value is None:
            raise ValueError("a scalar has a value")
        if self.type == "safetensors" and (self.path is None or self.tensor_key is None):
            raise ValueError("safetensors have a path and a tensor_key")
        return self


class Workload(_Part):
    axes: dict[str, Count]
    inputs: dict[str, Source]
    uuid: Text


class Correctness(_Part):
    """Errors may be NaN: not measured."""

    max_relative_error: float = 0.0
    max_absolute_error: float = 0.0
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _is_no_less_than_zero(self) -> Correctness:
        for error in (self.max_relative_error, self.max_absolute_error):
            if not math.isnan(error) and error < 0:
                raise ValueError("an error is not negative")
        return self


class Performance(_Part):
    latency_ms: Annotated[float, Field(ge=0)] = 0.0
    reference_latency_ms: Annotated[float, Field(ge=0)] = 0.0
    speedup_factor: Annotated[float, Field(ge=0)] = 0.0


class Environment(_Part):
    hardware: Text
    libs: dict[str, str] = {}


class Status(StrEnum):
    PASSED = "PASSED"
    INCORRECT_SHAPE = "INCORRECT_SHAPE"
    INCORRECT_NUMERICAL = "INCORRECT_NUMERICAL"
    INCORRECT_DTYPE = "INCORRECT_DTYPE"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    COMPILE_ERROR = "COMPILE_ERROR"
    TIMEOUT = "TIMEOUT"


class Evaluation(_Part):
    """Correctness belongs to PASSED and INCORRECT_NUMERICAL, performance to PASSED; to all others neither."""

    status: Status
    environment: Environment
    timestamp: Text
    log: str = ""
    correctness: Correctness | None = None
    performance: Performance | None = None

    @model_validator(mode="after")
    def _has_what_its_status_has(self) -> Evaluation:
        if (self.correctness is not None) != (self.status in (Status.PASSED, Status.INCORRECT_NUMERICAL)):
            raise ValueError(f"correctness does not go with {self.status}")
        if (self.performance is not None) != (self.status is Status.PASSED):
            raise ValueError(f"performance does not go with {self.status}")
        return self


class Trace(_Part):
    """A solution's evaluation at a workload; without both, a workload."""

    definition: Text
    workload: Workload
    solution: str | None = None
    evaluation: Evaluation | None = None

    @property
    def is_workload(self) -> bool:
        return self.solution is None and self.evaluation is None


class SourceFile(_Part):
    path: Text
    content: Text

    @model_validator(mode="after")
    def _stays_below(self) -> SourceFile:
        path = PurePosixPath(self.path)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"the path {self.path!r} leads out of its folder")
        return self


class BuildSpec(_Part):
    language: Literal["python", "triton", "cpp", "cuda", "tilelang"]
    target_hardware: Annotated[tuple[str, ...], Field(min_length=1)]
    entry_point: Text  # FILE::FUNCTION
    dependencies: tuple[Text, ...] = ()
    destination_passing_style: bool = True
    binding: Literal["tvm-ffi", "torch"] | None = None


class Solution(_Part):
    name: Text
    definition: Text
    author: Text
    spec: BuildSpec
    sources: Annotated[tuple[SourceFile, ...], Field(min_length=1)]
    description: str | None = None

    @model_validator(mode="after")
    def _has_its_entry(self) -> Solution:
        paths = [source.path for source in self.sources]
        if self.spec.entry_point.count("::") != 1 or self.spec.entry_point.partition("::")[0] not in paths:
            raise ValueError(f"the entry point {self.spec.entry_point!r} is no FILE::FUNCTION of its sources")
        if len(set(paths)) != len(paths):
            raise ValueError("two sources have one path")
        return self

    @property
    def entry(self) -> SourceFile:
        return next(s for s in self.sources if s.path == self.spec.entry_point.partition("::")[0])

    @property
    def function(self) -> str:
        return self.spec.entry_point.partition("::")[2]
