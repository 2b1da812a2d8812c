"""Operators made of imported functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.errors import KforgeError
from kforge.core.layout import Layout
from kforge.core.workload import Problem, Workload
from kforge.operators import IMPORTED_VERSION, buckets, numerics
from kforge.operators.base import Arrays, Bound, Cost, Distribution, Operator, Residency, Role, TensorSpec
from kforge.operators.graph import AXIS, ELEMENTWISE, REDUCTIONS, Given, Graph, Kind, Op, Shape, Step, concrete
from kforge.operators.import_record import ImportRecord

if TYPE_CHECKING:
    import numpy as np

CONTIGUOUS = Layout.of("contiguous")  # dense, also where it has two dimensions: never a slice of a wider tensor
_CACHE_BYTES = 128 << 20  # a call that moves more, twice as two draws alternate, finds nothing in any cache
_LARGE_SHARE = 4  # a parameter of at least a quarter of such a call is streamed, as weights are
_FUNCTIONS = {Op.EXP, Op.LOG, Op.TANH, Op.SIGMOID, Op.ERF, Op.SIN, Op.COS, Op.POW, Op.SQRT, Op.RSQRT, Op.DIV,
              Op.RECIPROCAL}
_FUNCTION_OPERATIONS = 8  # of one of these: a polynomial's
_GENTLER = (1.0, 2.0**-3, 2.0**-6, 2.0**-9, 2.0**-12, 2.0**-15)  # scales of inputs, the first that leaves an answer
_PROBE_OPERATIONS = 20_000_000
_PROBE_BATCH = 4
_PEAKS = 500  # lines that get one, at most
_PEAKED = (Distribution.ONE_HOT, Distribution.HEAVY_TAIL)
_NOT_TAMED = (Distribution.NORMAL, Distribution.ROWS, Distribution.NAN, Distribution.INFINITE)
_SEED = 11


class Imported(Operator):
    """A function that was imported: float32 tensors, dense and row-major, what is given in order and then the outputs.

    The graph of the function's operations is the contract. B counts the rows of what has B as its first extent; where
    nothing has, the function is defined for one shape, B is 1 and without meaning.

    Bound. A running error analysis along the graph, element by element, times 4 (``running_error.py``, which derives
    it): other orders of evaluation pass, a wrong or a missing term does not. Elements of which float32 decides nothing
    (overflow on the way, a root of what may be negative, a quotient by what may be 0) are free.

    A NaN or an infinity comes out as IEEE arithmetic has it; a maximum, a minimum or a comparison may drop a NaN.
    """

    version = IMPORTED_VERSION
    static_axes = ("graph",)
    dynamic_axes = ("B",)

    def __init__(self, record: ImportRecord) -> None:
        self.name = record.name
        self.record = record
        self.graph: Graph = record.graph.made()
        self.batch = record.batch
        self.usual = {"graph": self.graph.hash, "B": self.batch}
        self.unfit = "; ".join(record.flags)
        self.row_axis = "B" if _rows_are_independent(self.graph) else ""
        self._scales: dict[Distribution, float | None] = {}

    @cached_property
    def problem(self) -> Problem:
        return Problem.of(self.name, graph=self.graph.hash)

    @property
    def workload(self) -> Workload:
        """At the example's batch."""
        return Workload.of(self.problem, B=self.batch)

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """Raises KforgeError for a problem that an earlier import under this name made."""
        batch = self._batch(workload)
        graph = self.graph
        shapes = [*(g.shape for g in graph.given), *(graph.shapes[name] for name in graph.outputs)]
        whole = 4 * sum(math.prod(concrete(shape, batch)) for shape in shapes)
        given = [TensorSpec(g.name, DType.F32, concrete(g.shape, batch), Role.IN, _residency(g, batch, whole),
                            CONTIGUOUS) for g in graph.given]
        names = output_names(graph)
        made = [TensorSpec(name, DType.F32, concrete(graph.shapes[value], batch), Role.OUT, Residency.HOT, CONTIGUOUS)
                for name, value in zip(names, graph.outputs, strict=True)]
        return (*given, *made)

    def _batch(self, workload: Workload) -> int:
        if workload.problem.static != self.problem.static:
            raise KforgeError(f"{workload.problem.key} is of another import: {self.name} is now {self.problem.key}")
        return workload.axes["B"] if self.graph.dynamic else 1

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        """Arguments follow the distribution, all of them or by lot one; parameters have the mean and spread that
        the original's had, and so has everything in timed calls. A distribution that leaves few elements of the outputs
        decided is drawn smaller, or, where that is no help, replaced by the usual one.

        ROWS: only where rows are independent of one another there are a NaN and an infinity among them.
        """
        if (scale := self._scale(distribution)) is None:
            distribution, scale = Distribution.NORMAL, 1.0
        return self._drawn(self._batch(workload), seed, distribution, scale)

    def _drawn(self, batch: int, seed: int, distribution: Distribution, scale: float) -> dict[str, np.ndarray]:
        import numpy as np

        rng = np.random.default_rng([seed, _SEED])
        arguments = [g.name for g in self.graph.given if g.kind is Kind.ARGUMENT]
        if distribution is Distribution.ROWS:
            follow = {g.name for g in self.graph.given if AXIS in g.shape} or set(arguments)
        else:
            follow = set(arguments) if rng.integers(2) else {arguments[int(rng.integers(len(arguments)))]}
        made = {}
        for given in self.graph.given:
            kind = distribution if given.name in follow else Distribution.NORMAL
            shape = concrete(given.shape, batch)
            if kind is Distribution.NORMAL:
                made[given.name] = _usual(rng, given, shape)
                continue
            rows = batch if AXIS in given.shape else max(1, math.prod(shape[:-1]))
            drawn = numerics.draw(rng, rows, math.prod(shape) // rows, kind).reshape(shape)
            if kind is Distribution.ROWS and not self.row_axis:
                drawn[~np.isfinite(drawn)] = 0
            drawn *= np.float32(scale * 2.0 ** round(math.log2(_spread(given))))  # exact: equal values stay so
            if kind in _PEAKED:
                self._place_peaks(drawn, given, seed)
            if given.positive and rng.integers(2):
                np.abs(drawn, out=drawn)
            made[given.name] = drawn
        return made

    def _place_peaks(self, drawn: np.ndarray, given: Given, seed: int) -> None:
        """Where extremes of this tensor are taken, that of a line stands in turn at its end, at its beginning and at a
        place of its own: an element that a kernel leaves out would hardly ever be one."""
        import numpy as np

        for step in self.graph.steps:
            if step.op not in (Op.MAX, Op.MIN) or self.graph.shapes[step.inputs[0]] != given.shape:
                continue
            lines = np.moveaxis(drawn, step.dims, range(-len(step.dims), 0))
            width = math.prod(lines.shape[-len(step.dims):])
            count = math.prod(lines.shape[:-len(step.dims)])
            for i, at in enumerate(np.linspace(0, count - 1, min(count, _PEAKS)).astype(int)):
                line = lines[np.unravel_index(at, lines.shape[:-len(step.dims)])]
                place = (-1, 0, (7919 * (seed + i)) % width)[(seed + i) % 3]
                extreme = 2 * np.abs(line[np.isfinite(line)]).max(initial=0) + 1
                line[np.unravel_index(place % width, line.shape)] = extreme if step.op is Op.MAX else -extreme

    def _scale(self, distribution: Distribution) -> float | None:
        """By how much this distribution is made smaller; None: it decides nothing at any size."""
        if distribution in _NOT_TAMED:
            return 1.0
        if distribution not in self._scales:
            self._scales[distribution] = self._probed(distribution)
        return self._scales[distribution]

    def _probed(self, distribution: Distribution) -> float | None:
        batch = min(self.batch, _PROBE_BATCH)
        if operations(self.graph, batch) > _PROBE_OPERATIONS:
            return 1.0
        for scale in _GENTLER:
            bounds = self._references(self._drawn(batch, 0, distribution, scale), batch)
            if all(bound.free is None or bound.free.mean() < 0.5 for bound in bounds):
                return scale
        return None

    def _references(self, inputs: Arrays, batch: int) -> list[Bound]:
        from kforge.operators.graph_reference import references

        return references(self.graph, inputs, batch)

    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        found = self._references(inputs, self._batch(workload))
        return dict(zip(output_names(self.graph), found, strict=True))

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        raise KforgeError(f"{self.name} was imported and has no order specification: declare its kernels relaxed")

    def cost(self, workload: Workload) -> Cost:
        """All that is given and returned, once. Two operations for a multiply-add of a product of matrices, one for an
        element of simple arithmetic, eight for one of a function."""
        moved = sum(spec.bytes for spec in self.tensors(workload))
        count = operations(self.graph, self._batch(workload))
        streamed = moved if moved > _CACHE_BYTES else 0
        return Cost(streamed, moved - streamed, (("fp32_fma", count),))

    def points(self) -> tuple[int, ...]:
        """B's buckets: powers of two below the example's batch, and this."""
        return (*(1 << i for i in range((self.batch - 1).bit_length())), self.batch)

    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        return {"B": buckets.point(self.points(), dynamic["B"])}

    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        sizes = buckets.inside(self.points(), workload.axes["B"], seed) if self.graph.dynamic else [1]
        return [Workload.of(workload.problem, workload.count, workload.phase, B=b) for b in sizes]


def output_names(graph: Graph) -> tuple[str, ...]:
    """Names of the tensors that are written: ``out``, or ``out0``, ``out1``, ... where there are several."""
    count = len(graph.outputs)
    return ("out",) if count == 1 else tuple(f"out{i}" for i in range(count))


def operations(graph: Graph, batch: int) -> int:
    """Arithmetic operations of one evaluation as the graph stands."""
    return sum(_step_operations(graph, step, batch) for step in graph.steps)


def peak_bytes(graph: Graph, batch: int) -> int:
    """Most bytes of values, as float32, that are needed at one time when the steps are taken in order."""
    size = {name: 4 * math.prod(concrete(shape, batch)) for name, shape in graph.shapes.items()}
    last = {name: i for i, step in enumerate(graph.steps) for name in step.inputs}
    kept = {*(given.name for given in graph.given), *graph.outputs}
    live = peak = sum(size[given.name] for given in graph.given)
    for i, step in enumerate(graph.steps):
        live += size[step.name]
        peak = max(peak, live)
        live -= sum(size[name] for name in {*step.inputs, step.name} - kept if last.get(name, i) <= i)
    return peak


def _step_operations(graph: Graph, step: Step, batch: int) -> int:
    def size(shape: Shape) -> int:
        return math.prod(concrete(shape, batch))

    if step.op is Op.MATMUL:
        return 2 * size(step.shape) * size(graph.shapes[step.inputs[0]][-1:])
    if step.op in REDUCTIONS:
        return size(graph.shapes[step.inputs[0]])
    if step.op in ELEMENTWISE:
        return size(step.shape) * (_FUNCTION_OPERATIONS if step.op in _FUNCTIONS else 1)
    return 0


def _rows_are_independent(graph: Graph) -> bool:
    """Whether row b of every output depends on row b of what is given alone: B stands in no value twice, and first
    in what is given and returned."""
    if not graph.dynamic or any(shape.count(AXIS) > 1 for shape in graph.shapes.values()):
        return False
    return all(graph.shapes[name][:1] == (AXIS,) for name in graph.outputs)


def _residency(given: Given, batch: int, whole: int) -> Residency:
    large = 4 * math.prod(concrete(given.shape, batch)) * _LARGE_SHARE >= whole > _CACHE_BYTES
    return Residency.STREAMED if large and given.kind is Kind.PARAMETER else Residency.HOT


def _spread(given: Given) -> float:
    """Values that are all the same, such as a norm's initial weights, would hide whether they are read at all."""
    return given.spread if given.spread > 1e-3 * abs(given.mean) and given.spread > 0 else 0.25 * (abs(given.mean) or 1)


def _usual(rng: np.random.Generator, given: Given, shape: tuple[int, ...]) -> np.ndarray:
    import numpy as np

    made = np.asarray(numerics.normals(rng, shape)).reshape(shape)
    made = made * np.float32(_spread(given)) + np.float32(given.mean)
    return np.abs(made) if given.positive else made
