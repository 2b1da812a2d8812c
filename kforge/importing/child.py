"""The confined child: loads the file, makes it fit, exports and lowers it, and leaves one JSON object in its folder.

Whatever stands in that object the parent takes as untrusted: the file itself could have written it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kforge.core.words import one_line
from kforge.importing.failures import ImportFailure
from kforge.importing.loading import Call, ExampleInput, Source, call_of
from kforge.importing.scaling import Extent, Room, Scaling, fitted

PROBLEM, JOB, ANSWER = "problem.py", "job.json", "answer.json"
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "USER": "nobody",
                "LOGNAME": "nobody", "TORCHINDUCTOR_CACHE_DIR": "cache", "CUDA_VISIBLE_DEVICES": ""}


def main() -> None:
    """In the current folder: PROBLEM and JOB are read, ANSWER is written."""
    os.environ.update(_ENVIRONMENT)
    folder = Path.cwd()
    try:
        answer = imported((folder / PROBLEM).read_text(encoding="utf-8"), json.loads((folder / JOB).read_text()))
    except MemoryError:
        answer = {"error": "it needs more memory than an import may have"}
    except ImportFailure as error:
        answer = {"error": one_line(str(error))}
    except (Exception, SystemExit) as error:
        answer = {"error": one_line(f"it fails with {type(error).__name__}: {error}")}
    draft = folder / f"{ANSWER}.new"
    draft.write_text(json.dumps(answer))
    draft.replace(folder / ANSWER)
    sys.stdout.flush()
    os._exit(0)  # whatever else the file has started or registered


def imported(text: str, job: dict[str, Any]) -> dict[str, Any]:
    """The answer to a job: ``label`` of the file, ``function``, ``inputs``, ``scale`` and the ``room``."""
    source = Source(text, job["label"])
    inputs = tuple(ExampleInput(name, tuple(shape)) for name, shape in job["inputs"])
    _loaded(source, Scaling())  # first of all, so that a broken file is told at once

    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)

    def call(scaling: Scaling) -> Call:
        return call_of(_loaded(source, scaling), job["function"], inputs, scaling.lead)

    measure = _measure(call)
    scaling = fitted(source, measure, Room(**job["room"]), job["scale"])
    originals = measure(Scaling()).shapes
    return {**_answer(call(scaling), originals), "scaling": one_line(scaling.told(source)),
            "sizes": dict(scaling.sizes), "lead": scaling.lead}


def _loaded(source: Source, scaling: Scaling) -> Any:
    try:
        return source.executed(scaling.sizes)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        raise ImportFailure(f"{source.label} fails when it is loaded, with {type(error).__name__}: {error}") from error


def _measure(call: Callable[[Scaling], Call]) -> Callable[[Scaling], Extent]:
    """Sizes by tensors without memory; with real ones where the function needs values to know its shapes."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def faked(scaling: Scaling) -> Extent:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _extent(call(scaling))

    try:
        faked(Scaling())
    except ImportFailure:
        return lambda scaling: _extent(call(scaling))
    return faked


def _extent(call: Call) -> Extent:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), counter:
            made = call.module(*call.args)
    except MemoryError:
        raise
    except Exception as error:
        raise ImportFailure(f"calling it fails with {type(error).__name__}: {error}") from error
    leaves, _ = torch.utils._pytree.tree_flatten((call.args, made, list(call.module.state_dict().values())))
    tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    shapes = tuple(tuple(arg.shape) for arg in call.args if isinstance(arg, torch.Tensor))
    return Extent(size, counter.get_total_flops(), shapes)


def _answer(call: Call, originals: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    import torch

    from kforge.importing.agreement import hold
    from kforge.importing.exporting import lowered_call

    made = lowered_call(call)
    hold(call, made)
    graph = made.graph
    tensors = [arg for arg in call.args if isinstance(arg, torch.Tensor)]
    batch = next((arg.shape[0] for arg in tensors if arg.dim()), 1) if graph.dynamic else 1
    names = [re.sub(r"[^a-z0-9_]", "_", name.lower()).lstrip("_0123456789")[:40] or f"x{i}"
             for i, name in enumerate(_argument_names(call, len(originals)))]
    return {
        "graph": {"given": [dataclasses.asdict(given) for given in graph.given],
                  "steps": [dataclasses.asdict(step) for step in graph.steps], "outputs": list(graph.outputs)},
        "batch": batch,
        "originals": [{"name": name, "shape": list(shape)} for name, shape in zip(names, originals, strict=True)],
    }


def _argument_names(call: Call, count: int) -> list[str]:
    import inspect

    names = list(inspect.signature(call.module.forward).parameters)
    return names[:count] if len(names) >= count else [f"x{i}" for i in range(count)]
