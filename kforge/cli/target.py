"""``kforge target``: probe this machine, list and show what kernels can be tuned for."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kforge.cli.target_gpu import gpu_lines
from kforge.core.errors import KforgeError

if TYPE_CHECKING:
    from kforge.core.target import Peak, Target

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Probe, list and show targets."
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON: bytes/s, operations/s.")]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


@app.command("probe")
def probe_target(
    name: Annotated[str, typer.Option(help="Name of the target; 'host' is what tuning uses.")] = "host",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; by default among your own targets.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure this machine's memory bandwidth and arithmetic peaks, and keep them as a target."""
    from kforge.native import find_compilers
    from kforge.targets.files import save_target
    from kforge.targets.probe import probe

    if not _NAME.match(name):
        raise KforgeError(f"--name {name!r} must be letters, digits, '.', '_' or '-', for instance my-server")
    if not find_compilers():
        raise KforgeError("nothing can be measured without a C++ compiler: install g++ >= 12 or clang++, or set CXX")
    if not as_json:
        print("measuring memory bandwidth and arithmetic peaks, a few seconds ...", file=sys.stderr)
    target = probe(name)
    path = save_target(target, out)
    if as_json:
        print(json.dumps({**_document(target), "file": str(path)}, indent=1))
        return
    _print(target)
    print(f"written to {path}")


@app.command("list")
def list_known(as_json: Json = False) -> None:
    """Every target by name: your own and the shipped ones."""
    from kforge.targets.files import list_targets, load_target

    rows = []
    for name in list_targets():
        try:
            # By file for the host, which is otherwise probed again when it has changed.
            rows.append({"name": name, **_brief(load_target(_own(name) if name == "host" else name))})
        except KforgeError as error:
            rows.append({"name": name, "error": str(error)})
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in ("name", "model", "arch", "cores", "GB/s", "figures", "built by"):
        table.add_column(column, overflow="fold", no_wrap=column == "name",  # names are copied
                         justify="right" if column in ("cores", "GB/s") else "left")
    for row in rows:
        if "error" in row:
            table.add_row(str(row["name"]), f"unreadable: {row['error']}", "", "", "", "", "")
        else:
            table.add_row(
                str(row["name"]),
                str(row["model"]),
                str(row["arch"]),
                str(row["cores"]),
                f"{float(row['bandwidth']) / 1e9:.1f}",
                str(row["figures"]),
                str(row["backends"]) or "described only",
            )
    Console().print(table)
    if not any(row["name"] == "host" for row in rows):
        print("this machine ('host') is probed when it is first needed, or now by: kforge target probe")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A target's name, or a TOML file.")] = "host", as_json: Json = False
) -> None:
    """One target: cores, caches, instruction sets, bandwidth, peaks, compilers."""
    from kforge.targets.files import load_target
    from kforge.targets.noise import calibrations

    target = load_target(name)
    if as_json:
        print(json.dumps(_document(target), indent=1))
        return
    _print(target)
    kept = calibrations(target)
    for noise in kept:
        print(f"  judge: {noise.summary()}")
    if not kept:
        print("  judge: never calibrated here; kforge judge calibrate measures how often it errs")


def _own(name: str) -> Path:
    from kforge.core.paths import data_dir

    return data_dir() / "targets" / f"{name}.toml"


def _brief(target: Target) -> dict[str, str | int | float]:
    sources = {
        "measured" if p.source.startswith("measured") else "vendor" for _, p in (*target.bandwidth, *target.peaks)
    }
    return {
        "model": target.model,
        "arch": target.arch,
        "cores": target.cores,
        "bandwidth": target.best_bandwidth(),
        "figures": " and ".join(sorted(sources)) or "none",
        "backends": " ".join(target.backends),
        "identity": target.identity,
    }


def _document(target: Target) -> dict[str, object]:
    return {
        **dataclasses.asdict(target),
        "identity": target.identity,
        "bandwidth": [{"threads": n, **dataclasses.asdict(p)} for n, p in target.bandwidth],
        "peaks": {name: dataclasses.asdict(p) for name, p in target.peaks},
    }


def _print(target: Target) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"[bold]{target.name}[/]: {_maker(target)}{target.model}, {target.arch}, {target.cores} "
        f"{'units' if target.gpu else 'cores'}, "
        f"{target.memory_bytes / 2**30:.1f} GiB; identity {target.identity}",
        highlight=False,
        soft_wrap=True,
    )
    for cache in target.caches:
        console.print(
            f"  L{cache.level} {_bytes(cache.bytes)}, shared by {cache.shared_by}"
            + (f", lines of {cache.line} bytes" if cache.line else ""),
            highlight=False,
        )
    if target.features:
        console.print(f"  features: {' '.join(target.features)}", highlight=False, soft_wrap=True)
    if target.kind == "cpu":
        found = ", ".join(f"{c.name} {c.version} ({c.path})" for c in target.compilers) or "none recorded"
        console.print(f"  compilers: {found}", highlight=False, soft_wrap=True)
    if target.gpu:
        for line in gpu_lines(target.gpu, target.backends):
            console.print(f"  {line}", highlight=False, soft_wrap=True)
    table = Table()
    for column in ("limit", "value", "spread", "source"):
        table.add_column(column, justify="right" if column in ("value", "spread") else "left", overflow="fold")
    for threads, peak in target.bandwidth:
        what = f"memory read, {threads} {'unit' if target.gpu else 'thread'}{'s' if threads > 1 else ''}"
        table.add_row(what, f"{peak.value / 1e9:.1f} GB/s", *_origin(peak))
    for level in target.levels:
        if level.name != "memory":  # which stands above
            table.add_row(f"{level.name} read, one core", f"{level.read.value / 1e9:.1f} GB/s", *_origin(level.read))
        table.add_row(f"{level.name} load, one after another", f"{1e9 * level.latency.value:.1f} ns",
                      *_origin(level.latency))
    for name, peak in target.peaks:
        table.add_row(f"{name}, all {'units' if target.gpu else 'cores'}", f"{peak.value / 1e9:.0f} Gop/s",
                      *_origin(peak))
    for link in target.gpu.links if target.gpu else ():
        table.add_row(f"{link.name}, both directions", f"{link.bandwidth.value / 1e9:.1f} GB/s",
                      *_origin(link.bandwidth))
    console.print(table if table.row_count else "  no figures yet: kforge target probe measures them")


def _origin(peak: Peak) -> tuple[str, str]:
    return (f"{100 * peak.spread:.1f} %" if peak.source.startswith("measured") else "", peak.source)


def _bytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"


def _maker(target: Target) -> str:
    """The vendor, unless the model's name begins with it."""
    return "" if target.model.startswith(target.vendor) else f"{target.vendor} "
