"""The bench by itself: its process comes when there is work and goes when there is none, or too much."""

from __future__ import annotations

import os

import anyio
import pytest
from mcp_host import AXES, Place, children_of, gone

from kforge.mcp import bench as benches
from kforge.mcp.bench import Bench
from kforge.mcp.failures import CallFailed, Refusal
from kforge.mcp.jobs import RenderJob, Subject
from kforge.mcp.measured import Rendered

JOB = RenderJob(subject=Subject(operator="silu_mul", axes=AXES, kernel="default", text=None, params={}))


async def unheard(seconds: float, now: str) -> None:
    return


def test_a_call_that_takes_too_long_ends_with_its_process_and_the_next_gets_another(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KFORGE_HOME", str(place.home))

    async def main() -> None:
        async with Bench().open() as bench:
            with pytest.raises(CallFailed) as told:
                await bench.run(JOB, Rendered, 0.05, unheard)
            assert told.value.kind is Refusal.LIMIT
            assert children_of(os.getpid()) == set()
            assert (await bench.run(JOB, Rendered, 120, unheard)).source
        assert children_of(os.getpid()) == set()

    anyio.run(main)


def test_a_bench_that_nobody_uses_lets_its_process_go(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KFORGE_HOME", str(place.home))
    monkeypatch.setattr(benches, "_IDLE", 0.8)

    async def main() -> None:
        async with Bench().open() as bench:
            await bench.run(JOB, Rendered, 120, unheard)
            await gone(children_of(os.getpid()))
            assert (await bench.run(JOB, Rendered, 120, unheard)).source

    anyio.run(main)


def test_a_process_that_dies_fails_one_call(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KFORGE_HOME", str(place.home))

    async def main() -> None:
        async with Bench().open() as bench:
            await bench.run(JOB, Rendered, 120, unheard)
            (worker,) = children_of(os.getpid())
            worker.kill()
            with pytest.raises(CallFailed, match="went away"):
                await bench.run(JOB, Rendered, 120, unheard)
            assert (await bench.run(JOB, Rendered, 120, unheard)).source

    anyio.run(main)
