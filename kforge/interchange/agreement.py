"""Whether a definition's reference computes what kforge's operator does: both are asked, on the same arguments.

The reference is somebody's Python, so it runs in the sandbox (``reference_side``), each in a folder of its own, where
no other one's answer is; what comes back is numbers of a shape that is known here, and nothing else. Signatures alone
don't tell a norm with ``1 + weight`` from one with ``weight``, or a causal mask from none.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kforge.core.drafts import draft_folder
from kforge.core.errors import KforgeError
from kforge.core.words import one_line
from kforge.harness.sandbox import Limits, run
from kforge.importing.importer import readable
from kforge.interchange.mapping import FLOATS, Foreign
from kforge.interchange.schema import Definition
from kforge.operators import get
from kforge.operators.base import Bound
from kforge.operators.numerics import ROUNDOFF, U

if TYPE_CHECKING:
    import numpy as np

_SIDE = "reference_side.py"
_SECONDS = 20  # of one reference
_START = 60.0  # of Python and torch
_MEMORY = 16 << 30  # address space
_LARGEST = 256 << 20  # bytes of one file, and of all arguments of a check
_SAID = 4096  # bytes read of what a reference says
# What torch reads of the machine to choose its kernels.
_MACHINE = ("/proc/cpuinfo", "/sys/devices/system/cpu")
_FEW = 32  # no var axis of an example is longer
_TOO_LARGE = "its arguments are too large to be checked here"
_ROUNDINGS = 8.0  # of the definition's type that a result may be off by: the reference rounds where it likes


@dataclass(frozen=True)
class Found:
    """``translation``: the variant that agrees, else None; ``reason``: why not, or why nothing could be said."""

    translation: Foreign | None
    reason: str = ""
    checked: bool = True


@dataclass(frozen=True, eq=False)
class _Job:
    translation: Foreign  # at the sizes of the check
    arguments: dict[str, np.ndarray | float]

    @property
    def definition(self) -> Definition:
        return self.translation.definition


def check(translation: Foreign) -> Found:
    """Whether the definition's reference agrees.

    Tried with small constant axes first; where the reference does not work there or differs, which may be for a size
    that it has written in, with its own. Raises KforgeError when the sandbox cannot run it.
    """
    at = _small(translation)
    found = _asked(translation, at)
    if (found.checked and found.translation) or at is translation or _bytes(translation.definition) > _LARGEST:
        return found
    return _asked(translation, translation)


def _asked(translation: Foreign, at: Foreign) -> Found:
    import numpy as np

    if _bytes(at.definition) > _LARGEST:
        return Found(translation, _TOO_LARGE, checked=False)
    job = _Job(at, at.example(np.random.default_rng(11)))
    return _found(translation, job, _run(job))


def _bytes(definition: Definition) -> int:
    """Of an example's tensors as float32, at most."""
    few = dict.fromkeys(definition.var, _FEW)
    tensors = (*definition.inputs.values(), *definition.outputs.values())
    return sum(4 * math.prod(definition.shape(tensor, few)) for tensor in tensors)


def _small(translation: Foreign) -> Foreign:
    sizes = translation.small()
    if all(translation.definition.const[axis] == size for axis, size in sizes.items()):
        return translation
    resized = type(translation).match(translation.definition.resized(sizes))
    return resized if isinstance(resized, Foreign) else translation


def _found(translation: Foreign, job: _Job, answer: dict[str, np.ndarray] | str) -> Found:
    if isinstance(answer, str):
        return Found(translation, answer, checked=False)
    reason = ""
    for variant, meant in zip(job.translation.variants(), translation.variants(), strict=True):
        reason = _difference(variant, job, answer)
        if not reason:
            return Found(meant)
    return Found(None, reason)


def _difference(variant: Foreign, job: _Job, answer: Mapping[str, np.ndarray]) -> str:
    """Where the reference's outputs and the operator's float64 reference differ; "" where they agree."""
    call = variant.call(job.arguments)
    bounds = get(variant.problem.operator).reference(call.workload, call.inputs)
    for name, expected in variant.outputs(bounds).items():
        got = answer[name].reshape(expected.reference.shape)
        if said := _beyond(got, expected, _roundoff(variant.definition, name)):
            return f"its reference computes another {name} than {variant.problem.operator}: {said}"
    return ""


def _beyond(got: np.ndarray, expected: Bound, roundoff: float) -> str:
    import numpy as np

    exact = expected.reference
    rows = np.abs(exact).reshape(len(exact), -1).max(axis=1).reshape(-1, *[1] * (exact.ndim - 1))
    allowed = expected.bound + _ROUNDINGS * roundoff * (np.abs(exact) + rows) if roundoff else expected.bound
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(got - exact) <= allowed)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{got[at]:.6g} for {exact[at]:.6g} at {list(at)}"


def _roundoff(definition: Definition, output: str) -> float:
    """Of the coarsest float type that the reference may round to; 0 for whole numbers."""
    if definition.outputs[output].dtype not in FLOATS:
        return 0.0
    types = [t.dtype for t in (*definition.inputs.values(), definition.outputs[output]) if t.shape is not None]
    return max([ROUNDOFF[FLOATS[dtype]] for dtype in types if dtype in FLOATS], default=U)


# -- the sandbox -------------------------------------------------------------------------------------------------------


def _run(job: _Job) -> dict[str, np.ndarray] | str:
    """The outputs, or why there are none."""
    with draft_folder() as work:
        _place(work, job)
        limits = Limits(_START + _SECONDS, _MEMORY, _LARGEST)
        outcome = run([sys.executable, "-I", _SIDE], work, limits, (*readable(), *_MACHINE))
        if outcome.code != 0 and not outcome.timed_out:
            said = outcome.text.strip().splitlines()[-1:] or ["it said nothing"]
            raise KforgeError(f"its reference cannot be run in the sandbox: {one_line(said[0])[:300]}")
        return _answer(work, job)


def _place(work: Path, job: _Job) -> None:
    import numpy as np

    (work / _SIDE).write_bytes(Path(__file__).with_name(_SIDE).read_bytes())
    arguments: list[dict[str, object]] = []
    for index, (name, tensor) in enumerate(job.definition.inputs.items()):
        value = job.arguments[name]
        if tensor.shape is None:
            arguments.append({"value": value})
            continue
        np.save(work / f"{index}.npy", np.asarray(value), allow_pickle=False)
        arguments.append({"dtype": tensor.dtype.value})
    told = {
        "source": job.definition.reference,
        "arguments": arguments,
        "outputs": list(job.definition.outputs),
        "seconds": _SECONDS,
    }
    (work / "job.json").write_text(json.dumps(told))


def _answer(work: Path, job: _Job) -> dict[str, np.ndarray] | str:
    """What a reference left. All of it is a stranger's: sizes come from the definition, not from its files."""
    import numpy as np

    try:
        said = json.loads(_read(work / "answer.json", _SAID))
    except (OSError, ValueError, RecursionError):
        return f"its reference did not come to an end within {_SECONDS} s"
    if not isinstance(said, dict) or "error" in said:
        return f"its reference fails: {one_line(str(said.get('error') if isinstance(said, dict) else said))[:300]}"
    call = job.translation.call(job.arguments)
    expected = job.translation.outputs(get(job.translation.problem.operator).reference(call.workload, call.inputs))
    outputs = {}
    for k, name in enumerate(job.definition.outputs):
        if name not in expected:
            continue
        wanted = expected[name].reference.size * 8
        with contextlib.suppress(OSError):
            data = _read(work / f"{k}.out", wanted + 1)
            if len(data) == wanted:
                outputs[name] = np.frombuffer(data, np.float64)
                continue
        return f"its reference returns another shape of {name} than the definition says"
    return outputs


def _read(path: Path, most: int) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        return file.read(most)
