"""``docs/kernels.md`` is what newcomers copy from: its kernels are right, and its failures are the ones there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kforge.backends.cpp.build import build
from kforge.backends.handwritten import from_file
from kforge.core.dtypes import DType
from kforge.core.kernel import KernelState
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Decision, Failure, FailureClass, NumericsClass, Verdict
from kforge.core.workload import Problem, Workload
from kforge.harness import Harness
from kforge.harness.check import CheckResult
from kforge.harness.values import Mismatch, beyond_bound
from kforge.operators import get, import_file
from kforge.operators.graph import AXIS, Given, Graph, Kind, Op, Step
from kforge.operators.import_record import GraphRecord, ImportRecord, write
from kforge.operators.imported import Imported
from kforge.registry.database import Registry
from kforge.targets.files import save_target
from kforge.tuner.winners import Seconds, record_of

PAGE = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")


def block(language: str, number: int = 0) -> str:
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return found[number]


@pytest.fixture
def swish(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Imported:
    """The page's function as its import makes it, in a data folder in which this machine need not be probed."""
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    save_target(target, tmp_path / "targets" / "host.toml")
    shape = (AXIS, 1000)
    steps = (Step("gate", Op.SIGMOID, ("x",), shape), Step("gated", Op.MUL, ("x", "gate"), shape),
             Step("scaled", Op.MUL, ("gated", "scale"), shape))
    graph = Graph((Given("x", shape, Kind.ARGUMENT), Given("scale", (1000,), Kind.ARGUMENT)), steps, ("scaled",))
    record = ImportRecord(name="swish", source="swish.py:swish", source_hash="0" * 16, graph=GraphRecord.of(graph),
                          batch=256)
    write(record, import_file("swish"))
    made = get("swish")
    assert isinstance(made, Imported)
    return made


def swish_kernel(operator: Imported, target: Target, folder: Path) -> Candidate:
    (file := folder / "swish.cc.j2").write_text(block("jinja", 1))
    return from_file(file, operator.problem, target, {}, NumericsClass.RELAXED)


def test_the_pages_relaxed_template_is_right(swish: Imported, harness: Harness, target: Target, tmp_path: Path):
    result = harness.check(swish_kernel(swish, target, tmp_path), Workload.of(swish.problem, B=20))
    assert isinstance(result, CheckResult), result


def test_the_pages_python_calls_what_serves(swish: Imported, target: Target, tmp_path: Path, capsys):
    candidate = swish_kernel(swish, target, tmp_path)
    artifact = build(candidate, target)
    assert isinstance(artifact, Artifact)
    verdict = Verdict(Decision.ACCEPTED, candidate.hash, "d", 0.5, 0.4, 0.6, 50, 5, 0.0)
    with Registry.open() as registry:
        registry.begin_run("r", "swish", target.identity, tmp_path)
        kernel = record_of(candidate, artifact, verdict, None, swish.workload, target, "r", Seconds(1e-6, 2e-6))
        registry.set_state(registry.accept(kernel, artifact.data, candidate.source, {}), KernelState.PROMOTED, "a test")
    space: dict[str, Any] = {}
    exec(block("python", 1), space)
    inputs = {"x": np.array(space["x"]), "scale": np.array(space["scale"])}
    bound = swish.reference(swish.workload, inputs)["out"]
    assert not isinstance(beyond_bound("out", DType.F32, np.array(space["out"]), bound), Mismatch)
    assert str(space["out"][0, :4]) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("language", "name", "params", "axes"),
    [
        ("cpp", "rms_norm.cc", {}, {"H": 576, "residual": 1}),
        ("jinja", "rms_norm.cc.j2", {"deal": "turns"}, {"H": 576, "residual": 1}),
        ("jinja", "rms_norm.cc.j2", {}, {"H": 64, "residual": 0}),
    ],
)
def test_the_pages_kernels_are_exact(harness: Harness, target: Target, tmp_path: Path, language, name, params, axes):
    (file := tmp_path / name).write_text(block(language))
    problem = Problem.of("rms_norm", **axes)
    candidate = from_file(file, problem, target, params, NumericsClass.EXACT)
    result = harness.check(candidate, Workload.of(problem, T=8))
    assert isinstance(result, CheckResult), result


def test_a_kernel_that_takes_the_tensors_in_another_order_is_not(harness: Harness, target: Target, tmp_path: Path):
    text = block("cpp").replace("residual = launch->tensors[2], &out = launch->tensors[3]",
                                "residual = launch->tensors[3], &out = launch->tensors[2]")
    (file := tmp_path / "rms_norm.cc").write_text(text)
    problem = Problem.of("rms_norm", H=576, residual=1)
    candidate = from_file(file, problem, target, {}, NumericsClass.EXACT)
    assert isinstance(harness.check(candidate, Workload.of(problem, T=8)), Failure)


def test_every_class_of_failure_is_explained():
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(kind.value for kind in FailureClass)


def test_its_links_lead_somewhere():
    docs = Path(__file__).parents[2] / "docs"
    for link in re.findall(r"\]\(([^)]+)\)", PAGE):
        file, _, anchor = link.partition("#")
        text = (docs / file).read_text(encoding="utf-8")
        headings = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)]
        assert not anchor or anchor in headings, link
