"""An agent's way over standard input and output: from what there is to a kernel of its own, checked and measured."""

from __future__ import annotations

import json
import os

import pytest
from mcp import Client
from mcp_host import AXES, SOURCE, Place, answer, children_of, failure, over_stdio

from kforge.operators import names


def test_everything_that_one_must_know_is_there_without_the_repository(place: Place):
    async def body(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"list_workloads", "write_source", "check", "measure", "compare", "tune", "submit", "lookup"} <= set(
            tools
        )
        assert all(tool.output_schema and tool.description for tool in tools.values())
        assert not any("trust" in tool.input_schema.get("properties", {}) for tool in tools.values())

        listed = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert {"kforge://abi.h", "kforge://example-template", "kforge://template-header"} <= listed
        read = await client.read_resource("kforge://abi.h")
        assert "kforge_scratch_bytes" in read.contents[0].text
        part = await client.read_resource("kforge://templates/cpp/common/lanes.j2")
        assert "tree_sum" in part.contents[0].text
        prompt = await client.get_prompt("write_kernel", {"operator": "rms_norm", "axes": "H=576, T=1"})
        assert "rms_norm" in prompt.messages[0].content.text

        operators = answer(await client.call_tool("list_operators", {}))["operators"]
        assert [o["name"] for o in operators] == list(names())
        for name in names():
            facts = answer(await client.call_tool("describe_operator", {"name": name}))
            assert facts["tensors"] and facts["order"] and facts["axes"], name
        weights = answer(
            await client.call_tool(
                "describe_operator", {"name": "linear", "axes": {"K": 576, "N": 960, "weight": "q4_1", "M": 1}}
            )
        )
        assert weights["tensors"][0]["shape"] == "[M, 576]"
        assert weights["panel"]

        models = answer(await client.call_tool("list_models", {}))["models"]
        assert "llama-3.2-1b:q4_0" in {m["name"] for m in models}
        rows = answer(
            await client.call_tool("list_workloads", {"model": "llama-3.2-1b:q4_0", "batch": [1], "prefill": 0})
        )["rows"]
        assert {"linear", "paged_attention", "rms_norm"} <= {row["operator"] for row in rows}
        one = next(row for row in rows if row["operator"] == "rms_norm")
        found = answer(await client.call_tool("lookup", {"operator": "rms_norm", "axes": one["axes"]}))
        assert (found["tier"], found["kernel"]) == ("default", None)
        assert found["trace"][-1]["taken"]

        templates = answer(await client.call_tool("list_templates", {"operator": "silu_mul"}))
        path = templates["templates"][0]["path"]
        assert "{% include" in answer(await client.call_tool("get_template", {"path": path}))["text"]
        assert "cpp/common/lanes.j2" in templates["parts"]
        targets = answer(await client.call_tool("list_targets", {}))["targets"]
        assert targets[0]["name"] == "host"
        assert answer(await client.call_tool("describe_target", {"name": "zen4"}))["features"]
        assert answer(await client.call_tool("list_kernels", {}))["kernels"] == []
        assert answer(await client.call_tool("list_tuning_runs", {}))["runs"] == []
        assert failure(await client.call_tool("read_report", {}))["class"] == "bad_input"

    over_stdio(place, body)
    assert not place.runs.exists()  # reading leaves nothing


def test_a_kernel_of_ones_own_is_built_checked_measured_and_explained(place: Place):
    heard: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    async def body(client: Client) -> None:
        at = {"operator": "silu_mul", "axes": AXES, "threads": 1}
        bare = {"operator": "silu_mul", "axes": AXES}
        answer(await client.call_tool("write_source", {"name": "mine.cc", "text": SOURCE}))

        built = answer(await client.call_tool("build", {"kernel": "mine.cc", **bare}))
        assert built["build"]["text_bytes"] > 0
        assert built["hot"]["innermost"]
        listing = answer(await client.call_tool("disassemble", {"kernel": "mine.cc", **bare}))
        assert listing["shown"] == built["hot"]["last"] - built["hot"]["first"] + 1 > 3
        whole = answer(
            await client.call_tool(
                "disassemble", {"kernel": "mine.cc", "everything": True, "first": 5, "count": 7, **bare}
            )
        )
        assert (whole["first"], whole["shown"], len(whole["text"].splitlines())) == (5, 7, 7)

        assert answer(await client.call_tool("check", {"kernel": "mine.cc", **at}))["cases"] > 5
        timed = answer(await client.call_tool("measure", {"kernel": "mine.cc", **at}, progress_callback=hear))
        assert timed["seconds"] > 0
        assert timed["roofline"]["bandwidth"] > 0
        assert timed["subject"]["template"] == "file:mine.cc"

        wrong = SOURCE.replace("gate[64 + i]", "gate[63 + i]")
        answer(await client.call_tool("write_source", {"name": "wrong.cc", "text": wrong}))
        told = failure(await client.call_tool("check", {"kernel": "wrong.cc", **at}))
        assert told["class"] == "incorrect"
        assert "First wrong element: out[" in told["detail"]
        assert "case" not in told["detail"]  # nothing of the shapes and seeds of checks
        answer(
            await client.call_tool("write_source", {"name": "broken.cc", "text": SOURCE.replace("kf::silu(", "sillu(")})
        )
        told = failure(await client.call_tool("build", {"kernel": "broken.cc", **bare}))
        assert told["class"] == "compile"
        assert "sillu" in told["reason"] and ">    9" in told["detail"]

        shown = answer(await client.call_tool("show_run", {}))
        assert [s["name"] for s in shown["sources"]] == ["broken.cc", "mine.cc", "wrong.cc"]
        calls = [json.loads(line) for line in shown["calls"]]
        assert [c["tool"] for c in calls] == [
            "build",
            "disassemble",
            "disassemble",
            "check",
            "measure",
            "check",
            "build",
        ]
        assert calls[-1]["outcome"]["failed"] == "compile"
        assert answer(await client.call_tool("read_source", {"name": "mine.cc"}))["text"] == SOURCE

    over_stdio(place, body)
    assert any("timing" in text for text in heard), heard
    assert len(list(place.runs.glob("agent-*/mine.cc"))) == 1


@pytest.mark.slow
def test_a_template_is_rendered_tuned_and_compared(place: Place):
    async def body(client: Client) -> None:
        at = {"operator": "silu_mul", "axes": AXES}
        text = answer(await client.call_tool("get_template", {"path": "cpp/silu_mul/portable.cc.j2"}))["text"]
        answer(await client.call_tool("open_run", {"name": "templates"}))
        own = {"run": "templates", "kernel": "mine.cc.j2", **at}
        answer(await client.call_tool("write_source", {"run": "templates", "name": "mine.cc.j2", "text": text}))
        rendered = answer(await client.call_tool("render_template", {"params": {"unroll": 4}, **own}))
        assert rendered["subject"]["params"]["unroll"] == 4
        assert "{%" not in rendered["source"]
        told = failure(await client.call_tool("render_template", {"params": {"unroll": 3}, **own}))
        assert told["class"] == "template"

        tuned = answer(await client.call_tool("tune", {"trials": 3, "seconds": 60, "threads": 1, **own}))
        assert tuned["trials"] == 3
        assert tuned["default_seconds"] > 0
        assert len(tuned["best"]) == 3
        assert sorted(p["seconds"] for p in tuned["best"]) == [p["seconds"] for p in tuned["best"]]

        best = tuned["best"][0]["params"]
        held = answer(await client.call_tool("compare", {"params": best, "threads": 1, "against": "default", **own}))
        if held["unmeasured"]:
            assert "incumbent itself" in held["unmeasured"]
        else:
            assert held["lower"] <= held["ratio"] <= held["upper"]

    over_stdio(place, body)


def test_the_server_leaves_no_process_when_its_client_goes(place: Place):
    async def body(client: Client) -> None:
        answer(await client.call_tool("write_source", {"name": "mine.cc", "text": SOURCE}))
        answer(
            await client.call_tool("check", {"kernel": "mine.cc", "operator": "silu_mul", "axes": AXES, "threads": 1})
        )
        # Of all below this process the one that has no parent among them.
        below = children_of(os.getpid())
        (server,) = (process for process in below if process.ppid() == os.getpid())
        assert len(children_of(server.pid)) >= 1  # its bench, ready for the next call

    over_stdio(place, body)
