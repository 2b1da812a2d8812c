"""What all tools share: the bench, the runs, the models; and one way to have a job done and written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
from mcp.server.mcpserver import Context

from kforge.core.paths import data_dir
from kforge.core.target import Target
from kforge.core.workload import Attr
from kforge.mcp.bench import Bench, Watch
from kforge.mcp.catalogue import Models
from kforge.mcp.failures import CallFailed
from kforge.mcp.jobs import HostJob, Job, Subject
from kforge.mcp.measured import Answer
from kforge.mcp.runs import Run, Runs
from kforge.targets.files import load_target

A = TypeVar("A", bound=Answer)
T = TypeVar("T")
_PROBE_SECONDS = 300.0
_UNLOGGED = ("source", "text", "build", "loops")  # fields of an answer that calls.jsonl goes without


class Desk:
    """One for a server."""

    def __init__(self, runs_dir: Path, models: Sequence[Path]) -> None:
        self.bench = Bench()
        self.runs = Runs(runs_dir)
        self.runs_dir = runs_dir
        self.models = Models(models)
        self._host: Target | None = None

    async def host(self, context: Context) -> Target:
        """This machine, probed on the bench when nobody has probed it yet."""
        if self._host is None:
            if not (data_dir() / "targets" / "host.toml").is_file():
                await self.bench.run(HostJob(), Answer, _PROBE_SECONDS, watch_of(context))
            self._host = await self.read(lambda: load_target("host"))
        return self._host

    async def read(self, what: Callable[[], T]) -> T:
        """Something quick, beside the event loop."""
        return await anyio.to_thread.run_sync(what)

    async def subject(
        self,
        run: Run,
        operator: str,
        axes: Mapping[str, Attr],
        kernel: str,
        params: Mapping[str, Attr],
        *,
        relaxed: bool = False,
        threads: int = 0,
    ) -> Subject:
        """Raises CallFailed for a source that the run does not hold."""
        text = (
            await self.read(lambda: run.read(kernel))
            if kernel.endswith((".cc", ".cc.j2")) and "/" not in kernel
            else None
        )
        return Subject(
            operator=operator,
            axes=dict(axes),
            kernel=kernel,
            text=text,
            params=dict(params),
            relaxed=relaxed,
            threads=threads,
        )

    async def done(self, job: Job, subject: Subject | None, answer: type[A], seconds: float, run: Run,
                   context: Context) -> A:
        """The job's answer; it and every failure is a line of the run's calls. Raises CallFailed."""
        asked = subject.model_dump(exclude={"text"}) if subject else job.model_dump(exclude={"kind", "runs"})
        try:
            found = await self.bench.run(job, answer, seconds, watch_of(context))
        except CallFailed as error:
            outcome = {"failed": error.kind.value, "reason": error.reason}
            await self.read(lambda: run.note(job.kind, asked, outcome))
            raise
        await self.read(lambda: run.note(job.kind, asked, found.model_dump(mode="json", exclude=set(_UNLOGGED))))
        return found


def watch_of(context: Context) -> Watch:
    """Progress as MCP has it: seconds since the call began, and what goes on."""

    async def watch(seconds: float, now: str) -> None:
        await context.report_progress(seconds, None, now or "waiting")

    return watch
