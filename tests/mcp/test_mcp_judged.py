"""An agent's kernel before the judge, in the registry, and what a look-up says of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from mcp import Client
from mcp_host import AXES, SOURCE, Place, answer, failure, host_target, over_stdio

from kforge.backends.cpp.build import build
from kforge.backends.handwritten import from_text
from kforge.core.kernel import KernelState
from kforge.core.trial import Artifact, Decision, NumericsClass, Verdict
from kforge.core.workload import Problem, Workload
from kforge.registry.ask import open_snapshot
from kforge.registry.database import Registry
from kforge.targets.noise import Noise, NoiseClass, save_noise
from kforge.tuner.winners import Seconds, record_of

PROBLEM = Problem.of("silu_mul", I=64)
# Everything forty times over; the barrier keeps the compiler from noticing.
SLOW = SOURCE.replace(
    "for (int64_t i", 'for (int n = 0; n < 40; ++n, ({ asm volatile("" ::: "memory"); }))\n for (int64_t i'
)


def slow_incumbent(home: Path) -> str:
    """A promoted kernel that does all work forty times, on a machine that is known to be busy."""
    target = host_target()
    slow = from_text("slow.cc", SLOW, PROBLEM, target, {}, NumericsClass.EXACT)
    artifact = build(slow, target)
    assert isinstance(artifact, Artifact)
    for threads in range(1, target.cores + 1):
        save_noise(Noise(threads, (NoiseClass(math.inf, 0.1, 1.5, 2.0),), 60, "2026-01-01"), target)
    with Registry.open(home / "registry.db") as registry:
        registry.begin_run("earlier", "toy", target.identity, home)
        verdict = Verdict(Decision.ACCEPTED, slow.hash, "d", 0.5, 0.4, 0.6, 50, 5, 0.0)
        at = Workload.of(PROBLEM, T=4)
        record = record_of(slow, artifact, verdict, None, at, target, "earlier", Seconds(1e-4, 2e-4))
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
