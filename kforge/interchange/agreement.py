"""Whether a definition's reference computes what kforge's operator does: both are asked, on the same arguments.

The reference is somebody's Python, so it runs in the sandbox (``reference_side``); what comes back is numbers of a
shape that is known here, and nothing else. Signatures alone don't tell a norm with ``1 + weight`` from one with
``weight``, or a causal mask from none.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kforge.core.drafts import draft_folder
from kforge.core.errors import KforgeError
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

    @property
    def bytes(self) -> int:
        return sum(int(getattr(value, "nbytes", 8)) for value in self.arguments.values())


def check(translations: Sequence[Foreign]) -> list[Found]:
    """For each translation whether the definition's reference agrees; in one sandboxed process for all.

    Tried with small constant axes first; where the reference does not work there or differs, which may be for a size
    that it has written in, with its own. Raises KforgeError when the sandbox cannot run Python here.
    """
    jobs = [_job(t, small=True) for t in translations]
    found = _ask(translations, jobs)
    again = [
        i
        for i, job in enumerate(jobs)
        if not (found[i].checked and found[i].translation)
        and job.translation is not translations[i]
        and _bytes(translations[i].definition) <= _LARGEST
    ]
    whole = [translations[i] for i in again]
    for i, answer in zip(again, _ask(whole, [_job(t, small=False) for t in whole]), strict=True):
        found[i] = answer
    return found


def _ask(translations: Sequence[Foreign], jobs: Sequence[_Job]) -> list[Found]:
    answers = _run_all(jobs)
    return [_found(*each) for each in zip(translations, jobs, answers, strict=True)]


def _bytes(definition: Definition) -> int:
    """Of a call's arguments as float32, about: var axes are small in examples."""
    few = dict.fromkeys(definition.var, 8)
    return sum(4 * math.prod(definition.shape(tensor, few)) for tensor in definition.inputs.values())


def _job(translation: Foreign, small: bool) -> _Job:
    import numpy as np

    at, sizes = translation, translation.small() if small else {}
    if any(translation.definition.const[axis] != size for axis, size in sizes.items()):
        resized = type(translation).match(translation.definition.resized(sizes))
        at = resized if isinstance(resized, Foreign) else translation
    return _Job(at, at.example(np.random.default_rng(11)))


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


def _run_all(jobs: Sequence[_Job]) -> list[dict[str, np.ndarray] | str]:
    """Each job's outputs, or why there are none."""
    fits = [i for i, job in enumerate(jobs) if job.bytes <= _LARGEST]
    answers: list[dict[str, np.ndarray] | str] = ["its arguments are too large to be checked here"] * len(jobs)
    if fits:
        with draft_folder() as work:
            _place(work, [jobs[i] for i in fits])
            outcome = run(
                [sys.executable, "-I", _SIDE],
                work,
                Limits(_START + _SECONDS * len(fits), _MEMORY, _LARGEST),
                (*readable(), *_MACHINE),
            )
            if outcome.code != 0 and not outcome.timed_out:
                said = outcome.text.strip().splitlines()[-1:] or ["it said nothing"]
                raise KforgeError(f"cannot run a definition's reference in the sandbox: {said[0][:300]}")
            for number, i in enumerate(fits):
                answers[i] = _answer(work, number, jobs[i])
    return answers


def _place(work: Path, jobs: Sequence[_Job]) -> None:
    import numpy as np

    (work / _SIDE).write_bytes(Path(__file__).with_name(_SIDE).read_bytes())
    told = []
    for number, job in enumerate(jobs):
        arguments: list[dict[str, object]] = []
        for index, (name, tensor) in enumerate(job.definition.inputs.items()):
            value = job.arguments[name]
            if tensor.shape is None:
                arguments.append({"value": value})
                continue
            np.save(work / f"{number}.{index}.npy", np.asarray(value), allow_pickle=False)
            arguments.append({"dtype": tensor.dtype.value})
        told.append(
            {
                "number": number,
                "source": job.definition.reference,
                "arguments": arguments,
                "outputs": list(job.definition.outputs),
                "seconds": _SECONDS,
            }
        )
    (work / "jobs.json").write_text(json.dumps(told))


def _answer(work: Path, number: int, job: _Job) -> dict[str, np.ndarray] | str:
    """What a reference left. All of it is a stranger's: sizes come from the definition, not from its files."""
    import numpy as np

    try:
        said = json.loads(_read(work / f"{number}.json", _SAID))
    except (OSError, ValueError, RecursionError):
        return f"its reference did not come to an end within {_SECONDS} s"
    if not isinstance(said, dict) or "error" in said:
        return f"its reference fails: {str(said.get('error') if isinstance(said, dict) else said)[:300]}"
    call = job.translation.call(job.arguments)
    expected = job.translation.outputs(get(job.translation.problem.operator).reference(call.workload, call.inputs))
    outputs = {}
    for k, name in enumerate(job.definition.outputs):
        if name not in expected:
            continue
        wanted = expected[name].reference.size * 8
        with contextlib.suppress(OSError):
            data = _read(work / f"{number}.{k}.out", wanted + 1)
            if len(data) == wanted:
                outputs[name] = np.frombuffer(data, np.float64)
                continue
        return f"its reference returns another shape of {name} than the definition says"
    return outputs


def _read(path: Path, most: int) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        return file.read(most)
