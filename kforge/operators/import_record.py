"""What is kept of an imported function: a JSON file below the data folder, validated as anything untrusted is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from kforge.core.drafts import write_whole
from kforge.core.errors import KforgeError
from kforge.operators.graph import AXIS, Given, Graph, Kind, Op, Step, concrete

MOST_GIVEN, MOST_STEPS, MOST_OUTPUTS, MOST_DIMS = 64, 2000, 16, 8
MOST_ELEMENTS = 1 << 40  # of one value: beyond any memory
NAME = r"[a-z][a-z0-9_]{0,47}"
_MOST_BYTES = 8 << 20
_TAKEN = re.compile(r"scratch|out[0-9]*")  # names of the harness's own, and of what is written

Name = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
Text = Annotated[str, StringConstraints(max_length=400, pattern=r"^[ -~]*$")]
Size = Annotated[int, Field(ge=1, le=1 << 31)]
Extents = Annotated[tuple[Size | Literal["B"], ...], Field(max_length=MOST_DIMS)]
Dims = Annotated[tuple[Annotated[int, Field(ge=0, lt=MOST_DIMS)], ...], Field(max_length=MOST_DIMS)]
Index = Annotated[int, Field(ge=0, le=1 << 31)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")


class GivenRecord(_Strict):
    name: Name
    shape: Extents
    kind: Kind
    mean: Annotated[float, Field(ge=-1e30, le=1e30)] = 0.0
    spread: Annotated[float, Field(ge=0, le=1e30)] = 1.0
    positive: bool = False


class StepRecord(_Strict):
    name: Name
    op: Op
    inputs: Annotated[tuple[Name, ...], Field(max_length=MOST_GIVEN)]
    shape: Extents
    value: float = 0.0
    dims: Dims = ()
    bounds: tuple[Index, Index] = (0, 0)

    @model_validator(mode="after")
    def _a_number(self) -> StepRecord:
        if self.value != self.value:
            raise ValueError(f"{self.name} is the number NaN")
        return self


class GraphRecord(_Strict):
    """A graph as JSON. ``made`` is the graph itself, whose own rules hold as well."""

    given: Annotated[tuple[GivenRecord, ...], Field(min_length=1, max_length=MOST_GIVEN)]
    steps: Annotated[tuple[StepRecord, ...], Field(max_length=MOST_STEPS)]
    outputs: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MOST_OUTPUTS)]

    @classmethod
    def of(cls, graph: Graph) -> GraphRecord:
        given = tuple(GivenRecord(**g.__dict__) for g in graph.given)
        steps = tuple(StepRecord(**s.__dict__) for s in graph.steps)
        return cls(given=given, steps=steps, outputs=graph.outputs)

    def made(self) -> Graph:
        return Graph(tuple(Given(**g.__dict__) for g in self.given), tuple(Step(**s.__dict__) for s in self.steps),
                     self.outputs)

    @model_validator(mode="after")
    def _a_graph(self) -> GraphRecord:
        graph = self.made()  # a GraphError is a ValueError
        for given in graph.given:
            if _TAKEN.fullmatch(given.name):
                raise ValueError(f"{given.name} is no name for what is given")
            if AXIS in given.shape and (given.shape[0] != AXIS or given.shape.count(AXIS) > 1):
                raise ValueError(f"{given.name} has the shape {given.shape}: {AXIS} is the first extent or none")
        if not any(given.kind is Kind.ARGUMENT for given in graph.given):
            raise ValueError("it has no argument")
        for name, shape in graph.shapes.items():
            if elements(concrete(shape, 1)) > MOST_ELEMENTS:
                raise ValueError(f"{name} has the shape {shape}")
        return self


class Original(_Strict):
    """An argument as the file had it."""

    name: Name
    shape: Annotated[tuple[Size, ...], Field(max_length=MOST_DIMS)]


Sizes = Annotated[dict[Annotated[str, StringConstraints(max_length=100)], Size], Field(max_length=64)]


class ImportRecord(_Strict):
    """``batch``: B of the example inputs, 1 where the graph has no B. ``originals``: the arguments' shapes before
    ``scaling``, which says how they were made smaller ("": not at all): ``sizes`` in place of the file's, and leading
    dimensions divided by ``lead``. ``flags``: why results with it are not to be counted."""

    version: Literal[1] = 1
    name: Name
    source: Text
    source_hash: Annotated[str, StringConstraints(pattern="^[0-9a-f]{16}$")]
    graph: GraphRecord
    batch: Size
    originals: Annotated[tuple[Original, ...], Field(max_length=MOST_GIVEN)] = ()
    scaling: Text = ""
    sizes: Sizes = {}
    lead: Size = 1
    flags: Annotated[tuple[Text, ...], Field(max_length=8)] = ()
    notes: Annotated[tuple[Text, ...], Field(max_length=16)] = ()


def elements(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def is_name(text: str) -> bool:
    return re.fullmatch(NAME, text) is not None


def read(file: Path) -> ImportRecord:
    """Raises KforgeError for a file that is not such a record."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise KforgeError(f"{file} is larger than {_MOST_BYTES} bytes: it is no imported operator")
        text = file.read_bytes()
    except OSError as error:
        raise KforgeError(f"cannot read {file}: {error.strerror}") from None
    try:
        record = ImportRecord.model_validate_json(text)
    except ValidationError as error:
        raise KforgeError(f"{file} is not the record of an import ({first_fault(error)}): import it again") from None
    if record.name != file.stem:
        raise KforgeError(f"{file} is the record of {record.name}: give the file its name, or import it again")
    return record


def write(record: ImportRecord, file: Path) -> None:
    write_whole(file, (record.model_dump_json(indent=1) + "\n").encode())


def first_fault(error: ValidationError) -> str:
    """The first thing that is wrong, in a few words of our own and pydantic's."""
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    text = " ".join(str(fault["msg"]).removeprefix("Value error, ").split())[:200]
    return f"{where}: {text}" if where else text
