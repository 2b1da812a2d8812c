"""Definitions of dense operators as kforge's: normalisation, matrix product, gated activation, rows of tables."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kforge.core.defaults import DEFAULT_ROWS
from kforge.core.dtypes import WeightFormat
from kforge.core.workload import Problem, Workload
from kforge.interchange import schema
from kforge.interchange.mapping import FLOATS, INTEGERS, Call, Foreign, Given, Tables, exact_normals, widened
from kforge.interchange.schema import Definition, Tensor, parsed
from kforge.operators.base import Bound

if TYPE_CHECKING:
    import numpy as np

_TOKENS = 5  # of an example
_EPS = (1e-5, 1e-6)  # tried as eps where the reference names no constant


@dataclass(frozen=True)
class Signature:
    """A definition's tensors by their kinds, each a list of names in order."""

    definition: Definition
    tensors: tuple[str, ...]
    scalars: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, definition: Definition) -> Signature:
        names = definition.inputs
        return cls(
            definition,
            tuple(n for n in names if names[n].shape is not None),
            tuple(n for n in names if names[n].shape is None),
            tuple(definition.outputs),
        )

    def tensor(self, name: str) -> Tensor:
        return {**self.definition.inputs, **self.definition.outputs}[name]

    def extents(self, name: str) -> tuple[int | str, ...]:
        """A tensor's shape: numbers for const axes, names for var ones."""
        const = self.definition.const
        return tuple(const.get(axis, axis) for axis in self.tensor(name).shape or ())

    def axis(self, name: str, i: int) -> str:
        return (self.tensor(name).shape or ())[i]

    def floats(self, *names: str) -> bool:
        return all(self.tensor(name).dtype in FLOATS for name in names)


@dataclass(frozen=True)
class RmsNormTranslation(Foreign):
    x: str
    weight: str
    residual: str  # "" without
    eps_input: str  # "" where the reference holds it
    eps: float
    out: str
    residual_out: str  # "" where it is not an output

    @classmethod
    def match(cls, definition: Definition) -> Foreign | str:
        s = Signature.of(definition)
        rows = [n for n in s.tensors if len(s.extents(n)) == 2]
        vectors = [n for n in s.tensors if len(s.extents(n)) == 1]
        residual = [n for n in rows if "residual" in n.lower()]
        x = [n for n in rows if n not in residual]
        if len(x) != 1 or len(vectors) != 1 or len(residual) > 1 or len(rows) + 1 != len(s.tensors):
            return "rms_norm takes x[T, H], weight[H] and perhaps a residual[T, H]"
        tokens, hidden = s.extents(x[0])
        outputs = [n for n in s.outputs if s.extents(n) == (tokens, hidden)]
        updated = [n for n in outputs if "residual" in n.lower()] if residual else []
        made = [n for n in outputs if n not in updated]
        wrong = any(s.extents(n) != (tokens, hidden) for n in rows) or s.extents(vectors[0]) != (hidden,)
        if wrong or not isinstance(tokens, str) or not isinstance(hidden, int) or len(outputs) != len(s.outputs):
            return "rms_norm has rows of one constant width H and any number of tokens"
        if len(made) != 1 or len(updated) > 1 or len(s.scalars) > 1:
            return "rms_norm makes one normalised output, and the sum where there is a residual"
        if not s.floats(*s.tensors, *s.outputs, *s.scalars):
            return "rms_norm's tensors are floats of 16 or 32 bits"
        return cls(
            definition,
            Problem.of("rms_norm", H=hidden, residual=len(residual)),
            x[0],
            vectors[0],
            "".join(residual),
            "".join(s.scalars),
            _EPS[0],
            made[0],
            "".join(updated),
        )

    @property
    def differences(self) -> tuple[str, ...]:
        said = widened(self.definition)
        if not self.eps_input:
            said.append(f"eps {self.eps:g} is given at each call")
        if self.residual and not self.residual_out:
            said.append(f"{self.residual} becomes {self.x} + {self.residual}, which the definition does not return")
        return tuple(said)

    def small(self) -> dict[str, int]:
        return {_last_axis(self.definition, self.x): min(96, self.problem.int("H"))}

    def variants(self) -> tuple[Foreign, ...]:
        if self.eps_input:
            return (self,)
        named = [
            n.value
            for n in ast.walk(parsed(self.definition.reference))
            if isinstance(n, ast.Constant) and isinstance(n.value, float) and 0 < n.value < 0.01
        ]
        return tuple(dataclasses.replace(self, eps=eps) for eps in dict.fromkeys((*named, *_EPS)))

    def example(self, rng: np.random.Generator) -> dict[str, np.ndarray | float]:
        hidden = self.problem.int("H")
        made: dict[str, np.ndarray | float] = {}
        for name in self.definition.inputs:
            if name == self.eps_input:
                made[name] = 3e-6
            elif name == self.weight:
                made[name] = exact_normals(rng, (hidden,))
            else:
                x = exact_normals(rng, (_TOKENS, hidden))
                x[1::2] *= 2.0**-9  # there eps weighs as much as the squares
                made[name] = x
        return made

    def call(self, given: Given) -> Call:
        import numpy as np

        x = np.asarray(given[self.x])
        inputs = {
            "x": x,
            "weight": np.asarray(given[self.weight]),
            "eps": np.array(given[self.eps_input] if self.eps_input else self.eps, np.float64),
        }
        if self.residual:
            inputs["residual"] = np.asarray(given[self.residual])
        return Call(Workload.of(self.problem, T=len(x)), inputs)

    def outputs(self, made: Mapping[str, Bound]) -> dict[str, Bound]:
        return {self.out: made["out"], **({self.residual_out: made["residual"]} if self.residual_out else {})}

    def axes(self, workload: schema.Workload, tables: Tables) -> dict[str, int]:
        return {"T": workload.axes[(self.definition.inputs[self.x].shape or ())[0]]}


@dataclass(frozen=True)
class LinearTranslation(Foreign):
    x: str
    w: str
    bias: str  # "" without
    out: str

    @classmethod
    def match(cls, definition: Definition) -> Foreign | str:
        s = Signature.of(definition)
        if s.scalars or len(s.tensors) not in (2, 3) or len(s.outputs) != 1:
            return "linear takes A[M, K], B[N, K] and perhaps a bias[N]; scales of other number formats it has not"
        x, w, *bias = s.tensors
        if not s.floats(*s.tensors, *s.outputs):
            return "linear's tensors are floats of 16 or 32 bits; its integer formats are those of GGUF"
        if len(s.extents(x)) != 2 or len(s.extents(w)) != 2:
            return "linear takes matrices"
        (m, k), (n, wk) = s.extents(x), s.extents(w)
        if not isinstance(m, str) or not isinstance(k, int) or not isinstance(n, int):
            return "linear has any number M of rows, and constant N and K"
        if wk != k or s.axis(w, 1) != s.axis(x, 1) or s.extents(s.outputs[0]) != (m, n):
            return "linear is A[M, K] times the transpose of B[N, K]"
        if bias and s.extents(bias[0]) != (n,):
            return "linear's third input is a bias[N]"
        problem = Problem.of(
            "linear",
            K=k,
            N=n,
            weight=WeightFormat(FLOATS[s.tensor(w).dtype].value).value,
            act="f32",
            epilogue="none",
            bias=len(bias),
            rows=DEFAULT_ROWS,
        )
        return cls(definition, problem, x, w, "".join(bias), s.outputs[0])

    @property
    def differences(self) -> tuple[str, ...]:
        return (*widened(self.definition), f"{self.w} packed in panels by kforge")

    def small(self) -> dict[str, int]:
        k, n = _last_axis(self.definition, self.x), (self.definition.inputs[self.w].shape or ())[0]
        return {n: min(80, self.problem.int("N")), k: min(96, self.problem.int("K"))}  # one axis may be both

    def example(self, rng: np.random.Generator) -> dict[str, np.ndarray | float]:
        n, k = self.problem.int("N"), self.problem.int("K")
        shapes = {self.x: (_TOKENS, k), self.w: (n, k), self.bias: (n,)}
        return {name: exact_normals(rng, shapes[name]) for name in self.definition.inputs}

    def call(self, given: Given) -> Call:
        import numpy as np

        x = np.asarray(given[self.x])
        inputs = {"x": x, "w": _packed(self.problem, np.asarray(given[self.w]))}
        if self.bias:
            inputs["bias"] = np.asarray(given[self.bias])
        return Call(Workload.of(self.problem, M=len(x)), inputs)

    def outputs(self, made: Mapping[str, Bound]) -> dict[str, Bound]:
        return {self.out: made["out"]}

    def axes(self, workload: schema.Workload, tables: Tables) -> dict[str, int]:
        return {"M": workload.axes[(self.definition.inputs[self.x].shape or ())[0]]}


@dataclass(frozen=True)
class SiluMulTranslation(Foreign):
    gate_up: str
    out: str

    @classmethod
    def match(cls, definition: Definition) -> Foreign | str:
        s = Signature.of(definition)
        if s.scalars or len(s.tensors) != 1 or len(s.outputs) != 1 or not s.floats(*s.tensors, *s.outputs):
            return "silu_mul takes gate and up side by side in one float tensor [T, 2I]"
        given, made = s.extents(s.tensors[0]), s.extents(s.outputs[0])
        if len(given) != 2 or len(made) != 2 or not isinstance(given[0], str) or given[0] != made[0]:
            return "silu_mul has any number of tokens and a constant width"
        if not isinstance(made[1], int) or given[1] != 2 * made[1]:
            return "silu_mul makes [T, I] of [T, 2I]; kforge has no operator for a SiLU alone"
        return cls(definition, Problem.of("silu_mul", I=made[1]), s.tensors[0], s.outputs[0])

    @property
    def differences(self) -> tuple[str, ...]:
        return tuple(widened(self.definition))

    def small(self) -> dict[str, int]:
        half = min(48, self.problem.int("I"))
        both = (self.definition.inputs[self.gate_up].shape or ())[1], (self.definition.outputs[self.out].shape or ())[1]
        return dict(zip(both, (2 * half, half), strict=True))

    def example(self, rng: np.random.Generator) -> dict[str, np.ndarray | float]:
        return {self.gate_up: exact_normals(rng, (_TOKENS, 2 * self.problem.int("I")), 3)}

    def call(self, given: Given) -> Call:
        import numpy as np

        x = np.asarray(given[self.gate_up])
        return Call(Workload.of(self.problem, T=len(x)), {"gate_up": x})

    def outputs(self, made: Mapping[str, Bound]) -> dict[str, Bound]:
        return {self.out: made["out"]}

    def axes(self, workload: schema.Workload, tables: Tables) -> dict[str, int]:
        return {"T": workload.axes[(self.definition.inputs[self.gate_up].shape or ())[0]]}


@dataclass(frozen=True)
class RowsTranslation(Foreign):
    """``embedding`` where the table is constant, ``gather_rows`` where it has any number of rows."""

    table: str
    index: str
    out: str

    @classmethod
    def match(cls, definition: Definition) -> Foreign | str:
        s = Signature.of(definition)
        index = [n for n in s.tensors if s.tensor(n).dtype in INTEGERS]
        tables = [n for n in s.tensors if n not in index]
        if s.scalars or len(index) != 1 or len(tables) != 1 or len(s.outputs) != 1:
            return "it takes one table [V, H] of floats and one index [T] of integers"
        if not s.floats(*tables, *s.outputs) or len(s.extents(tables[0])) != 2 or len(s.extents(index[0])) != 1:
            return "it takes rows of a table of floats of 16 or 32 bits"
        (v, h), (t,) = s.extents(tables[0]), s.extents(index[0])
        if not isinstance(h, int) or not isinstance(t, str) or s.extents(s.outputs[0]) != (t, h):
            return "it makes rows [T, H] of one constant width"
        if isinstance(v, int):
            weight = FLOATS[s.tensor(tables[0]).dtype].value
            problem = Problem.of("embedding", V=v, H=h, weight=weight, rows=DEFAULT_ROWS)
        else:
            problem = Problem.of("gather_rows", H=h)
        return cls(definition, problem, tables[0], index[0], s.outputs[0])

    @property
    def differences(self) -> tuple[str, ...]:
        packed = self.problem.operator == "embedding"
        said = [f"{self.out} made in float32, exactly"] if packed else widened(self.definition)
        if packed:
            said.append(f"{self.table} packed in panels by kforge")
        if self.definition.inputs[self.index].dtype is schema.ElementType.INT64:
            said.append(f"{self.index} is int32")
        return tuple(said)

    def small(self) -> dict[str, int]:
        rows, width = self.definition.inputs[self.table].shape or ()
        made = {width: min(64, self.problem.int("H"))}
        if self.problem.operator == "embedding" and rows != width:
            made[rows] = min(50, self.problem.int("V"))
        return made

    def example(self, rng: np.random.Generator) -> dict[str, np.ndarray | float]:
        import numpy as np

        rows = self.problem.int("V") if self.problem.operator == "embedding" else 17
        table = exact_normals(rng, (rows, self.problem.int("H")))
        index = rng.integers(0, rows, _TOKENS).astype(np.int64)
        return {name: table if name == self.table else index for name in self.definition.inputs}

    def call(self, given: Given) -> Call:
        import numpy as np

        table, index = np.asarray(given[self.table]), np.asarray(given[self.index]).astype(np.int32)
        if self.problem.operator == "embedding":
            return Call(Workload.of(self.problem, T=len(index)), {"ids": index, "table": _packed(self.problem, table)})
        return Call(Workload.of(self.problem, R=len(index), T=len(table)), {"x": table, "index": index})

    def outputs(self, made: Mapping[str, Bound]) -> dict[str, Bound]:
        return {self.out: made["out"]}

    def axes(self, workload: schema.Workload, tables: Tables) -> dict[str, int]:
        tokens = workload.axes[(self.definition.inputs[self.index].shape or ())[0]]
        if self.problem.operator == "embedding":
            return {"T": tokens}
        return {"R": tokens, "T": workload.axes[(self.definition.inputs[self.table].shape or ())[0]]}


@dataclass(frozen=True)
class ArgmaxTranslation(Foreign):
    logits: str
    out: str

    @classmethod
    def match(cls, definition: Definition) -> Foreign | str:
        s = Signature.of(definition)
        if s.scalars or len(s.tensors) != 1 or len(s.outputs) != 1 or not s.floats(*s.tensors):
            return "argmax takes logits [R, V] and nothing else"
        given = s.extents(s.tensors[0])
        whole = len(given) == 2 and isinstance(given[0], str) and isinstance(given[1], int)
        if not whole or s.extents(s.outputs[0]) != given[:1] or s.tensor(s.outputs[0]).dtype not in INTEGERS:
            return "argmax makes one whole number of each row of constant width"
        return cls(definition, Problem.of("argmax", V=int(given[1])), s.tensors[0], s.outputs[0])

    @property
    def differences(self) -> tuple[str, ...]:
        said = widened(self.definition)
        if self.definition.outputs[self.out].dtype is schema.ElementType.INT64:
            said.append(f"{self.out} is int32")
        return tuple(said)

    def small(self) -> dict[str, int]:
        return {_last_axis(self.definition, self.logits): min(100, self.problem.int("V"))}

    def example(self, rng: np.random.Generator) -> dict[str, np.ndarray | float]:
        logits = exact_normals(rng, (_TOKENS, self.problem.int("V")))
        logits[-1, -2:] = 100.0  # of equal ones the first
        return {self.logits: logits}

    def call(self, given: Given) -> Call:
        import numpy as np

        x = np.asarray(given[self.logits])
        return Call(Workload.of(self.problem, R=len(x)), {"logits": x})

    def outputs(self, made: Mapping[str, Bound]) -> dict[str, Bound]:
        return {self.out: made["out"]}

    def axes(self, workload: schema.Workload, tables: Tables) -> dict[str, int]:
        return {"R": workload.axes[(self.definition.inputs[self.logits].shape or ())[0]]}


def _last_axis(definition: Definition, name: str) -> str:
    return (definition.inputs[name].shape or ())[-1]


def _packed(problem: Problem, values: np.ndarray) -> np.ndarray:
    """float32 values as the packed weight of a problem with a float format."""
    from kforge.core.dtypes import DType
    from kforge.operators import layouts, numerics

    format = WeightFormat(problem.str("weight"))
    raw = numerics.narrow(values, DType(format.value))
    weight = layouts.from_gguf(raw, format, *values.shape)
    return layouts.pack(weight, layouts.panel_layout(problem.int("rows")))
