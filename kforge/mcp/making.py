"""Tools that write into a client's run, and those that build and measure what lies there."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context
from pydantic import Field

from kforge.core.workload import Attr
from kforge.mcp import arguments as args
from kforge.mcp import jobs, known, measured
from kforge.mcp.desk import Desk
from kforge.mcp.jobs import Subject
from kforge.mcp.runs import Run

# What a call may take, its time in the queue not counted.
_RENDER, _BUILD, _CHECK, _COMPARE, _JUDGE, _AFTER_TUNING = 60.0, 120.0, 600.0, 900.0, 1800.0, 300.0
_MOST_LINES = 2000
_BATCHES = [1, 8]
_NONE: dict[str, Attr] = {}


class Making:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def open_run(self, name: args.RunName = "") -> known.Run:
        """Open a run, the folder that your sources go to; made if there is none of this name. Without a name it is the
        run of this server, which all its clients share: over HTTP give a name of your own."""
        return await self._desk.read(lambda: _run(self._desk.runs.open(name)))

    async def show_run(self, run: args.RunName = "") -> known.Run:
        """A run's sources, and the last of what was built and measured in it."""
        return await self._desk.read(lambda: _run(self._desk.runs.known(run)))

    async def write_source(self, name: args.SourceName, text: args.SourceText, run: args.RunName = "") -> known.Written:
        """Put a kernel's source or a template of your own into your run, in place of what had its name."""

        def write() -> known.Written:
            own = self._desk.runs.open(run)
            own.write(name, text)
            return known.Written(run=own.name, folder=own.path.name, name=name, bytes=len(text.encode()))

        return await self._desk.read(write)

    async def read_source(self, name: args.SourceName, run: args.RunName = "") -> known.Text:
        """The text of a source of your run."""
        return known.Text(name=name, text=await self._desk.read(lambda: self._desk.runs.known(run).read(name)))

    async def render_template(
        self,
        context: Context,
        kernel: args.KernelName,
        operator: args.OperatorName,
        axes: args.Axes,
        params: args.Params = _NONE,
        run: args.RunName = "",
    ) -> measured.Rendered:
        """The C++ that a template becomes at these axes and parameters."""
        own, subject = await self._found(run, operator, axes, kernel, params)
        return await self._desk.done(jobs.RenderJob(subject=subject), subject, measured.Rendered, _RENDER, own, context)

    async def build(
        self,
        context: Context,
        kernel: args.KernelName,
        operator: args.OperatorName,
        axes: args.Axes,
        params: args.Params = _NONE,
        run: args.RunName = "",
    ) -> measured.Built:
        """Compile a kernel in the sandbox and admit it: the compiler's report and warnings, vector spills, instruction
        mix of the whole and of the hot loop."""
        own, subject = await self._found(run, operator, axes, kernel, params)
        return await self._desk.done(jobs.BuildJob(subject=subject), subject, measured.Built, _BUILD, own, context)

    async def disassemble(
        self,
        context: Context,
        kernel: args.KernelName,
        operator: args.OperatorName,
        axes: args.Axes,
        params: args.Params = _NONE,
        everything: Annotated[
            bool, Field(description="All of the code, from line 'first' on, instead of the hot loop.")
        ] = False,
        first: Annotated[int, Field(ge=0, le=1 << 22)] = 0,
        count: Annotated[int, Field(ge=1, le=_MOST_LINES, description="Lines at most.")] = 400,
        run: args.RunName = "",
    ) -> measured.Disassembly:
        """A built kernel's machine code: its hot loop (the innermost that computes most on vectors), or all of it."""
        own, subject = await self._found(run, operator, axes, kernel, params)
        job = jobs.DisassembleJob(subject=subject, hot=not everything, first=first if everything else 0, count=count)
        return await self._desk.done(job, subject, measured.Disassembly, _BUILD, own, context)

    async def check(
        self,
        context: Context,
        kernel: args.KernelName,
        operator: args.OperatorName,
        axes: args.Axes,
        params: args.Params = _NONE,
        relaxed: args.Relaxed = False,
        threads: args.Threads = 0,
        run: args.RunName = "",
    ) -> measured.Checked:
        """Whether a kernel is right: bit for bit the order specification (or within the error bound, if relaxed), at
        shapes and inputs of the harness's choosing. A wrong one is an error that names its class and the first wrong
        element."""
        own, subject = await self._found(run, operator, axes, kernel, params, relaxed=relaxed, threads=threads)
        return await self._desk.done(jobs.CheckJob(subject=subject), subject, measured.Checked, _CHECK, own, context)

    async def measure(
        self,
        context: Context,
        kernel: args.KernelName,
        operator: args.OperatorName,
        axes: args.Axes,
        params: args.Params = _NONE,
        relaxed: args.Relaxed = False,
        threads: args.Threads = 0,
        run: args.RunName = "",
    ) -> measured.Measured:
        """Check a kernel and time it at these axes, beside the roofline with the bandwidth measured in the same minute.
        This ranks; compare and submit decide."""
        own, subject = await self._found(run, operator, axes, kernel, params, relaxed=relaxed, threads=threads)
        return await self._desk.done(jobs.MeasureJob(subject=subject), subject, measured.Measured, _CHECK, own, context)

    async def compare(
        self,
        context: Context,
        kernel: args.KernelName,
        operator: args.OperatorName,
        axes: args.Axes,
        params: args.Params = _NONE,
        against: args.Rival = "tuned",
        relaxed: args.Relaxed = False,
        threads: args.Threads = 0,
        run: args.RunName = "",
    ) -> measured.Compared:
        """Check and time a kernel, then hold it against another in interleaved pairs: the ratio with its 95 %
        interval."""
        own, subject = await self._found(run, operator, axes, kernel, params, relaxed=relaxed, threads=threads)
        job = jobs.CompareJob(subject=subject, against=against)
        return await self._desk.done(job, subject, measured.Compared, _COMPARE, own, context)

    async def tune(
        self,
        context: Context,
        kernel: args.KernelName,
        operator: args.OperatorName,
        axes: args.Axes,
        trials: Annotated[int, Field(ge=1, le=args.MOST_TRIALS, description="Points measured at most.")] = 30,
        seconds: Annotated[int, Field(ge=5, le=args.MOST_SECONDS, description="No point is begun after them.")] = 120,
        threads: args.Threads = 0,
        run: args.RunName = "",
    ) -> measured.Tuned:
        """Search the parameters of a template (of your run, or shipped) at these axes: its defaults first, then what
        Optuna proposes. Answers with the fastest points and the failures."""
        own, subject = await self._found(run, operator, axes, kernel, _NONE, threads=threads)
        job = jobs.TuneJob(subject=subject, trials=trials, seconds=seconds)
        return await self._desk.done(job, subject, measured.Tuned, seconds + _AFTER_TUNING, own, context)

    async def submit(
        self,
        context: Context,
        kernel: args.KernelName,
        operator: args.OperatorName,
        axes: args.Axes,
        params: args.Params = _NONE,
        threads: args.Threads = 0,
        run: args.RunName = "",
    ) -> measured.Submitted:
        """Have an exact kernel judged at its bucket against what serves there. An accepted one goes into the registry;
        promote has the last word, but for an imported operator's, which serves at once. A verdict is an answer, not
        an error."""
        own, subject = await self._found(run, operator, axes, kernel, params, threads=threads)
        return await self._desk.done(jobs.SubmitJob(subject=subject), subject, measured.Submitted, _JUDGE, own, context)

    async def promote(
        self,
        context: Context,
        kernel: args.RegistryName,
        model: args.ModelName,
        batch: args.Batches = _BATCHES,
        context_length: Annotated[int, Field(ge=1, le=131072, description="Of the decode batches.")] = 512,
        prefill: args.Prefill = 512,
        threads: args.Threads = 0,
        run: args.RunName = "",
    ) -> measured.Promoted:
        """Run a model's engine with and without an accepted kernel, in every mode named, and always at decode batches 1
        and 8 of context 512 and a prefill of 512, or as much as the model holds: it serves from then on when no mode
        that calls it is slower and all tokens are the same."""
        own = await self._desk.read(lambda: self._desk.runs.open(run))
        file = await self._desk.read(lambda: self._desk.models.file(model))
        job = jobs.PromoteJob(kernel=kernel, model=str(file), runs=str(self._desk.runs_dir), batches=list(batch),
                              context=context_length, prefill=prefill, threads=threads)
        return await self._desk.done(job, None, measured.Promoted, _JUDGE, own, context)

    async def _found(
        self,
        run: str,
        operator: str,
        axes: dict[str, Attr],
        kernel: str,
        params: dict[str, Attr],
        *,
        relaxed: bool = False,
        threads: int = 0,
    ) -> tuple[Run, Subject]:
        own = await self._desk.read(lambda: self._desk.runs.open(run))
        subject = await self._desk.subject(own, operator, axes, kernel, params, relaxed=relaxed, threads=threads)
        return own, subject


def _run(run: Run) -> known.Run:
    sources = [known.SourceFile(name=f.name, bytes=f.bytes, modified=f.modified) for f in run.sources()]
    return known.Run(name=run.name, folder=run.path.name, sources=sources, calls=run.calls())
