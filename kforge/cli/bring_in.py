"""``kforge import``: what other tools measured, as where searches begin. Nothing that is imported is served."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kforge.core.recording import Recording
    from kforge.core.seed import Seed
    from kforge.interchange.moe_names import Style

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="What others measured: search results (T4, Kernel Tuner), parameters (vLLM, SGLang).",
)

Files = Annotated[list[Path], typer.Argument(help="Files of this format.")]
Target = Annotated[str, typer.Option(help="For which target; by default the one whose driver has the file's name.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def t4(files: Files, as_json: Json = False) -> None:
    """Read T4 results. Of a search of kforge's the ten fastest points are kept as seeds for the same problem here."""
    from kforge.interchange import t4 as form

    _spaces([(file, form.read(file)) for file in files], as_json)


@app.command("kernel-tuner")
def kernel_tuner(files: Files, as_json: Json = False) -> None:
    """Read Kernel Tuner's cache files: what is in them, and whether they hold together."""
    from kforge.interchange import kernel_tuner as form

    _spaces([(file, form.read(file)) for file in files], as_json)


@app.command("vllm-moe")
def vllm_moe(files: Files, target: Target = "", as_json: Json = False) -> None:
    """Keep vLLM's tables for layers of experts as seeds of the device that their names say."""
    from kforge.interchange.moe_names import Style

    _moe(files, target, Style.VLLM, as_json)


@app.command("sglang-moe")
def sglang_moe(files: Files, target: Target = "", as_json: Json = False) -> None:
    """Keep SGLang's tables for layers of experts as seeds of the device that their names say."""
    from kforge.interchange.moe_names import Style

    _moe(files, target, Style.SGLANG, as_json)


@app.command()
def seeds(as_json: Json = False) -> None:
    """What was imported for searches to begin with."""
    from kforge.registry.database import Registry

    with Registry.open() as registry:
        found = registry.all_seeds()
    if as_json:
        print(json.dumps([_document(seed) for seed in found], indent=1))
        return
    from kforge.cli import tables
    from kforge.core.words import counted

    table = tables.folding("no", "for", "at", "parameters", "measured on", "from", whole=("no",),
                           title=counted(len(found), "seed"))
    table.caption = "measured elsewhere: where searches begin, never what is served"
    for seed in found:
        where = f"{seed.operator} {' '.join(f'{k}={v}' for k, v in seed.where)}"
        at = " ".join(f"{k}={v}" for k, v in seed.bucket)
        params = " ".join(f"{k}={v}" for k, v in seed.params)
        table.add_row(str(seed.id), where, at, params, seed.measured_on, seed.source)
    tables.show(table)


def _spaces(read: Sequence[tuple[Path, Recording]], as_json: bool) -> None:
    from kforge.core.errors import KforgeError
    from kforge.core.words import counted, one_line
    from kforge.interchange.recordings import seeds_of

    found = []
    for file, space in read:
        try:
            found.append((file, space, seeds_of(space, file.name)))
        except ValueError as error:
            raise KforgeError(f"{file}: metadata.kforge: {one_line(str(error))}") from None
    kept = _keep(seed for _, _, own in found for seed in own)
    told = [_told(file, space, len(own)) for file, space, own in found]
    if as_json:
        print(json.dumps({"spaces": told, "new_seeds": kept}, indent=1))
        return
    for one in told:
        failed = ", ".join(f"{n} {kind}" for kind, n in one["failed"].items())
        best = f"best {one['best_seconds'] * 1e6:.2f} us" if one["best_seconds"] else "none ran"
        where = one_line(one["device"]) or "a device that it does not name"
        size = f"{counted(one['points'], 'point')} of {counted(len(one['parameters']), 'parameter')}"
        print(f"{one['file']}: {one_line(one['kernel'])} on {where}: {size}, {best}"
              f"{f'; failed: {failed}' if failed else ''}")
        if not one["seeds"]:
            print("  no search of kforge's: it can be replayed, and gives no seeds")
    print(f"{counted(kept, 'new seed')}; see: kforge import seeds")


def _told(file: Path, space: Recording, seeds: int) -> dict[str, Any]:
    return {
        "file": str(file),
        "kernel": space.kernel,
        "device": space.device,
        "parameters": {name: list(values) for name, values in space.choices.items()},
        "points": len(space.results),
        "failed": dict(Counter(str(r.failure) for r in space.failed)),
        "outside": space.excluded,
        "best_seconds": space.best.seconds if space.best else None,
        "seeds": seeds,
    }


def _moe(files: Sequence[Path], target: str, style: Style, as_json: bool) -> None:
    from kforge.core.words import counted
    from kforge.interchange.moe_seeds import seeds_of, target_of
    from kforge.interchange.moe_tables import read
    from kforge.targets.files import load_target

    read_in = [(file, read(file)) for file in files]  # all of them before anything is kept
    drawn = []
    for file, table in read_in:
        hardware = load_target(target) if target else target_of(table.name.device)
        drawn.append((file, table, hardware.name, seeds_of(table, hardware, style, file.name)))
    kept = _keep(seed for *_, own in drawn for seed in own.seeds)
    if as_json:
        told = [{"file": str(file), "target": name, "lines": sorted(table.lines), "seeds": len(own.seeds),
                 "left_out": list(own.left_out)} for file, table, name, own in drawn]
        print(json.dumps({"tables": told, "new_seeds": kept}, indent=1))
        return
    for file, table, name, own in drawn:
        print(f"{file}: {counted(len(table.lines), 'line')} for {name}, {counted(len(own.seeds), 'seed')}")
        for sentence in own.left_out:
            print(f"  left out: {sentence}")
    print(f"{counted(kept, 'new seed')}, measured elsewhere and served nowhere; see: kforge import seeds")


def _keep(found: Iterable[Seed]) -> int:
    from kforge.registry.database import Registry

    with Registry.open() as registry:
        return registry.add_seeds(found)


def _document(seed: Seed) -> dict[str, Any]:
    return {
        "no": seed.id,
        "operator": seed.operator,
        "where": dict(seed.where),
        "at": dict(seed.bucket),
        "backend": seed.backend,
        "template": seed.template or None,
        "params": dict(seed.params),
        "target_identity": seed.target_identity or None,
        "measured_on": seed.measured_on,
        "source": seed.source,
        "seconds_there": seed.seconds,
    }
