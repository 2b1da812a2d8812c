"""The sandbox's side of a check: runs the reference of one definition, in a process of its own, on given arguments.

Reads ``job.json`` beside it; leaves ``answer.json`` and, where the reference returned, ``K.out``: float64 values of the
K-th output. Standard library, numpy and torch alone; it knows nothing of what the answers should be.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import torch


def argument(index: int, spec: dict) -> object:
    if "value" in spec:
        return spec["value"]
    values = np.load(f"{index}.npy", allow_pickle=False)
    return torch.from_numpy(values).to(getattr(torch, spec["dtype"]))


def run(job: dict) -> None:
    code = compile(job["source"], "reference", "exec", dont_inherit=True, optimize=1)  # sizes are not asserted
    names: dict = {"__name__": "reference"}
    exec(code, names)
    with torch.no_grad():
        made = names["run"](*(argument(i, spec) for i, spec in enumerate(job["arguments"])))
    if isinstance(made, dict):
        made = [made[name] for name in job["outputs"]]
    values = list(made) if isinstance(made, (tuple, list)) else [made]
    tensors = [torch.as_tensor(value) for value in values]
    for i, tensor in enumerate(tensors):
        tensor.to(torch.float64).contiguous().numpy().tofile(f"{i}.out")
    shapes = [list(tensor.shape) for tensor in tensors]
    Path("answer.json").write_text(json.dumps({"shapes": shapes}))


def main() -> None:
    torch.set_num_threads(1)
    job = json.loads(Path("job.json").read_text())
    child = os.fork()
    if child == 0:
        signal.alarm(job["seconds"])
        try:
            run(job)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"[:500]
            Path("answer.json").write_text(json.dumps({"error": said}))
        os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
