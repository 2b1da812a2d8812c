"""kforge's problems as FlashInfer-Bench definitions, with workloads at chosen axes: what is exported, and known again.

The schema has no unsigned bytes and no packed tensors: a packed weight is ``int8[bytes]``, its layout told in the
tensor's description. An operator's in-out tensor is an input and an output with ``_out`` behind its name. An axis that
bounds values and is no extent of a tensor (``max_context``) is no axis there.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.errors import KforgeError
from kforge.core.workload import Problem, Workload
from kforge.interchange import schema
from kforge.interchange.mapping import Tables, Translation, workload_at
from kforge.interchange.schema import Axis, Definition, ElementType, Tensor
from kforge.operators import get
from kforge.operators.base import DENSE, Role, TensorSpec
from kforge.operators.experts import grouped
from kforge.operators.imported import Imported

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

TAG = "kforge:"  # before the problem's key
PACKED = frozenset({DType.U8})
OP_TYPES = {
    "linear": "gemm",
    "rms_norm": "rmsnorm",
    "paged_attention": "gqa_paged",
    "silu_mul": "silu",
    "rope_kv_write": "rope",
}  # the others' are the operators' own names
_TYPES = {
    DType.F32: ElementType.FLOAT32,
    DType.F16: ElementType.FLOAT16,
    DType.BF16: ElementType.BFLOAT16,
    DType.I8: ElementType.INT8,
    DType.U8: ElementType.INT8,
    DType.I32: ElementType.INT32,
    DType.I64: ElementType.INT64,
}
_MARK = "ATTRIBUTES: dict = {}"
# Names of the tensors' extents. What is not listed here is called TENSOR_I.
_EXTENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "rms_norm": {"x": ("T", "H"), "weight": ("H",), "residual": ("T", "H"), "out": ("T", "H")},
    "linear": {"x": ("M", "K"), "w": ("w_bytes",), "bias": ("N",), "residual": ("M", "N"), "out": ("M", "N")},
    "embedding": {"ids": ("T",), "table": ("table_bytes",), "out": ("T", "H")},
    "silu_mul": {"gate_up": ("T", "gate_up_width"), "out": ("T", "I")},
    "gather_rows": {"x": ("T", "H"), "index": ("R",), "out": ("R", "H")},
    "argmax": {"logits": ("R", "V"), "out": ("R",)},
    "moe_route": {
        "logits": ("T", "E"),
        "ids": ("T", "k"),
        "weights": ("T", "k"),
        "order": ("slots",),
        "expert_start": ("expert_starts",),
    },
    "moe_linear": {
        "x": ("slots", "K"),
        "order": ("slots",),
        "expert_start": ("expert_starts",),
        "w": ("w_bytes",),
        "bias": ("E", "N"),
        "out": ("slots", "N"),
    },
    "moe_combine": {"x": ("slots", "H"), "weights": ("T", "k"), "out": ("T", "H")},
    "paged_attention": {
        "q": ("T", "q_width"),
        "k_cache": ("pages", "Hkv", "D", "P"),
        "v_cache": ("pages", "Hkv", "P", "D"),
        "k_scale": ("pages", "Hkv", "P"),
        "v_scale": ("pages", "Hkv", "P"),
        "block_table": ("S", "B"),
        "query_start": ("starts",),
        "context": ("S",),
        "sinks": ("Hq",),
        "out": ("T", "q_width"),
    },
    "rope_kv_write": {
        "qkv": ("T", "qkv_width"),
        "position": ("T",),
        "slot": ("T",),
        "cos": ("positions", "half_D"),
        "sin": ("positions", "half_D"),
        "q_out": ("T", "q_width"),
        "k_cache": ("pages", "Hkv", "D", "P"),
        "v_cache": ("pages", "Hkv", "P", "D"),
        "k_scale": ("pages", "Hkv", "P"),
        "v_scale": ("pages", "Hkv", "P"),
    },
}
_EXTENTS["qk_norm_rope_kv_write"] = _EXTENTS["rope_kv_write"] | {"q_norm": ("D",), "k_norm": ("D",)}


def operator_of(problem: Problem) -> str:
    """The type under which a problem's files stand."""
    return OP_TYPES.get(problem.operator, problem.operator)


def name_of(problem: Problem) -> str:
    """A definition's name: the operator, its version, its attributes."""
    static = "_".join(f"{k}{v}" for k, v in problem.static)
    whole = f"kforge_{problem.operator}_v{get(problem.operator).version}_{static}"
    return re.sub(r"[^A-Za-z0-9_.-]", "-", whole)


@cache
def definition_of(problem: Problem) -> Definition:
    """Raises ValueError for a problem that its operator does not have."""
    extents = _Extents(problem)
    inputs, outputs = {}, {}
    for spec in extents.specs:
        tensor = Tensor(shape=extents.names(spec), dtype=_TYPES[spec.dtype], description=_described(spec))
        if spec.role is not Role.OUT:
            inputs[spec.name] = tensor
        if spec.role is not Role.IN:
            outputs[spec.name if spec.role is Role.OUT else f"{spec.name}_out"] = tensor
    for scalar in get(problem.operator).scalar_names:
        inputs[scalar] = Tensor(shape=None, dtype=ElementType.FLOAT32, description="given at each call")
    used = {axis for t in (*inputs.values(), *outputs.values()) for axis in t.shape or ()}
    return Definition(
        name=name_of(problem),
        op_type=operator_of(problem),
        axes={name: axis for name, axis in extents.axes.items() if name in used},
        inputs=inputs,
        outputs=outputs,
        reference=_reference(problem),
        tags=("status:verified", f"{TAG}{problem.key}"),
        description=f"{problem.key} of kforge: operator {problem.operator}, version {get(problem.operator).version}, "
        "with the attributes that a kernel is compiled for.",
        constraints=("starts == S + 1",) if "starts" in used else (),
    )


def workload_of(problem: Problem, workload: Workload, folder: str) -> schema.Workload:
    """A workload of its definition. Index tensors and packed weights lie in safetensors in ``folder``, relative to the
    dataset: random bytes would be neither valid indices nor finite scales."""
    definition = definition_of(problem)
    number = str(uuid.uuid5(uuid.NAMESPACE_URL, workload.key))
    scalars = dict(zip(get(problem.operator).scalar_names, get(problem.operator).scalars(workload), strict=True))
    specs = {spec.name: spec for spec in get(problem.operator).tensors(workload)}
    inputs = {}
    for name in definition.inputs:
        if name in scalars:
            inputs[name] = schema.Source(type="scalar", value=scalars[name])
        elif specs[name].dtype in PACKED:
            inputs[name] = schema.Source(
                type="safetensors", path=f"{folder}/{definition.name}_weights.safetensors", tensor_key=name
            )
        elif specs[name].dtype is DType.I32:
            inputs[name] = schema.Source(
                type="safetensors", tensor_key=name, path=f"{folder}/{definition.name}_{number}.safetensors"
            )
        else:
            inputs[name] = schema.Source(type="random")
    known = _bound(definition, {name: spec.shape for name, spec in specs.items()})
    return schema.Workload(axes={name: known[name] for name in definition.var}, inputs=inputs, uuid=number)


def with_tokens(problem: Problem, axes: Mapping[str, int]) -> dict[str, int]:
    """The axes with the number of tokens T, which is no extent where every tensor has a row for each slot."""
    if "slots" in axes and "T" not in axes:
        return {**axes, "T": axes["slots"] // problem.int("k")}
    return dict(axes)


def tables_of(workload: Workload) -> dict[str, np.ndarray]:
    """Index tensors (int32) of a workload: valid, even, nothing else than its axes say."""
    import numpy as np

    axes, problem = workload.axes, workload.problem
    shapes = {t.name: t.shape for t in get(problem.operator).tensors(workload) if t.dtype is DType.I32}
    match problem.operator:
        case "paged_attention":
            return _attention_tables(axes, problem.int("P"))
        case "moe_linear":
            experts = problem.int("E")
            slots = grouped(np.arange(axes["T"] * problem.int("k")) % experts, experts)
            return {"order": slots.order, "expert_start": slots.start}
        case "embedding":
            limits = {"ids": problem.int("V")}
        case "gather_rows":
            limits = {"index": axes["T"]}
        case "rope_kv_write" | "qk_norm_rope_kv_write":
            limits = {"position": axes["positions"], "slot": axes["pages"] * problem.int("P")}
        case _:
            limits = {}
    return {name: (np.arange(shapes[name][0]) % limit).astype(np.int32) for name, limit in limits.items()}


def _attention_tables(axes: Mapping[str, int], page: int) -> dict[str, np.ndarray]:
    """Sequences of equal contexts, as long as the pages allow; queries spread evenly, the first ones have the rest."""
    import numpy as np

    sequences, blocks = axes["S"], axes["B"]
    each = max(1, min(blocks, axes["pages"] // sequences))
    table = np.full((sequences, blocks), -1, np.int32)
    table[:, :each] = np.arange(sequences * each).reshape(sequences, each) % axes["pages"]
    queries = np.full(sequences, axes["T"] // sequences)
    queries[: axes["T"] % sequences] += 1
    context = np.full(sequences, min(axes["max_context"], each * page), np.int32)
    return {
        "block_table": table,
        "query_start": np.concatenate([[0], np.cumsum(queries)]).astype(np.int32),
        "context": context,
    }


def _bound(definition: Definition, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Values of the axes, from the shapes of the inputs."""
    return {
        axis: extent
        for name, tensor in definition.inputs.items()
        if name in shapes
        for axis, extent in zip(tensor.shape or (), shapes[name], strict=True)
    }


def _reference(problem: Problem) -> str:
    """The text of the operator's module in ``references``, of another one where the key names attributes that a key may
    leave out; without one, a call of kforge's own reference."""
    more = get(problem.operator).usual
    name = "_".join([problem.operator, *more]) if more.keys() & dict(problem.static).keys() else problem.operator
    if dict(problem.static).get("kv") == DType.I8:
        name += "_i8"
    file = Path(__file__).parent / "references" / f"{name}.py"
    said = f'"""{problem.key}, computed in float64."""\n\n'
    if file.is_file():
        return said + file.read_text(encoding="utf-8").replace(_MARK, f"ATTRIBUTES = {dict(problem.static)!r}")
    return (
        f"{said}from kforge.interchange.reference import outputs\n\n\n"
        f"def run(*inputs):\n    return outputs({problem.key!r}, inputs)\n"
    )


def _described(spec: TensorSpec) -> str:
    layout = "" if spec.layout == DENSE else f", layout {spec.layout.key} of kforge"
    packed = ", unsigned bytes" if spec.dtype in PACKED else ""
    return f"{spec.role.value}{layout}{packed}"


class _Extents:
    """Which extent of which tensor is which axis. Two samples of the dynamic axes, all odd, tell var from const and
    name from name; what follows from an axis without being one (S + 1) varies under a name of its own."""

    def __init__(self, problem: Problem) -> None:
        operator = get(problem.operator)
        self._dynamic = operator.dynamic_axes
        self._named = _EXTENTS.get(problem.operator, {})
        small = {axis: 7 + 2 * i for i, axis in enumerate(self._dynamic)}
        large = {axis: 101 + 2 * i for i, axis in enumerate(self._dynamic)}
        self.specs = operator.tensors(workload_at(problem, small))
        others = operator.tensors(workload_at(problem, large))
        self._names: dict[str, tuple[str, ...]] = {}
        self.axes: dict[str, Axis] = {}
        for spec, other in zip(self.specs, others, strict=True):
            self._names[spec.name] = tuple(
                self._axis(spec.name, i, (a, b), (small, large))
                for i, (a, b) in enumerate(zip(spec.shape, other.shape, strict=True))
            )

    def names(self, spec: TensorSpec) -> tuple[str, ...]:
        return self._names[spec.name]

    def _axis(self, tensor: str, i: int, extents: tuple[int, int], samples: tuple[dict[str, int], ...]) -> str:
        varies = extents[0] != extents[1]
        same = [a for a in self._dynamic if (samples[0][a], samples[1][a]) == extents]
        listed = self._named.get(tensor, ())
        name = same[0] if same else listed[i] if i < len(listed) else f"{tensor}_{i}"
        axis = (
            Axis(type="var", description=f"dynamic axis {name}")
            if varies
            else Axis(type="const", value=extents[0], description="compiled into a kernel")
        )
        if self.axes.setdefault(name, axis) != axis:
            name = f"{tensor}_{i}"
            self.axes[name] = axis
        return name


# -- known again -------------------------------------------------------------------------------------------------------


def known(problem: Problem) -> bool:
    """Whether there is its operator, and not another import under that name."""
    try:
        operator = get(problem.operator)
    except (KeyError, KforgeError, OSError):  # of an import that is gone or broken
        return False
    return not isinstance(operator, Imported) or operator.problem == problem


def expressible(problem: Problem) -> bool:
    """Whether all extents of its outputs are axes of its inputs, as that benchmark asks."""
    definition = definition_of(problem)
    return set(definition.var) <= {axis for t in definition.inputs.values() for axis in t.shape or ()}


def own(definition: Definition) -> Translation | None:
    """The problem of a definition that kforge exported; None for any other, and for one that was changed since."""
    keys = [tag.removeprefix(TAG) for tag in definition.tags if tag.startswith(TAG)]
    if len(keys) != 1:
        return None
    try:
        problem = Problem.parse(keys[0])
        if not known(problem):
            return None
        same = definition_of(problem)
    except (KforgeError, KeyError, ValueError, TypeError, ArithmeticError):
        return None
    if (same.axes, same.inputs, same.outputs, same.reference) != (
        definition.axes,
        definition.inputs,
        definition.outputs,
        definition.reference,
    ):
        return None
    return OwnTranslation(definition, problem)


@dataclass(frozen=True)
class OwnTranslation(Translation):
    """Nothing to translate but names of outputs, and the axes that are no extents."""

    @property
    def differences(self) -> tuple[str, ...]:
        return ()

    def axes(self, workload: schema.Workload, tables: Tables) -> dict[str, int]:
        wanted = get(self.problem.operator).dynamic_axes
        given = with_tokens(self.problem, workload.axes)
        known = {axis: given[axis] for axis in wanted if axis in given}
        if "max_context" in wanted:
            context = tables("context")
            if context is None or not len(context):
                raise ValueError(f"workload {workload.uuid}: its contexts are not where it says")
            known["max_context"] = int(context.max())
        if missing := [axis for axis in wanted if axis not in known]:
            raise ValueError(f"workload {workload.uuid} gives no {missing[0]}")
        return known
