"""Graphs such as an import makes, each with something that is hard about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kforge.operators.graph import Given, Graph, Kind, Op, Shape, Step, result_shape
from kforge.operators.import_record import GraphRecord, ImportRecord
from kforge.operators.imported import Imported


class Maker:
    """Writes a graph step by step; a method's name is an operation's, values are named by number."""

    def __init__(self) -> None:
        self.given: list[Given] = []
        self.steps: list[Step] = []
        self.shapes: dict[str, Shape] = {}

    def argument(self, *shape: int | str, kind: Kind = Kind.ARGUMENT) -> str:
        name = f"x{len(self.given)}"
        self.given.append(Given(name, shape, kind))
        self.shapes[name] = shape
        return name

    def weight(self, *shape: int) -> str:
        return self.argument(*shape, kind=Kind.PARAMETER)

    def scalar(self, value: float) -> str:
        return self._add(Step(f"v{len(self.steps)}", Op.SCALAR, (), (), value))

    def __getattr__(self, name: str) -> Callable[..., str]:
        def make(
            *inputs: str | float, shape: Shape = (), dims: tuple[int, ...] = (), bounds: tuple[int, int] = (0, 0)
        ) -> str:
            names = tuple(i if isinstance(i, str) else self.scalar(i) for i in inputs)
            step = Step(f"v{len(self.steps)}", Op(name), names, shape, 0.0, dims, bounds)
            return self._add(
                Step(step.name, step.op, names, result_shape(step, [self.shapes[n] for n in names]), 0.0, dims, bounds)
            )

        return make

    def _add(self, step: Step) -> str:
        self.steps.append(step)
        self.shapes[step.name] = step.shape
        return step.name

    def mean(self, x: str, dims: tuple[int, ...]) -> str:
        return self.div(self.sum(x, dims=dims), float(math.prod(self.shapes[x][d] for d in dims)))

    def softmax(self, x: str, dim: int) -> str:
        e = self.exp(self.sub(x, self.max(x, dims=(dim,))))
        return self.div(e, self.sum(e, dims=(dim,)))

    def linear(self, x: str, n: int) -> str:
        """As torch has it: the weight is [N, K]."""
        w, b = self.weight(n, self.shapes[x][-1]), self.weight(n)
        return self.add(self.matmul(x, self.permute(w, dims=(1, 0))), b)

    def gelu(self, x: str) -> str:
        return self.mul(self.mul(x, 0.5), self.add(self.erf(self.mul(x, math.sqrt(0.5))), 1.0))

    def graph(self, *outputs: str) -> Graph:
        return Graph(tuple(self.given), tuple(self.steps), outputs)


def _softmax(m: Maker) -> Sequence[str]:
    return [m.softmax(m.argument("B", 83), 1)]


def _softmax_of_long_rows(m: Maker) -> Sequence[str]:
    return [m.softmax(m.argument("B", 9001), 1)]


def _rms_norm_of_channels(m: Maker) -> Sequence[str]:
    x = m.argument("B", 6, 5, 11)
    return [m.div(x, m.sqrt(m.add(m.mean(m.square(x), (1,)), 1e-5)))]


def _layer_norm(m: Maker) -> Sequence[str]:
    x = m.argument("B", 4, 3, 9)
    d = m.sub(x, m.mean(x, (1, 2, 3)))
    y = m.mul(d, m.rsqrt(m.add(m.mean(m.square(d), (1, 2, 3)), 1e-5)))
    return [m.add(m.mul(y, m.weight(4, 3, 9)), m.weight(4, 3, 9))]


def _middle_sum(m: Maker) -> Sequence[str]:
    return [m.sum(m.argument("B", 9, 37), dims=(1,))]


def _mean_of_rows_and_channels(m: Maker) -> Sequence[str]:
    return [m.mean(m.argument("B", 5, 7, 6), (1, 3))]


def _whole_sum(m: Maker) -> Sequence[str]:
    return [m.reshape(m.sqrt(m.sum(m.square(m.argument(50, 333)), dims=(0, 1))), shape=())]


def _new_gelu(m: Maker) -> Sequence[str]:
    x = m.argument("B", 33)
    inner = m.mul(m.add(x, m.mul(m.pow(x, 3.0), 0.044715)), math.sqrt(2 / math.pi))
    return [m.mul(m.mul(x, 0.5), m.add(m.tanh(inner), 1.0))]


def _everything_elementwise(m: Maker) -> Sequence[str]:
    x, y = m.argument("B", 5, 7), m.argument(7)
    a = m.where(m.less(x, y), m.neg(m.abs(x)), m.minimum(m.relu(x), y))
    b = m.maximum(m.sin(x), m.cos(m.sub(x, y)))
    c = m.mul(m.log(m.add(m.square(x), 1.0)), m.reciprocal(m.add(m.abs(y), 0.5)))
    d = m.pow(m.add(m.abs(x), 0.25), m.sigmoid(y))
    return [m.add(m.add(a, b), m.add(c, d)), m.less_equal(y, x)]


def _tall_and_skinny(m: Maker) -> Sequence[str]:
    return [m.matmul(m.argument(301, 5), m.argument(5, 133))]


def _deep(m: Maker) -> Sequence[str]:
    return [m.matmul(m.argument("B", 700), m.weight(700, 90))]


def _linear_mul_leaky_relu(m: Maker) -> Sequence[str]:
    y = m.mul(m.linear(m.argument("B", 37), 70), 2.0)
    return [m.where(m.less(0.0, y), y, m.mul(y, 0.1))]


def _linear_scale_residual(m: Maker) -> Sequence[str]:
    y = m.linear(m.argument("B", 64), 48)
    return [m.add(m.mul(y, 0.5), y)]


def _linear_relu_div(m: Maker) -> Sequence[str]:
    return [m.div(m.relu(m.linear(m.argument("B", 19), 129)), 2.0)]


def _linear_sigmoid_scale_residual(m: Maker) -> Sequence[str]:
    y = m.linear(m.argument("B", 128), 33)
    return [m.add(m.mul(m.sigmoid(y), 2.0), y)]


def _linear_div_gelu(m: Maker) -> Sequence[str]:
    return [m.gelu(m.div(m.linear(m.argument("B", 50), 41), 10.0))]


def _linear_gelu_softmax(m: Maker) -> Sequence[str]:
    return [m.softmax(m.gelu(m.linear(m.argument("B", 24), 100)), 1)]


def _linear_of_tokens(m: Maker) -> Sequence[str]:
    """Three dimensions, of which two are rows; split into heads behind it."""
    y = m.linear(m.argument("B", 7, 20), 24)
    return [m.permute(m.reshape(y, shape=("B", 7, 4, 6)), dims=(0, 2, 1, 3))]


def _slices_and_concats(m: Maker) -> Sequence[str]:
    x, y = m.argument("B", 12, 5), m.argument("B", 3, 5)
    left, right = m.slice(x, dims=(1,), bounds=(0, 4)), m.slice(x, dims=(1,), bounds=(7, 12))
    return [m.concat(m.exp(left), y, m.mul(right, 2.0), y, dims=(1,)), m.slice(x, dims=(2,), bounds=(1, 4))]


def _attention(m: Maker) -> Sequence[str]:
    q, k, v = (m.argument("B", 3, 17, 8) for _ in range(3))
    s = m.mul(m.matmul(q, m.permute(k, dims=(0, 1, 3, 2))), 8**-0.5)
    return [m.matmul(m.softmax(s, 3), v)]


def _reshapes(m: Maker) -> Sequence[str]:
    """Over what is computed: in runs that have to be split, and in such as no split helps; and over memory."""
    x, y = m.argument("B", 6, 20), m.argument(10, 21)
    halves = m.reshape(m.mul(x, 2.0), shape=("B", 3, 40))
    return [
        m.add(m.permute(halves, dims=(0, 2, 1)), 1.0),
        m.neg(m.reshape(m.exp(y), shape=(14, 15))),
        m.reshape(y, shape=(6, 35)),
    ]


def _what_was_given(m: Maker) -> Sequence[str]:
    """An argument as an output, a value twice, a transposed one, and a matrix times a column."""
    x, w = m.argument("B", 30), m.weight(30, 1)
    y = m.exp(x)
    return [x, y, y, m.permute(y, dims=(1, 0)), m.matmul(x, w)]


def _matrix_times_columns(m: Maker) -> Sequence[str]:
    """Products that are sums: with one column, and with one row."""
    x, w = m.argument("B", 9, 33), m.weight(33, 1)
    return [m.matmul(x, w), m.matmul(m.argument("B", 1, 18), m.argument("B", 18, 21))]


def _loss(m: Maker) -> Sequence[str]:
    """One number of many, and what needs it."""
    x, y = m.argument(320, 450), m.argument(320, 450)
    d = m.sub(x, y)
    norm = m.sqrt(m.sum(m.square(d), dims=(0, 1)))
    return [m.mean(m.abs(d), (0, 1)), m.div(x, norm)]


def _long_layer_norm(m: Maker) -> Sequence[str]:
    x = m.argument(3, 70_001)
    d = m.sub(x, m.mean(x, (1,)))
    return [m.mul(d, m.rsqrt(m.add(m.mean(m.square(d), (1,)), 1e-5)))]


def _very_long_softmax(m: Maker) -> Sequence[str]:
    return [m.softmax(m.argument(3, 70_001), 1)]


def _dimensions_of_one(m: Maker) -> Sequence[str]:
    """Nothing to loop over, in reductions as well as before them."""
    x = m.argument(1, 1)
    return [m.softmax(x, 1), m.matmul(m.max(m.tanh(x), dims=(0, 1)), m.argument(1, 1))]


def _two_norms(m: Maker) -> Sequence[str]:
    """Reductions of one value over different dimensions, each needed by the other's readers."""
    x = m.argument(9, 40, 21)
    a = m.sub(x, m.max(x, dims=(2,)))
    b = m.div(a, m.add(m.sum(m.abs(a), dims=(1,)), 1.0))
    return [m.mul(b, m.min(x, dims=(2,))), m.sum(b, dims=(0, 2))]


GRAPHS: dict[str, Callable[[Maker], Sequence[str]]] = {
    name.strip("_"): made
    for name, made in list(globals().items())
    if name.startswith("_") and callable(made) and getattr(made, "__annotations__", {}).get("m") == "Maker"
}


def graph_of(name: str) -> Graph:
    maker = Maker()
    outputs = GRAPHS[name](maker)
    return maker.graph(*outputs)


def operator_of(graph: Graph) -> Imported:
    return Imported(
        ImportRecord(name="made", source="a test", source_hash="0" * 16, graph=GraphRecord.of(graph), batch=5)
    )
