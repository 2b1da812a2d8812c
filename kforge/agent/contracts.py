"""What a kernel of an operator must do, from the operator's own contract, order specification and layout."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import kforge.operators.spec
from kforge.agent.pseudo_code import pseudo_code
from kforge.core.trial import NumericsClass
from kforge.core.workload import Attr, Workload
from kforge.native.build import include_dir
from kforge.operators import get
from kforge.operators.base import DENSE, Operator
from kforge.operators.imported import Imported

_TYPES = re.compile(r"^(?:struct|enum class|using) (\w+)", re.MULTILINE)
_LOCAL_INCLUDE = re.compile(r'^#include "([a-z_]+\.h)"$', re.MULTILINE)
_ALL_SPECS = re.compile(r'extern "C" void kf_spec_')


@dataclass(frozen=True)
class TensorFacts:
    """``shape`` names its dynamic axes, such as ``[T, 576]``; ``layout`` is "" for dense, row-major tensors."""

    name: str
    dtype: str
    shape: str
    role: str
    residency: str
    layout: str


@dataclass(frozen=True)
class Contract:
    """Everything in launch order. ``order``: source text of the order specification, which an exact kernel equals to
    the bit. ``panel``: the header that describes packed weights, "" where there are none. An imported operator has no
    order: ``graph`` says what it computes and ``bound`` how far a kernel may be from that; both "" of all others."""

    operator: str
    version: int
    text: str
    static: tuple[tuple[str, Attr], ...]
    axes: tuple[str, ...]
    scalars: tuple[str, ...]
    tensors: tuple[TensorFacts, ...]
    order: str
    panel: str
    graph: str = ""
    bound: str = ""

    @property
    def relaxed(self) -> bool:
        """Whether kernels are held against the error bound alone."""
        return bool(self.graph)


def numerics_of(operator: str) -> NumericsClass:
    """What kernels of this operator must be in order to compete."""
    return NumericsClass.RELAXED if isinstance(get(operator), Imported) else NumericsClass.EXACT


def contract_of(workload: Workload) -> Contract:
    """Of the workload's problem, its layout included; the dynamic axes only serve to name the shapes."""
    operator, problem = get(workload.problem.operator), workload.problem
    if isinstance(operator, Imported):
        return _imported(operator, workload)
    packed = any(spec.layout.family == "panel" for spec in operator.tensors(workload))
    return Contract(operator.name, operator.version, _text(operator), problem.static, operator.dynamic_axes,
                    operator.scalar_names, _tensors(operator, workload), _order(operator),
                    header("panel.h") if packed else "")


def _imported(operator: Imported, workload: Workload) -> Contract:
    text = "A function that was imported from elsewhere; its graph, below, is all that is known of it."
    return Contract(operator.name, operator.version, text, workload.problem.static, operator.dynamic_axes,
                    operator.scalar_names, _tensors(operator, workload), "", "", pseudo_code(operator.graph),
                    _bound(operator))


def header(name: str) -> str:
    """Text of a header that kernels may include."""
    return (include_dir() / "kforge" / name).read_text(encoding="utf-8")


def signatures(name: str) -> tuple[str, ...]:
    """What a header offers: its inline functions without their bodies, once each, those of ``detail`` left out."""
    found = re.findall(r"^KF_INLINE ([^{\n]+\)) *\{", header(name), re.MULTILINE)
    return tuple(dict.fromkeys(found))


def _text(operator: Operator) -> str:
    """The contract's words without the error bound, which only relaxed kernels need."""
    before, _, after = inspect.cleandoc(type(operator).__doc__ or "").partition("\n\nBound.")
    return "\n\n".join([before, *(p for p in after.split("\n\n") if p.startswith("A NaN"))])


def _bound(operator: Operator) -> str:
    return inspect.cleandoc(type(operator).__doc__ or "").partition("\n\nBound.")[2].strip()


def _tensors(operator: Operator, workload: Workload) -> tuple[TensorFacts, ...]:
    axes = workload.axes

    def shapes(changed: Mapping[str, int]) -> list[tuple[int, ...]]:
        at = Workload(workload.problem, tuple(sorted({**axes, **changed}.items())))
        return [spec.shape for spec in operator.tensors(at)]

    here = shapes({})
    names = [[str(size) for size in shape] for shape in here]
    for axis in operator.dynamic_axes:
        for tensor, longer in enumerate(shapes({axis: axes[axis] + 1})):
            for place, size in enumerate(longer):
                each = size - here[tensor][place]
                beyond = here[tensor][place] - each * axes[axis]
                if each == 1:
                    names[tensor][place] = f"{axis}+{beyond}" if beyond else axis
                elif each and not beyond:
                    names[tensor][place] = f"{each}*{axis}"
    return tuple(
        TensorFacts(spec.name, spec.dtype.value, f"[{', '.join(names[i])}]", spec.role.value, spec.residency.value,
                    "" if spec.layout == DENSE else spec.layout.key)
        for i, spec in enumerate(operator.tensors(workload)))


def _order(operator: Operator) -> str:
    """The scalar C++ with the helpers that it names, or the Python of an operator that rounds nothing."""
    folder = Path(kforge.operators.spec.__file__).parent
    begin = f'extern "C" void kf_spec_{operator.name}('
    for file in sorted(folder.glob("*.cc")):
        text = file.read_text(encoding="utf-8")
        if begin not in text:
            continue
        alone = len(_ALL_SPECS.findall(text)) == 1
        body = text if alone else text[text.index(begin):].split("\n}\n", 1)[0] + "\n}\n"
        helpers = [(folder / name).read_text(encoding="utf-8") for name in _LOCAL_INCLUDE.findall(text)]
        used = [body]
        for helper in reversed(helpers):  # a later one may name the types of an earlier one
            if any(re.search(rf"\b{name}\b", part) for name in _TYPES.findall(helper) for part in used):
                used.insert(0, helper)
        return "\n".join(part.strip() for part in used)
    return textwrap.dedent(inspect.getsource(type(operator).spec)).strip()
