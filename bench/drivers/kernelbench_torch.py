"""The original module of a problem file, timed when asked to: eager, and through torch.compile.

Runs confined, since the file is a stranger's: in a folder of its own, with ``problem.py``, ``job.json``, a link to
kforge and two named pipes. A request is a JSON line in ``ask``, its answer one in ``answer``. ``job.json``: the file's
label, its sizes after scaling, by what leading dimensions are divided, the number of threads, and name and shape of
what the imported graph is given. The values of all that, and of what the module returns, are left in ``given.N`` and
``out.N``, float32.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

JOB = json.loads(Path("job.json").read_text())
_THREADS = str(JOB["threads"])
_HERE = str(Path.cwd())  # compilers are started elsewhere, so no path may be relative
os.environ |= {"OMP_NUM_THREADS": _THREADS, "MKL_NUM_THREADS": _THREADS, "TORCHINDUCTOR_COMPILE_THREADS": "1",
               "TORCHINDUCTOR_CACHE_DIR": f"{_HERE}/inductor", "TMPDIR": _HERE, "HOME": _HERE, "USER": "nobody",
               "LOGNAME": "nobody",
               # New outputs at every call, as torch makes them, on huge pages: with small ones the kernel's page faults
               # were more than half of a LayerNorm's time (c10/core/impl/alloc_cpu.cpp reads this).
               "THP_MEM_ALLOC_ENABLE": "1"}
sys.path.insert(0, _HERE)

import torch  # noqa: E402

from kforge.importing.exporting import given_tensors  # noqa: E402
from kforge.importing.loading import Call, Source, call_of  # noqa: E402

_SAID = 300


def opened() -> Call:
    """As the import has it, the parameters too."""
    source = Source(Path("problem.py").read_text(encoding="utf-8"), JOB["label"])
    torch.manual_seed(0)
    torch.set_num_threads(JOB["threads"])
    return call_of(source.executed(JOB["sizes"]), "", (), JOB["lead"])


def left(call: Call) -> dict[str, Any]:
    """Writes what goes in and what comes out. Raises ValueError where that isn't what was imported."""
    tensors = given_tensors(call)
    wanted = [(given["name"], tuple(given["shape"])) for given in JOB["given"]]
    if [(name, tuple(tensor.shape)) for name, tensor in tensors.items()] != wanted:
        raise ValueError("the module is given other tensors than the imported graph")
    made = call.module(*call.args)
    outputs = [made] if isinstance(made, torch.Tensor) else list(made)
    for kind, values in (("given", list(tensors.values())), ("out", outputs)):
        for number, tensor in enumerate(values):
            tensor.detach().to(torch.float32).contiguous().numpy().tofile(f"{kind}.{number}")
    return {"outputs": [list(tensor.shape) for tensor in outputs], "torch": torch.__version__}


def answered(request: dict[str, Any], call: Call, sides: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "leave":
        return left(call)
    if request["do"] == "compile":
        sides["compile"] = torch.compile(call.module)
        sides["compile"](*call.args)  # now is when it compiles
        return {}
    module, args = sides[request["side"]], call.args
    for _ in range(request["calls"]):
        module(*args)
    return {}


def main() -> None:
    with open("ask", encoding="utf-8") as ask, open("answer", "w", encoding="utf-8") as answer, torch.no_grad():
        call: Call | None = None
        sides: dict[str, Any] = {}
        for line in ask:
            request = json.loads(line)
            if request["do"] == "end":
                break
            try:
                if call is None:
                    call = opened()
                    sides["eager"] = call.module
                said = answered(request, call, sides)
            except Exception as error:  # of the file, or of torch: all are answers
                text = " ".join(str(error).split())[:_SAID]
                said = {"error": f"{type(error).__name__}: {text}"}
            print(json.dumps(said), file=answer, flush=True)


if __name__ == "__main__":
    main()
