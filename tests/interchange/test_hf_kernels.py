"""Kernels as a folder of Hugging Face's ``kernels``: its own package loads it, and it runs without kforge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kforge.core.errors import KforgeError
from kforge.core.workload import Problem, Workload
from kforge.interchange.hf_kernels import Lock, Package, export, problems
from kforge.operators import Distribution, get
from kforge.registry.snapshot import EMPTY
from kforge.registry.store import Store
from tests.cli.cli_host import host_target
from tests.operators import operator_problems as some

SILU = Problem.of("silu_mul", I=333)
NORM = Problem.of("rms_norm", H=64, residual=1)
HEADS = some.attention("bf16", window=100)
COMMIT = "0123456789abcdef" * 2 + "01234567"
pytestmark = pytest.mark.slow  # the executor is compiled

# Run where nothing of kforge can be imported: the package's loader, the tensors of a case, and what came out.
_THERE = """
import json, sys
from pathlib import Path
import numpy as np, torch
import kernels
from kernels._rust import Digest, DigestAlgorithm, Metadata
folder, cases, how = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
assert not any(name.split(".")[0] == "kforge" for name in sys.modules)
try:
    import kforge
    raise SystemExit("kforge can be imported")
except ImportError:
    pass
if how == "local":
    module = kernels.get_local_kernel(folder)
else:
    module = kernels.load_kernel("team/some-kernels", lockfile=folder / "kernels.lock")
(variant,) = (folder / "build").iterdir()
metadata = Metadata.read_from_file(variant / "metadata.json")
metadata.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, variant))
for case in sorted(cases.glob("*.npz")):
    given = dict(np.load(case))
    name = case.stem
    tensors = {}
    for key, value in given.items():
        tensor = torch.from_numpy(value) if value.ndim else value.item()
        tensors[key] = tensor.view(torch.bfloat16) if key in ("k_cache", "v_cache") else tensor
    function = getattr(module, name)
    out = function(**tensors)
    checks = torch.library.opcheck(function.op, (), {k: v.clone() if isinstance(v, torch.Tensor) else v
                                                     for k, v in tensors.items()})
    assert set(checks.values()) == {"SUCCESS"}, checks
    compiled = torch.compile(lambda t: function(**t), backend="aot_eager", fullgraph=True)
    again = compiled({k: torch.from_numpy(given[k]).view(tensors[k].dtype) if isinstance(tensors[k], torch.Tensor)
                      else tensors[k] for k in tensors}) if name.startswith("silu") else out
    assert torch.equal(again, out)
    np.savez(case.with_suffix(".out"), out=out.numpy(), **{k: v.numpy() for k, v in tensors.items()
                                                           if k == "residual"})
print("loaded", metadata.name, metadata.version)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("package") / "out"


@pytest.fixture(scope="module")
def package(folder: Path) -> Package:
    target = host_target()
    wanted = problems([SILU.key, NORM.key, HEADS.problem.key], EMPTY, target)
    store = Store(folder.parent / "store")
    return export(folder, wanted, "some-kernels", 3, target, EMPTY, store, Lock("team/some-kernels", COMMIT))


def _there(folder: Path, cases: Path, how: str, **env: str) -> subprocess.CompletedProcess[str]:
    """From an empty folder; kforge, which is installed where this runs, is hidden."""
    hidden = cases / "hidden"
    hidden.mkdir(exist_ok=True)
    code = f"import sys; sys.modules['kforge'] = None\n{_THERE}".replace(
        "assert not any(name", "assert not any(sys.modules[name] is not None and name")
    return subprocess.run([sys.executable, "-c", code, str(folder), str(cases), how], capture_output=True, text=True,
                          cwd=hidden, env={**os.environ, "HF_HUB_OFFLINE": "1", **env}, timeout=250, check=False)


def test_its_own_package_loads_the_folder_and_runs_it_right(package: Package, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("kernels", reason="kernels is not installed: make setup does it")
    workloads = [Workload.of(SILU, T=5), Workload.of(NORM, T=3), HEADS]
    inputs = {}
    for name, workload in zip(package.functions, workloads, strict=True):
        inputs[name] = get(workload.problem.operator).inputs(workload, 1, Distribution.NORMAL)
        explicit = {"max_context": np.array(workload.axes["max_context"])} if workload is HEADS else {}
        np.savez(tmp_path / f"{name}.npz", **inputs[name], **explicit)
    done = _there(folder, tmp_path, "local")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "loaded some-kernels 3" in done.stdout
    for name, workload in zip(package.functions, workloads, strict=True):
        operator, found = get(workload.problem.operator), dict(np.load(tmp_path / f"{name}.out.npz"))
        for tensor, bound in operator.reference(workload, inputs[name]).items():
            assert (np.abs(found[tensor] - bound.reference) <= bound.bound).all()
        for tensor, value in operator.spec(workload, inputs[name]).items():
            assert found[tensor].tobytes() == value.tobytes()


def test_its_own_package_takes_our_lock(package: Package, folder: Path, tmp_path: Path) -> None:
    """From its cache at the locked commit, where an upload and a download would have put it."""
    pytest.importorskip("kernels", reason="kernels is not installed: make setup does it")
    cache = tmp_path / "hub"
    snapshot = cache / "kernels--team--some-kernels" / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(folder)
    done = _there(folder, tmp_path, "locked", HF_HUB_CACHE=str(cache), KERNELS_CACHE=str(cache))
    assert done.returncode == 0, done.stderr[-3000:]


def test_another_processor_is_told_what_it_lacks(package: Package, folder: Path, tmp_path: Path) -> None:
    (variant,) = (folder / "build").iterdir()
    copied = tmp_path / "package"
    copied.mkdir()
    for file in variant.iterdir():
        if file.is_file():
            (copied / file.name).write_bytes(file.read_bytes())
    said = json.loads((copied / "kernels.json").read_text())
    (copied / "kernels.json").write_text(json.dumps({**said, "features": [*said["features"], "avx2048"]}))
    done = subprocess.run([sys.executable, "-c", "import package"], cwd=tmp_path, capture_output=True, text=True,
                          check=False)
    assert "ImportError: these kernels were built with avx2048" in done.stderr


def test_what_cannot_go_out_is_said_before_anything_is_written(folder: Path, package: Package, tmp_path: Path) -> None:
    target, store = host_target(), Store(tmp_path / "store")
    for wanted, name, lock, said in (
        ([SILU], "Some_Kernels", None, "lower-case"),
        ([SILU], "ab", Lock("team/x", "abc"), "no full commit id"),
        ([SILU], "ab", Lock("x", COMMIT), "no repository"),
    ):
        with pytest.raises(KforgeError, match=said):
            export(tmp_path / "out", wanted, name, 1, target, EMPTY, store, lock)
        assert not (tmp_path / "out").exists()
    with pytest.raises(KforgeError, match="no kernel of 'silu_mul' is promoted"):
        problems(["silu_mul"], EMPTY, target)
    with pytest.raises(KforgeError, match="silu_mul lacks I="):
        problems(["silu_mul()"], EMPTY, target)
    with pytest.raises(KforgeError, match="not an empty folder"):
        export(folder, [SILU], "ab", 1, target, EMPTY, store)
