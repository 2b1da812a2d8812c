"""The server's parts by themselves: names and files, long lines, what stands in documents."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path

import anyio
import pytest
from mcp_host import host_target

from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord
from kforge.core.paths import shipped
from kforge.core.trial import NumericsClass
from kforge.core.workload import Problem
from kforge.mcp.catalogue import EXAMPLES, Models
from kforge.mcp.desk import Desk
from kforge.mcp.failures import CallFailed
from kforge.mcp.jobs import PromoteJob
from kforge.mcp.references import REFERENCES, template_text
from kforge.mcp.runs import Runs
from kforge.mcp.stdio import MOST_LINE, Lines
from kforge.mcp.tools import documented, tools_of
from kforge.mcp.workbench import Workbench
from kforge.models import load
from kforge.models.graph import StepOptions
from kforge.models.synth import synth
from kforge.operators import names
from kforge.registry.database import Registry
from kforge.targets.files import save_target
from kforge.tuner.options import TuneOptions
from kforge.tuner.promoting import calling, least


@pytest.mark.parametrize(
    "name", ["..", "../x.cc", "/etc/passwd", "a/b.cc", "x.cc\0", "x.cc\n", "x.sh", ".cc", "calls.jsonl", ""]
)
def test_no_name_of_a_source_leads_out_of_its_run(tmp_path: Path, name: str):
    run = Runs(tmp_path).open("mine")
    for act in (lambda: run.read(name), lambda: run.write(name, "x")):
        with pytest.raises(CallFailed, match="no name of a source"):
            act()
    assert os.listdir(tmp_path) == ["agent-mine"]
    assert os.listdir(tmp_path / "agent-mine") == []


@pytest.mark.parametrize("name", ["..", "../x", "/tmp", "a/b", "A", "x\0", "-x", "x" * 49])
def test_no_name_of_a_run_leads_out_of_the_runs(tmp_path: Path, name: str):
    with pytest.raises(CallFailed, match="no name of a run"):
        Runs(tmp_path).open(name)


def test_links_are_not_followed_and_a_write_replaces_them(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("top")
    run = Runs(tmp_path / "runs").open("mine")
    (run.path / "link.cc").symlink_to(secret)
    with pytest.raises(CallFailed, match="no plain file"):
        run.read("link.cc")
    assert run.sources() == []
    run.write("link.cc", "mine")
    assert (secret.read_text(), run.read("link.cc")) == ("top", "mine")
    (run.path / "calls.jsonl").symlink_to(secret)
    run.note("check", {}, {})
    assert secret.read_text() == "top"

    (tmp_path / "runs" / "agent-away").symlink_to(tmp_path)
    with pytest.raises(CallFailed, match="no folder"):
        Runs(tmp_path / "runs").open("away")


def test_a_pipe_and_a_folder_are_no_sources(tmp_path: Path):
    run = Runs(tmp_path).open("mine")
    os.mkfifo(run.path / "pipe.cc")
    (run.path / "folder.cc").mkdir()
    for name in ("pipe.cc", "folder.cc"):
        with pytest.raises(CallFailed, match="no plain file"):
            run.read(name)
    with pytest.raises(CallFailed):
        run.write("folder.cc", "x")
    assert sorted(os.listdir(run.path)) == ["folder.cc", "pipe.cc"]


def test_a_run_holds_so_many_sources_and_no_more(tmp_path: Path):
    run = Runs(tmp_path).open("mine")
    for n in range(200):
        run.write(f"k{n}.cc", "x")
    with pytest.raises(CallFailed, match="200 sources"):
        run.write("more.cc", "x")
    run.write("k7.cc", "again")
    assert run.read("k7.cc") == "again"


def test_the_servers_own_run_is_one_and_named_runs_are_found_again(tmp_path: Path):
    runs = Runs(tmp_path)
    assert runs.open("").path == runs.open("").path
    assert Runs(tmp_path).open("").path != runs.open("").path
    runs.open("mine").write("a.cc", "x")
    assert [f.name for f in Runs(tmp_path).open("mine").sources()] == ["a.cc"]


def test_a_line_that_is_too_long_is_refused_by_its_id_and_the_next_is_read():
    async def main() -> None:
        out, into = os.pipe()
        lines = Lines(out)
        lines.start()

        def feed() -> None:
            for data in (b'{"id": 1}\n\n', b'{"id": 77, "x": "', b"y" * (MOST_LINE + 10), b'"}\n', b'{"id": 2}\n'):
                os.write(into, data) if len(data) < 1000 else _write_all(into, data)
            os.close(into)

        found: list[str] = []
        refused: list[object] = []

        async def refusals() -> None:
            refused.append(await lines.refused.receive())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, feed)
            tasks.start_soon(refusals)
            async for line in lines:
                found.append(line)
        assert (found, refused) == (['{"id": 1}', '{"id": 2}'], [77])
        os.close(out)

    anyio.run(main)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def test_every_operator_has_an_example():
    assert set(EXAMPLES) == set(names())


def test_every_reference_says_something_and_templates_are_known_by_name_only():
    for reference in REFERENCES.values():
        assert len(reference.read()) > 300, reference.topic
    assert "requires" in REFERENCES["template-header"].read()
    assert template_text("cpp/silu_mul/portable.cc.j2")
    for path in ("../pyproject.toml", "/etc/passwd", "cpp/silu_mul/../silu_mul/portable.cc.j2", "cpp/silu_mul", ""):
        assert template_text(path) is None


def test_the_documented_tools_are_the_tools(tmp_path: Path):
    page = (shipped("docs") / "agents.md").read_text(encoding="utf-8")
    table = documented(tools_of(Desk(tmp_path, ())))
    assert table in page, f"docs/agents.md should hold this table:\n{table}"


def test_models_are_those_that_the_user_named_and_well_known_shapes(tmp_path: Path):
    synth("tiny-llama-test", "q4_0", file := tmp_path / "mine.gguf", 1, 0)
    models = Models([file])
    assert "mine" in {m.name for m in models.list().models}
    rows = models.workloads("mine", [1], [64], 0, StepOptions(), host_target()).rows
    shape = models.workloads("tiny-llama-test:q4_0", [1], [64], 0, StepOptions(), host_target()).rows
    assert [r.operator for r in rows] == [r.operator for r in shape]
    assert sum(r.share for r in rows) == pytest.approx(1)
    for name in (str(file), "mine.gguf", "../mine", "llama-3.2-1b:q9", "nobody"):
        with pytest.raises((CallFailed, KforgeError)):
            models.workloads(name, [1], [64], 0, StepOptions(), host_target())


def test_folders_of_the_cache_are_models_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KFORGE_CACHE", str(tmp_path))
    synth("tiny-llama-test", "w8a8", folder := tmp_path / "models" / "tiny-1.5-w8a8", 1, 0)
    (tmp_path / "models" / "tiny.12.part").mkdir()
    (tmp_path / "models" / "tiny.12.part" / "config.json").write_text("{")
    models = Models([])
    assert models.file("tiny-1.5-w8a8") == folder
    assert not [m.name for m in models.list().models if "part" in m.name]
    rows = models.workloads("tiny-1.5-w8a8", [1], [64], 0, StepOptions(kv="i8"), host_target()).rows
    assert {r.axes["act"] for r in rows if r.operator == "linear"} == {"a8_token", "f32"}
    assert [r.axes["kv"] for r in rows if r.operator == "paged_attention"] == ["i8"]


@pytest.mark.parametrize(("problem", "kv", "act"), [
    (Problem.of("paged_attention", Hq=4, Hkv=2, D=64, P=64, kv="i8"), "i8", "a8"),
    (Problem.of("linear", K=64, N=64, weight="int8_channel", act="a8_token", epilogue="none", bias=0, rows=32), "f16",
     "a8"),
    (Problem.of("linear", K=64, N=64, weight="int8_channel", act="f32", epilogue="none", bias=0, rows=32), "f16",
     "f32"),
    (Problem.of("linear", K=64, N=64, weight="bf16", act="f32", epilogue="none", bias=0, rows=32), "f16", "a8"),
    (Problem.of("linear", K=64, N=64, weight="bf16", act="bf16_dot", epilogue="none", bias=0, rows=32), "f16", "bf16"),
    (Problem.of("linear", K=64, N=64, weight="bf16", act="bf16", epilogue="none", bias=0, rows=32), "f16", "a8"),
    (Problem.of("rms_norm", H=64, residual=0), "f16", "a8"),
])
def test_a_kernel_is_promoted_in_an_engine_that_calls_it(problem: Problem, kv: str, act: str):
    """No client says which KV cache and activations that are."""
    options = calling(problem, TuneOptions())
    assert (options.kv, options.act) == (kv, act)


def test_a_promotion_that_measured_nothing_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    save_target(host_target(), tmp_path / "targets" / "host.toml")
    synth("tiny-llama-test", "q4_0", file := tmp_path / "mine.gguf", 1, 0)
    code = hashlib.sha256(b"").hexdigest()
    problem, here = Problem.of("rms_norm", H=64, residual=0), host_target().identity
    kernel = KernelRecord("c0ffee", problem, (("T", 2),), here, "host", 1, 1, NumericsClass.EXACT, (), "cpp", "mine.cc",
                          "t", (), code, code, "g++", 1.0, 2.0, 0.1, 0.1, "r1")
    with Registry.open() as registry:
        registry.begin_run("r1", "model", here, tmp_path)
        number = registry.accept(kernel, b"", "", {})
    runs = tmp_path / "runs"
    job = PromoteJob(kernel=str(number), model=str(file), runs=str(runs), batches=[2], context=64, prefill=0)
    with pytest.raises(KforgeError, match="no problem of"):
        Workbench().do(job, print)
    assert os.listdir(runs) == []


def test_no_client_chooses_where_a_kernel_must_not_lose(tmp_path: Path):
    synth("tiny-llama-test", "q4_0", file := tmp_path / "mine.gguf", 1, 0)
    model = load(file)
    assert [mode.name for mode in least(model)] == ["decode batch 1 context 512", "decode batch 8 context 512",
                                                    "prefill 512"]
    model.config = dataclasses.replace(model.config, context_length=256)
    assert [mode.context for mode in least(model)] == [255, 255, 255]


def test_a_run_that_nobody_made_is_not_made_by_looking(tmp_path: Path):
    runs = Runs(tmp_path / "runs")
    for name in ("", "mine"):
        with pytest.raises(CallFailed):
            runs.known(name)
    assert not (tmp_path / "runs").exists()
    assert runs.open("mine") == runs.known("mine")
    assert runs.open("") == runs.known("")
