"""``kforge judge``: how often the judge errs on this machine, and the parameters that follow from its noise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kforge.cli.ending import Stopped
from kforge.cli.tune import seconds_of
from kforge.core.errors import KforgeError

if TYPE_CHECKING:
    from kforge.harness.calibrate import Progress, Recorded
    from kforge.harness.rates import Rate
    from kforge.harness.variants import Specimen
    from kforge.targets.noise import Noise

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Measure the judge."
)


@app.callback()
def group() -> None:
    """Measure the judge."""


@app.command()
def calibrate(
    decisions: Annotated[
        int, typer.Option(help="A/A decisions; a sixteenth as many at each of the slow-downs.", min=1)
    ] = 200,
    kernels: Annotated[str, typer.Option(help="Test kernels, by name and comma; empty: all of them.")] = "",
    threads: Annotated[int, typer.Option(help="Threads of a kernel; 0: all CPUs.", min=0)] = 0,
    load: Annotated[
        bool, typer.Option("--load", help="Keep another CPU busy. Reports by the kept parameters and keeps none.")
    ] = False,
    budget: Annotated[str, typer.Option(help="Stop after this time: 90s, 30m, 2h.")] = "2h",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the last one was stopped.")] = False,
    journal: Annotated[Path | None, typer.Option(help="The journal; by default in the data folder.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the report to this file.")] = None,
) -> None:
    """Judge kernels against themselves, and against themselves with work inserted; keep what follows for this machine.

    A killed calibration goes on with --resume. With --load the judge's parameters are those kept by a calibration
    without it: what is asked is whether they hold while somebody else computes.
    """
    import time

    from kforge.harness import calibrate as calibration
    from kforge.harness.rates import rates
    from kforge.harness.variants import specimens
    from kforge.native.compilers import default_compiler
    from kforge.registry.database import Registry
    from kforge.targets import host
    from kforge.targets.noise import noise_of, save_noise

    default_compiler()  # says what is missing or too old
    chosen = _chosen(kernels, specimens())
    deadline = time.monotonic() + seconds_of(budget)
    target = host()
    used = threads or (target.cores - 1 if load else target.cores)
    settings = calibration.Settings(target.identity, used, load, tuple(s.name for s in chosen))
    path = journal or _journal_path(settings.target, used, load)
    given = noise_of(target, used) if load else None
    written = calibration.Journal(path, settings, resume)
    with _watching() as watch, Registry.open() as registry, registry.tuning_lock(), (
        calibration.load(used) if load else nullcontext()
    ):
        try:
            noise = calibration.Calibration(target, used, chosen, written, decisions, deadline, given, watch).run()
        except KeyboardInterrupt:
            raise Stopped(f"stopped; kforge judge calibrate --resume goes on ({path})") from None
        finally:
            written.close()
    kept = save_noise(noise, target) if noise is not None and not load else None
    table = rates(written.recorded.decided)
    document = _document(settings.to_json(), written.recorded, noise, table)
    if json_file is not None:
        _write(json_file, document)
    _print(written.recorded, noise, table, kept, path, decisions)


def _chosen(names: str, known: Sequence[Specimen]) -> list[Specimen]:
    wanted = [name.strip() for name in names.split(",") if name.strip()] or [s.name for s in known]
    if unknown := [name for name in wanted if name not in {s.name for s in known}]:
        raise KforgeError(f"--kernels: there is no {', '.join(unknown)}; there are {', '.join(s.name for s in known)}")
    return [s for s in known if s.name in wanted]


def _journal_path(identity: str, threads: int, loaded: bool) -> Path:
    from kforge.core.paths import data_dir

    return data_dir() / "calibrations" / f"{identity}-{threads}{'-loaded' if loaded else ''}.jsonl"


def _write(path: Path, document: dict[str, Any]) -> None:
    from kforge.core.drafts import write_whole
    from kforge.core.paths import require_plain

    require_plain(path)
    try:
        write_whole(path, json.dumps(document, indent=1).encode())
    except OSError as error:
        raise KforgeError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def _watching() -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    bar = Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
              console=console)
    stages: dict[str, Any] = {}

    def watch(news: Progress) -> None:
        if news.stage not in stages:
            stages[news.stage] = bar.add_task(news.stage, total=news.of)
            if not console.is_terminal:
                console.print(f"{news.stage}: {news.of} to do, {news.done} done")
        bar.update(stages[news.stage], completed=news.done)

    with bar if console.is_terminal else nullcontext():
        yield watch


def _document(
    settings: dict[str, Any], recorded: Recorded, noise: Noise | None, table: Sequence[Rate]
) -> dict[str, Any]:
    import dataclasses

    from kforge.targets.facts import machine_facts

    return {
        "machine": dataclasses.asdict(machine_facts()),
        "settings": settings,
        "inserted": [dataclasses.asdict(i) for i in recorded.inserted],
        "noise": _noise_json(noise),
        "rates": [r.to_json() for r in table],
        "failures": [dataclasses.asdict(d) for d in recorded.decided if d.text],
    }


def _noise_json(noise: Noise | None) -> dict[str, Any] | None:
    import dataclasses

    if noise is None:
        return None
    data = dataclasses.asdict(noise)
    for row in data["classes"]:
        row["up_to_seconds"] = row["up_to_seconds"] if row["up_to_seconds"] < 1e9 else None  # JSON has no infinity
    return data


def _print(recorded: Recorded, noise: Noise | None, table: Sequence[Rate], kept: Path | None, path: Path,
           decisions: int) -> None:
    from rich.console import Console

    from kforge.cli.tables import folding

    plain = Console()
    console = plain if plain.is_terminal else Console(width=140)
    if noise is None:
        console.print(f"the time was over before the noise was known: kforge judge calibrate --resume goes on ({path})",
                      soft_wrap=True)
        return
    columns = ("kernel", "slower by", "measured", "decisions", "accepted", "95 % bounds", "rejected", "undecided",
               "not audited", "s each", "zygotes")
    shown = folding(*columns, right=columns[1:], title="the judge's decisions")
    for r in table:
        shown.add_row(
            r.kernel, f"{100 * r.slowdown:.0f} %" if r.slowdown else "A/A",
            f"{100 * r.measured:+.2f} ±{196 * r.error:.2f} %", str(r.decisions),
            f"{100 * r.accepted / r.decisions:.1f} %", f"{100 * r.lower:.2f} .. {100 * r.upper:.2f} %",
            str(r.rejected), str(r.undecided), str(r.not_audited), f"{r.seconds_per_decision:.2f}",
            f"{r.zygotes_per_decision:.1f}", end_section=r.kernel == "all",
        )
    console.print(shown)
    console.print(
        "accepted of A/A: false acceptance; of a slow-down: how often the faster side is found. measured: the slow-"
        "down as all these decisions saw it. not audited: the judge would accept, the audit did not confirm.",
        soft_wrap=True,
    )
    for r in table:
        if not r.slowdown and r.kernel != "all":
            console.print(
                f"  {r.kernel}: threads waited in {100 * r.waited:.0f} % of batches, all of which count; its own time "
                f"moved by ±{50 * r.level_spread:.0f} % over the decisions; {r.too_noisy} were too noisy to decide",
                highlight=False, soft_wrap=True,
            )
    for d in recorded.decided:
        if d.text:
            console.print(f"  {d.kernel}, decision {d.number}: {d.text}", highlight=False, soft_wrap=True)
    for i in recorded.inserted:
        console.print(f"  {i.kernel}: a step of inserted work is {100 * i.share:.4g} % of a call "
                      f"[{100 * i.lower:.4g}, {100 * i.upper:.4g}]", highlight=False, soft_wrap=True)
    for c in noise.classes:
        end = f"up to {c.up_to_seconds * 1e6:g} us" if c.up_to_seconds < 1e9 else "longer"
        console.print(f"  calls {end}: floor {100 * c.floor:.2f} %, bounds x {c.stretch:.2f}, "
                      f"wider still beyond a scatter of {100 * c.scatter_limit:.1f} %", highlight=False, soft_wrap=True)
    done = sum(r.decisions for r in table if r.kernel == "all" and not r.slowdown)
    if done < decisions:
        console.print(f"{done} of {decisions} A/A decisions: kforge judge calibrate --resume goes on", soft_wrap=True)
    console.print(f"kept for this machine in {kept}" if kept else f"judged by {_origin(noise)}", soft_wrap=True)


def _origin(noise: Noise) -> str:
    if not noise.zygotes:
        return "the defaults: this machine was never calibrated"
    return f"the parameters measured on {noise.measured}"
