"""A GPU's kernel as a native one, whose groups of threads are fibers: checked by the harness as any kernel is.

The source is the device's own; ``kforge/fibers.h`` gives it threads, barriers, shuffles and shared memory. What is
wrapped around it here deals the groups of each launch to the team, launches one after another.
"""

from __future__ import annotations

import ast
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kforge.core.errors import KforgeError
from kforge.core.image import Image
from kforge.core.launch import Argument, ArgumentKind, Launch, LaunchError, parsed
from kforge.core.trial import Candidate, Failure, FailureClass
from kforge.core.workload import Workload

if TYPE_CHECKING:
    import numpy as np

    from kforge.operators.base import Arrays

_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_CALLS: dict[type[ast.operator], str] = {ast.FloorDiv: "div", ast.Mod: "mod"}
_TRAPPED = ("stopped by the check (a barrier or shuffle that some threads do not reach, a write outside shared memory, "
            "more than 48 KiB of it, or more than 16 KiB of a thread's stack): ")


def native_candidate(candidate: Candidate, warp: int, *, descending: bool) -> Candidate:
    """The same kernel for backend ``cpp``. ``warp``: threads that shuffle together; ``descending``: the order in which
    threads run between two barriers. Raises LaunchError for sizes that are no expressions."""
    return replace(candidate, backend="cpp", source=_source(candidate, warp, descending), launches=())


class Fibers:
    """See ``kforge.backends.verbs.StandIn``: each call is made twice, with threads in both orders, in two locked-down
    processes; both must leave the same bits."""

    where = "fibers"

    def __init__(self, images: tuple[Image, Image], operator: str) -> None:
        from kforge.harness.callers import HostCaller

        self._callers = [HostCaller(image, operator, 1) for image in images]

    def run_once(self, workload: Workload, inputs: Arrays, threads: int, poison: int, fence: int, strided: bool,
                 seconds: float, late: int | None = None) -> dict[str, np.ndarray] | Failure:
        ascending, descending = (caller.run_once(workload, inputs, 1, poison, fence, strided, seconds)
                                 for caller in self._callers)
        for found, order in ((ascending, "ascending"), (descending, "descending")):
            if isinstance(found, Failure):
                return _explained(found, order)
        assert isinstance(ascending, dict) and isinstance(descending, dict)
        for name, value in ascending.items():
            if value.tobytes() != descending[name].tobytes():
                return Failure(FailureClass.NONDETERMINISTIC, f"{name} depends on the order in which a group's threads "
                               "run: a barrier is missing, or two threads write one element")
        return ascending

    def close(self) -> None:
        for caller in self._callers:
            caller.close()


def stand_in(candidate: Candidate, warp: int) -> Fibers | Failure:
    """A kernel of a GPU on this machine's processor. Raises KforgeError where this machine is not x86-64, confines no
    candidate or has no compiler."""
    from kforge.backends.cpp.admission import examine
    from kforge.backends.cpp.build import build
    from kforge.targets.files import host

    if platform.machine() != "x86_64":
        raise KforgeError(f"kernels of GPUs are checked on x86-64 alone, and this machine is {platform.machine()}")
    here = host(quick=True)
    images = []
    for descending in (False, True):
        try:
            native = native_candidate(candidate, warp, descending=descending)
        except LaunchError as error:
            return Failure(FailureClass.TEMPLATE, f"the launch: {error}")
        artifact = build(native, here)
        admitted = artifact if isinstance(artifact, Failure) else examine(artifact.data)
        if isinstance(admitted, Failure):
            return admitted
        images.append(admitted.image)
    return Fibers((images[0], images[1]), candidate.problem.operator)


def _explained(failure: Failure, order: str) -> Failure:
    trap = _TRAPPED if failure.kind is FailureClass.CRASH and "SIGILL" in f"{failure.reason} {failure.detail}" else ""
    return replace(failure, reason=trap + failure.reason, detail=f"{failure.detail} (threads in {order} order)".strip())


def _source(candidate: Candidate, warp: int, descending: bool) -> str:
    from kforge.operators import get

    operator = get(candidate.problem.operator)
    unit = Workload(candidate.problem, tuple((axis, 1) for axis in sorted(operator.dynamic_axes)))
    order = _Order({spec.name: i for i, spec in enumerate(operator.tensors(unit))},
                   {axis: i for i, axis in enumerate(operator.dynamic_axes)},
                   {name: i for i, name in enumerate(operator.scalar_names)})
    launches = [order.launch(launch, i) for i, launch in enumerate(candidate.launches)]
    scratch = _most(order.size(launch.scratch, launch) for launch in candidate.launches)
    threads = _most(order.product(launch.block, launch) for launch in candidate.launches)
    return f"""#define KF_FIBERS 1
#define KF_WARP {warp}
#define KF_DESCENDING {int(descending)}
{candidate.source}
#include <kforge/fibers.h>

static int64_t kf_kernel_bytes(const int64_t *axes) {{ return {scratch}; }}
static int64_t kf_most_threads(const int64_t *axes) {{ return {threads}; }}

{''.join(found.entry for found in launches)}
extern "C" int64_t kforge_scratch_bytes(const int64_t *axes, int32_t threads) {{
    return kf::fibers::scratch_bytes(kf_kernel_bytes(axes), kf_most_threads(axes), threads);
}}

extern "C" void kforge_kernel(const kf_launch *launch) {{
    const int64_t *axes = launch->axes, bytes = kf_kernel_bytes(axes), most = kf_most_threads(axes);
    char *work = kf::fibers::work_of(launch, bytes);
    unsigned char *fence = kf::fibers::fence_of(launch, bytes);
    if (launch->thread == 0) memset(fence, 0xff, kf::fibers::kFence);
    kf_barrier(launch);
{'    kf_barrier(launch);'.join(found.call for found in launches)}    kf_barrier(launch);
    if (launch->thread == 0) kf::fibers::require(kf::fibers::poisoned(fence, kf::fibers::kFence));
}}
"""


@dataclass(frozen=True)
class _Launched:
    """C++ of a launch: the entry that fibers begin at, and the call that runs its grid."""

    entry: str
    call: str


@dataclass(frozen=True)
class _Order:
    """Where tensors, axes and scalars stand in a ``kf_launch``."""

    tensors: Mapping[str, int]
    axes: Mapping[str, int]
    scalars: Mapping[str, int]

    def launch(self, launch: Launch, index: int) -> _Launched:
        arguments = ", ".join(self._argument(argument) for argument in launch.arguments)
        entry = f"""static void kf_entry_{index}() {{
    [[maybe_unused]] const kf_launch *launch = kf::fibers::self()->group->launch;
    {launch.entry}({arguments});
    kf::fibers::finish();
}}
"""
        sizes = [self.size(text, launch) for text in launch.grid]
        x, y, z = (*sizes, *["int64_t{1}"] * (3 - len(sizes)))
        block = self.product(launch.block, launch)
        call = f"    kf::fibers::run(launch, work, most, {x}, {y}, {z}, {block}, kf_entry_{index});\n"
        return _Launched(entry, call)

    def product(self, texts: tuple[str, ...], launch: Launch) -> str:
        if not texts:
            raise LaunchError(f"launch '{launch.entry}' has no block")
        return " * ".join(self.size(text, launch) for text in texts)

    def size(self, text: str, launch: Launch) -> str:
        """The expression in C++, none below zero."""
        constants = {name: f"int64_t{{{value}}}" for name, value in launch.constants}
        values = {**{name: f"axes[{i}]" for name, i in self.axes.items()}, **constants}
        return f"kf::fibers::max({_expression(parsed(text), values)}, 0)"

    def _argument(self, argument: Argument) -> str:
        match argument.kind:
            case ArgumentKind.TENSOR:
                return f"kf::fibers::Pointer{{launch->tensors[{self.tensors[argument.name]}].data}}"
            case ArgumentKind.STRIDE:
                return f"launch->tensors[{self.tensors[argument.name]}].strides[{argument.dimension}]"
            case ArgumentKind.AXIS:
                return f"static_cast<int32_t>(launch->axes[{self.axes[argument.name]}])"
            case ArgumentKind.SCALAR:
                return f"static_cast<float>(launch->scalars[{self.scalars[argument.name]}])"
            case ArgumentKind.SCRATCH:
                return "kf::fibers::Pointer{launch->scratch}"


def _most(texts: Iterable[str]) -> str:
    found = "int64_t{0}"
    for text in texts:
        found = f"kf::fibers::max({found}, {text})"
    return found


def _expression(node: ast.expr, values: Mapping[str, str]) -> str:
    """What ``kforge.core.launch`` allows, in C++."""
    match node:
        case ast.Constant(value=int(value)):
            return f"int64_t{{{value}}}"
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.UnaryOp(operand=operand):
            return f"-({_expression(operand, values)})"
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _expression(left, values), _expression(right, values)
            named = _CALLS.get(type(op))
            return f"kf::fibers::{named}({a}, {b})" if named else f"({a} {_OPERATORS[type(op)]} {b})"
        case ast.Call(func=ast.Name(id=name), args=[left, right]):
            return f"kf::fibers::{name}({_expression(left, values)}, {_expression(right, values)})"
    raise LaunchError(f"'{ast.unparse(node)}' has no value")
