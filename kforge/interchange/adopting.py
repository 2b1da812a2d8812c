"""A definition's reference as an operator of its own, as ``kforge operator import`` makes one of any function.

An operator from a function takes float32 tensors and is open in one leading extent, so only definitions of float inputs
with at most one var axis, at the front, can become one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kforge.core.drafts import draft_folder
from kforge.core.errors import KforgeError
from kforge.core.workload import stable_hash
from kforge.importing.importer import Request, import_operator, remove
from kforge.interchange.definitions import Adopted
from kforge.interchange.mapping import FLOATS
from kforge.interchange.schema import Definition, Trace
from kforge.operators import import_file
from kforge.operators.graph import AXIS

_USUAL, _MOST = 64, 512  # of the var axis in the example
_LONGEST = 48  # characters of an operator's name
_FUNCTION = "run"


def adopt(definition: Definition, workloads: Sequence[Trace]) -> Adopted | str:
    """The operator, kept in the data folder; or why there is none. Its example is as long as the longest of the
    workloads, up to 512."""
    if reason := _cannot(definition):
        return reason
    axis = definition.var[0] if definition.var else ""
    length = max((w.workload.axes.get(axis, 0) for w in workloads), default=0) or _USUAL
    sizes = {axis: _told_apart(min(length, _MOST), definition)} if axis else {}
    name = _name(definition)
    there = import_file(name).exists()
    try:
        with draft_folder() as folder:
            file = folder / f"{name}.py"
            file.write_text(f"{definition.reference}\n\n{_example(definition, sizes)}", encoding="utf-8")
            made = import_operator(Request(file, _FUNCTION, name, scale="none"))
    except KforgeError as error:
        return str(error).rpartition(f"{name}.py ")[2]
    if made.graph.dynamic:
        opened = {g.name for g in made.graph.given if AXIS in g.shape}
        rows = {name for name, t in definition.inputs.items() if (t.shape or ())[:1] == (axis,)}
        if opened <= rows:
            return Adopted(made.problem, axis)
        if not there:
            remove(name)
        return f"torch leaves another extent open than {axis}"
    return Adopted(made.problem, axis, sizes.get(axis, 1))


def _told_apart(length: int, definition: Definition) -> int:
    """A length that is no const axis's: torch takes leading extents that are equal for one."""
    while length in definition.const.values():
        length -= 1
    return max(length, 1)


def _cannot(definition: Definition) -> str:
    for name, tensor in definition.inputs.items():
        if tensor.shape is None:
            return f"its input {name} is a scalar, which would become a constant"
        if tensor.dtype not in FLOATS:
            return f"its input {name} is {tensor.dtype}, and an operator from a reference takes floats of 16 or 32 bits"
    if len(definition.var) > 1:
        return f"it has the var axes {', '.join(definition.var)}, and an operator from a reference has one"
    return ""


def _name(definition: Definition) -> str:
    """The definition's, in small letters and short enough, and never one that a user would choose: a stranger did."""
    plain = re.sub("[^a-z0-9]+", "_", definition.name.lower()).strip("_")
    named = f"fib_{plain or stable_hash(definition.name, 8)}"
    return named if len(named) <= _LONGEST else f"{named[: _LONGEST - 9]}_{stable_hash(definition.name, 8)}"


def _example(definition: Definition, sizes: dict[str, int]) -> str:
    shapes = [definition.shape(tensor, sizes) for tensor in definition.inputs.values()]
    tensors = ", ".join(f"torch.randn({shape!r})" for shape in shapes)
    return f"def get_inputs():\n    import torch\n\n    return [{tensors}]\n"
