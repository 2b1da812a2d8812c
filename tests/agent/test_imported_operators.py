"""What a model is told of an operator that was imported, and may write for one: no order, but an error bound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_model_server import Answer, FakeModelServer
from situations import NORM, TARGET, Story, task_of

from kforge.agent import prompts
from kforge.agent.answers import Writing
from kforge.agent.calls import Role
from kforge.agent.contracts import contract_of, numerics_of
from kforge.agent.drafting import Rejected, draft, root_of, source_of
from kforge.agent.evidence import sheet
from kforge.agent.ideas import Branch
from kforge.agent.prompts import Shown
from kforge.agent.pseudo_code import pseudo_code
from kforge.backends.generic import TemplateText
from kforge.backends.templates import Template
from kforge.core.trial import NumericsClass
from kforge.operators import get, import_file
from kforge.operators.graph import Given, Graph, Kind, Op, Step
from kforge.operators.import_record import GraphRecord, ImportRecord, write
from kforge.operators.imported import Imported
from kforge.tuner.generated import placed
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.plan import Task, task_at

NAME = "scaled_tail"
GRAPH = Graph(
    (Given("x", ("B", 6), Kind.ARGUMENT), Given("w", (4, 6), Kind.PARAMETER)),
    (
        Step("turned", Op.PERMUTE, ("w",), (6, 4), dims=(1, 0)),
        Step("y", Op.MATMUL, ("x", "turned"), ("B", 4)),
        Step("tail", Op.SLICE, ("y",), ("B", 2), dims=(1,), bounds=(2, 4)),
        Step("half", Op.SCALAR, (), (), value=0.5),
        Step("scaled", Op.MUL, ("tail", "half"), ("B", 2)),
        Step("all", Op.CONCAT, ("scaled", "y"), ("B", 6), dims=(1,)),
        Step("grid", Op.RESHAPE, ("all",), ("B", 2, 3)),
        Step("most", Op.MAX, ("grid",), ("B", 2, 1), dims=(2,)),
        Step("least", Op.MINIMUM, ("most", "half"), ("B", 2, 1)),
    ),
    ("least", "scaled"),
)
CODE = """\
x: f32[B, 6]  # argument
w: f32[4, 6]  # parameter
turned = transpose(w, (1, 0))  # [6, 4]
y = x @ turned  # [B, 4]
tail = y[:, 2:4]  # [B, 2]
half = 0.5  # []
scaled = tail * half  # [B, 2]
all = concatenate((scaled, y), axis=1)  # [B, 6]
grid = reshape(all, (B, 2, 3))  # [B, 2, 3]
most = max(grid, axis=(2,), keepdims=True)  # [B, 2, 1]
least = minimum(most, half)  # [B, 2, 1]
return least, scaled"""
TEMPLATE = """{#- kforge
operator = "scaled_tail"
version = 1
numerics = "relaxed"
summary = "the plain one"
[params.rows]
choices = [1, 2]
default = 1
-#}
#include "kforge/abi.h"
extern "C" void kforge_kernel(const struct kf_launch *launch) { (void)launch; }
"""


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Imported:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    file = import_file(NAME)
    file.parent.mkdir(parents=True)
    record = ImportRecord(name=NAME, source="a test", source_hash="0" * 16, graph=GraphRecord.of(GRAPH), batch=8)
    write(record, file)
    made = get(NAME)
    assert isinstance(made, Imported)
    return made


@pytest.fixture
def task(operator: Imported) -> Task:
    return task_at(operator.problem, [{"B": 8}])


@pytest.fixture
def template(operator: Imported, tmp_path: Path) -> Template:
    return placed([TemplateText("plain", TEMPLATE)], NAME, tmp_path)[0]


def test_a_graph_is_read_a_line_for_each_value() -> None:
    assert pseudo_code(GRAPH) == CODE


def test_its_contract_has_the_graph_and_the_bound_instead_of_an_order(operator: Imported) -> None:
    contract = contract_of(operator.workload)
    assert contract.relaxed and contract.graph == CODE and not contract.order
    assert "error" in contract.bound and not contract_of(task_of(NORM).buckets[0].workload).relaxed
    assert [(t.name, t.shape) for t in contract.tensors][:2] == [("x", "[B, 6]"), ("w", "[4, 6]")]
    assert numerics_of(NAME) is NumericsClass.RELAXED and numerics_of("rms_norm") is NumericsClass.EXACT


def test_a_prompt_says_what_it_computes_and_that_an_error_bound_decides(task: Task, template: Template) -> None:
    story = Story(task, limits=(0.5,))
    story.measured(template, 2.0, rows=1)
    prompt = prompts.analyst(sheet(story.situation, []), Shown("to be improved", source_of(template)), Branch(""))
    assert CODE in prompt.user and "no order specification" in prompt.user and "step of the model" not in prompt.user
    assert "error bound of the graph" in prompt.system and "gives its bits" not in prompt.system
    other = prompts.system(Role.ANALYST, TARGET, 2)
    assert "gives its bits" in other and "error bound of the graph" not in other


def test_a_template_for_it_must_be_relaxed(task: Task, template: Template, tmp_path: Path) -> None:
    root = root_of(tmp_path / "run")

    def drafted(text: str) -> Template | Rejected:
        answer = Writing(name="mine", hypothesis="h", template=text)
        return draft(answer, 1, None, task, TARGET, root, [template])

    exact = drafted(TEMPLATE.replace('"relaxed"', '"exact"').replace("[1, 2]", "[1, 4]"))
    assert isinstance(exact, Rejected) and 'must be "relaxed"' in exact.failure.reason
    assert isinstance(drafted(TEMPLATE.replace("[1, 2]", "[1, 4]")), Template)
    same = drafted(TEMPLATE)
    assert isinstance(same, Rejected) and same.duplicate  # of the generated one


@pytest.mark.slow
def test_a_models_template_for_an_imported_operator_competes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    relu = Graph((Given("x", ("B", 64), Kind.ARGUMENT),), (Step("y", Op.RELU, ("x",), ("B", 64)),), ("y",))
    record = ImportRecord(name="only_relu", source="a test", source_hash="0" * 16, graph=GraphRecord.of(relu), batch=32)
    (home / "operators").mkdir(parents=True)
    write(record, home / "operators" / "only_relu.json")
    body = """const float *x = (const float *)launch->tensors[0].data;
    float *out = (float *)launch->tensors[1].data;
    for (int64_t i = launch->thread; i < 64 * launch->axes[0]; i += launch->threads) out[i] = x[i] < 0 ? 0.0f : x[i];"""
    text = TEMPLATE.replace(NAME, "only_relu").replace("(void)launch;", body)
    analysis = {"bottleneck": "fixed_cost", "evidence": "the time", "move": "write_new", "predicted_gain": 0.1,
                "change": "one loop", "difficulty": 1}
    steps = [Answer(calls=(("propose_next_move", json.dumps(analysis)),)),
             Answer(calls=(("submit_template", json.dumps({"name": "one", "hypothesis": "h", "template": text})),))]
    env = {name: value for name, value in os.environ.items() if "API_KEY" not in name}
    with FakeModelServer(*steps).running() as server:
        env |= {"KFORGE_HOME": str(home), "OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{server.url}/v1"}
        command = [sys.executable, "-m", "kforge.cli.main", "tune", "only_relu", "--agent", "openai:some-model",
                   "--max-tokens", "400000", "--max-calls", "2", "--budget", "80s", "--runs-dir",
                   str(tmp_path / "runs")]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    lines = RunFolder.lines_of(run)
    (proposal,) = [line.data for line in lines if line.kind is Event.PROPOSAL]
    mine = [line.data["trial"] for line in lines if line.kind is Event.TRIAL
            and line.data["trial"]["template"] == proposal["path"]]
    assert mine and all(trial["failure"] is None for trial in mine)
    assert any("y = relu(x)" in json.dumps(asked.body) for asked in server.asked)
