"""Kernels as a folder of Hugging Face's ``kernels``: its own package loads it, and it runs without kforge."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kforge.backends.cpp.build import build
from kforge.backends.defaults import default_kernel
from kforge.cli import export as cli
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelState
from kforge.core.trial import Artifact, Decision, Verdict
from kforge.core.workload import Problem, Workload
from kforge.interchange.hf_kernels import Lock, Package, export, problems
from kforge.operators import Distribution, get
from kforge.registry.database import Registry
from kforge.registry.snapshot import EMPTY
from kforge.registry.store import Store
from kforge.targets.files import save_target
from kforge.torch.standalone import Function
from kforge.tuner.winners import Seconds, record_of
from tests.cli.cli_host import host_target
from tests.operators import operator_problems as some

SILU = Problem.of("silu_mul", I=333)
NORM = Problem.of("rms_norm", H=64, residual=1)
HEADS = some.attention("bf16", window=100)
COMMIT = "0123456789abcdef" * 2 + "01234567"
slow = pytest.mark.slow  # the executor is compiled

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


@slow
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


@slow
def test_its_own_package_takes_our_lock(package: Package, folder: Path, tmp_path: Path) -> None:
    """From its cache at the locked commit, where an upload and a download would have put it."""
    pytest.importorskip("kernels", reason="kernels is not installed: make setup does it")
    cache = tmp_path / "hub"
    snapshot = cache / "kernels--team--some-kernels" / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(folder)
    done = _there(folder, tmp_path, "locked", HF_HUB_CACHE=str(cache), KERNELS_CACHE=str(cache))
    assert done.returncode == 0, done.stderr[-3000:]


@slow
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


@slow
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
    with pytest.raises(KforgeError, match="no operator 'silly_mul'"):
        problems(["silly_mul"], EMPTY, target)
    with pytest.raises(KforgeError, match="silu_mul lacks I="):
        problems(["silu_mul()"], EMPTY, target)
    with pytest.raises(KforgeError, match="not an empty folder"):
        export(folder, [SILU], "ab", 1, target, EMPTY, store)


@slow
def test_the_command_exports_what_is_promoted_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its default beside it, and without what a model proposed."""
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    target, out = host_target(), tmp_path / "out"
    save_target(target, tmp_path / "targets" / "host.toml")
    workload = Workload.of(SILU, T=8)
    candidate = default_kernel(SILU, target)
    artifact = build(candidate, target)
    assert isinstance(artifact, Artifact)
    verdict = Verdict(Decision.ACCEPTED, candidate.hash, "before", 0.2, 0.1, 0.3, 40, 5, 0.01, text="it wins")
    with Registry.open() as registry:
        registry.begin_run("r1", "toy", target.identity, tmp_path)
        for at, proposer in ((workload, "builtin"), (Workload.of(SILU, T=64), "anthropic:some-model")):
            record = record_of(candidate, artifact, verdict, None, at, target, "r1", Seconds(1e-5, 1.2e-5))
            record = dataclasses.replace(record, proposer=proposer)
            number = registry.accept(record, artifact.data, candidate.source, {})
            registry.set_state(number, KernelState.PROMOTED, "for the test")
    cli.hf_kernels(out, ["silu_mul"], name="toy", repository="team/toy", commit=COMMIT)
    assert "left out: kernel 2 at T=64: anthropic:some-model proposed it" in capsys.readouterr().out
    (file,) = (out / "build").glob("*/kernels.json")
    (function,) = json.loads(file.read_text())["functions"]
    assert [k["bucket"] for k in function["kernels"]] == [{"T": 8}] and function["problem"] == SILU.key
    assert (file.parent / function["default"]["file"]).is_file()
    assert (out / "source" / f"{candidate.hash}.cc").read_text() == candidate.source
    (lock,) = json.loads((out / "kernels.lock").read_text())
    assert lock == {"dependency": {"repo-id": "team/toy", "version": 1}, "lock": {"commit": COMMIT}}
    with pytest.raises(KforgeError, match="give both"):
        cli.hf_kernels(tmp_path / "other", ["silu_mul"], repository="team/toy")


@pytest.mark.parametrize(
    ("tokens", "served"), [(1, None), (2, 8), (8, 8), (9, 8), (17, 64), (64, 64), (256, 64), (257, None)]
)
def test_a_package_serves_the_nearest_kernel_above_or_below_within_four_times(tokens: int, served: int | None) -> None:
    """As the registry does; at 9 the nearest above is more than four times off, so the nearest below serves."""
    kernels = [{"bucket": {"T": 64}}, {"bucket": {"T": 8}}]
    package = SimpleNamespace(_kernels=kernels, _default={"bucket": None})
    found = Function.kernel(package, T=tokens)["bucket"]  # type: ignore[arg-type]
    assert found == ({"T": served} if served else None)
