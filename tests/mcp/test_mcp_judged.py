"""An agent's kernel before the judge, in the registry, and what a look-up says of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from mcp import Client
from mcp_host import AXES, SOURCE, Place, answer, failure, host_target, over_http, over_stdio

from kforge.backends.cpp.build import build
from kforge.backends.defaults import default_kernel
from kforge.backends.handwritten import from_text
from kforge.core.kernel import KernelState
from kforge.core.trial import Artifact, Decision, NumericsClass, Verdict
from kforge.core.workload import Problem, Workload
from kforge.models import load
from kforge.models.synth import synth
from kforge.models.workloads import workloads
from kforge.operators import get, import_file
from kforge.operators.graph import AXIS, Given, Graph, Kind, Op, Step
from kforge.operators.import_record import GraphRecord, ImportRecord, write
from kforge.registry.ask import open_snapshot
from kforge.registry.database import Registry
from kforge.targets.noise import Noise, NoiseClass, save_noise
from kforge.tuner.winners import Seconds, record_of

PROBLEM = Problem.of("silu_mul", I=64)
# Everything forty times over; the barrier keeps the compiler from noticing.
SLOW = SOURCE.replace(
    "for (int64_t i", 'for (int n = 0; n < 40; ++n, ({ asm volatile("" ::: "memory"); }))\n for (int64_t i'
)


def slow_incumbent(home: Path, problem: Problem = PROBLEM, text: str = SLOW,
                   numerics: NumericsClass = NumericsClass.EXACT, **at: int) -> str:
    """A promoted kernel that does all work many times, on a machine that is known to be busy."""
    target = host_target()
    slow = from_text("slow.cc", text, problem, target, {}, numerics)
    artifact = build(slow, target)
    assert isinstance(artifact, Artifact)
    for threads in range(1, target.cores + 1):
        save_noise(Noise(threads, (NoiseClass(math.inf, 0.1, 1.5, 2.0),), 60, "2026-01-01"), target)
    with Registry.open(home / "registry.db") as registry:
        registry.begin_run("earlier", "toy", target.identity, home)
        verdict = Verdict(Decision.ACCEPTED, slow.hash, "d", 0.5, 0.4, 0.6, 50, 5, 0.0)
        where = Workload.of(problem, **at or {"T": 4})
        record = record_of(slow, artifact, verdict, None, where, target, "earlier", Seconds(1e-4, 2e-4))
        number = registry.accept(record, artifact.data, slow.source, {})
        registry.set_state(number, KernelState.PROMOTED, "for the test")
    return slow.hash


@pytest.mark.slow
def test_a_kernel_goes_from_a_client_to_the_judge_and_into_the_registry(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KFORGE_HOME", str(place.home))
    slow = slow_incumbent(place.home)

    async def body(client: Client) -> None:
        at = {"operator": "silu_mul", "axes": AXES, "threads": 1}
        question = {"operator": "silu_mul", "axes": AXES}
        assert answer(await client.call_tool("lookup", question))["kernel"]["candidate"] == slow
        answer(await client.call_tool("write_source", {"name": "mine.cc", "text": SOURCE}))
        held = answer(await client.call_tool("compare", {"kernel": "mine.cc", "against": "tuned", **at}))
        assert held["incumbent"] == slow
        assert held["told"] == "faster", held
        verdict = answer(await client.call_tool("submit", {"kernel": "mine.cc", **at}))
        assert verdict["decision"] == "accepted", verdict
        number = str(verdict["kernel"])
        kept = answer(await client.call_tool("show_kernel", {"name": number}))
        assert (kept["kernel"]["proposer"], kept["kernel"]["state"]) == ("mcp", "accepted")
        assert "kf::silu" in kept["source"]
        listed = answer(await client.call_tool("list_kernels", {"operator": "silu_mul"}))["kernels"]
        assert str(listed[0]["number"]) == number
        found = answer(await client.call_tool("lookup", question))
        assert found["kernel"]["candidate"] == slow  # the engine has the last word

        missing = failure(await client.call_tool("submit", {"kernel": "no.cc", **at}))
        assert missing["class"] == "bad_input"
        # What another measures is respected.
        with Registry.open(place.home / "registry.db") as registry, registry.tuning_lock():
            told = failure(await client.call_tool("measure", {"kernel": "mine.cc", **at}))
        assert told["class"] == "busy"
        assert "another tune" in told["reason"]

    over_stdio(place, body)
    assert {k.state for k in open_snapshot(place.home / "registry.db").kernels} == {
        KernelState.PROMOTED,
        KernelState.ACCEPTED,
    }


@pytest.mark.slow
@pytest.mark.parametrize("over", [over_stdio, over_http])
def test_a_client_goes_from_a_model_s_workloads_to_a_promoted_kernel(
    place: Place, monkeypatch: pytest.MonkeyPatch, over: Callable[..., None]
):
    monkeypatch.setenv("KFORGE_HOME", str(place.home))
    file = place.home / "tiny.gguf"
    synth("tiny-llama-test", "q4_0", file)
    norm = next(
        row.workload.problem
        for row in workloads(load(file), (2,), (64,), 0)
        if row.workload.problem.operator == "rms_norm" and not row.workload.problem.int("residual")
    )
    # The shipped kernel two hundred times over, which without a residual is the same.
    entry, called = 'extern "C" void kforge_kernel(', "static __attribute__((noinline)) void once("
    slow = slow_incumbent(
        place.home,
        norm,
        default_kernel(norm, host_target()).source.replace(entry, called)
        + f"\n{entry}const kf_launch *l) {{ for (int n = 0; n < 200; ++n) once(l); }}\n",
        T=2,
    )

    async def body(client: Client) -> None:
        name = next(
            m["name"]
            for m in answer(await client.call_tool("list_models", {}))["models"]
            if (m["name"], m["what"]) == ("tiny", "a model file or folder")
        )
        wanted = {"model": name, "batch": [2], "context_length": [64], "prefill": 0}
        rows = answer(await client.call_tool("list_workloads", wanted))["rows"]
        row = next(r for r in rows if r["operator"] == "rms_norm" and not r["axes"]["residual"])
        at = {"operator": "rms_norm", "axes": row["axes"]}
        assert answer(await client.call_tool("lookup", at))["kernel"]["candidate"] == slow
        path = answer(await client.call_tool("list_templates", {"operator": "rms_norm"}))["templates"][0]["path"]
        text = answer(await client.call_tool("get_template", {"path": path}))["text"]
        answer(await client.call_tool("write_source", {"name": "mine.cc.j2", "text": text}))
        verdict = answer(await client.call_tool("submit", {"kernel": "mine.cc.j2", "threads": 1, **at}))
        assert verdict["decision"] == "accepted", verdict
        engine = {"model": name, "batch": [2], "context_length": 64, "prefill": 0, "threads": 1}
        for _ in range(6):  # on a busy machine a mode that hardly calls it may seem slower
            done = answer(await client.call_tool("promote", {"kernel": str(verdict["kernel"]), **engine}))
            assert all(mode["same_tokens"] for mode in done["engine"]), done
            if done["state"] == "promoted":
                break
        assert done["state"] == "promoted", done
        own, *others = sorted(done["engine"], key=lambda mode: mode["mode"] != "decode batch 2 context 64")
        assert own["same_tokens"] and own["promotes"] and own["calls"] > 10
        assert own["gain"] > 0, done
        assert "decode batch 1 context 512" in {mode["mode"] for mode in others}, done  # which no client leaves out
        found = answer(await client.call_tool("lookup", at))
        assert (found["tier"], found["kernel"]["number"]) == ("exact", verdict["kernel"])
        told = failure(await client.call_tool("promote", {"kernel": str(verdict["kernel"]), **engine}))
        assert (told["class"], "it is promoted" in told["reason"]) == ("bad_input", True)
        told = failure(await client.call_tool("promote", {"kernel": "1", **engine, "model": "no-such-model"}))
        assert "no model file 'no-such-model'" in told["reason"]

    over(place, body, "--model", str(file))


@pytest.mark.slow
def test_a_kernel_of_an_imported_operator_is_judged_and_serves_without_an_engine(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KFORGE_HOME", str(place.home))
    relu = Graph((Given("x", (AXIS, 64), Kind.ARGUMENT),), (Step("y", Op.RELU, ("x",), (AXIS, 64)),), ("y",))
    graph = GraphRecord.of(relu)
    write(ImportRecord(name="positive", source="mine.py", source_hash="0" * 16, graph=graph, batch=256),
          import_file("positive"))
    problem = get("positive").problem
    entry, called = 'extern "C" void kforge_kernel(', "static __attribute__((noinline)) void once("
    body_of = """ {
    const float *x = (const float *)l->tensors[0].data;
    float *out = (float *)l->tensors[1].data;
    for (int64_t i = l->thread; i < l->axes[0] * 64; i += l->threads) out[i] = x[i] < 0 ? 0 : x[i];
}
"""
    plain = f'#include <kforge/abi.h>\n{entry}const kf_launch *l){body_of}'
    lame = plain.replace(entry, called) + (
        f"{entry}const kf_launch *l)"
        ' { for (int n = 0; n < 200; ++n) { once(l); asm volatile("" ::: "memory"); } }\n'
    )
    slow = slow_incumbent(place.home, problem, lame, NumericsClass.RELAXED, B=256)

    async def body(client: Client) -> None:
        at = {"operator": "positive", "axes": {"B": 256}}
        assert answer(await client.call_tool("lookup", at))["kernel"]["candidate"] == slow
        answer(await client.call_tool("write_source", {"name": "mine.cc", "text": plain}))
        verdict = answer(await client.call_tool("submit", {"kernel": "mine.cc", "threads": 1, **at}))
        assert verdict["decision"] == "accepted", verdict
        found = answer(await client.call_tool("lookup", at))
        assert (found["tier"], found["kernel"]["number"]) == ("exact", verdict["kernel"])

    over_stdio(place, body)
