"""``kforge flashinfer-bench``: definitions, workloads and solutions of that benchmark in, kernels and trials out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kforge.core.errors import KforgeError

if TYPE_CHECKING:
    from kforge.interchange.definitions import Imported, Placed

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="FlashInfer-Bench: import its definitions, export kernels to it.",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("import")
def bring_in(
    path: Annotated[Path, typer.Argument(help="A definition's file, or a folder: a dataset, or definitions in it.")],
    kernels: Annotated[
        Path | None, typer.Option(help="Write the sources of solutions that kforge can try into this folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What of it maps onto kforge's operators, and why the rest does not. References run in the sandbox only; one
    that maps onto nothing becomes an operator of its own where it can (kforge operator list).

    Exit code 1 where nothing comes in.
    """
    from kforge.interchange import definitions
    from kforge.interchange.adopting import adopt
    from kforge.interchange.dataset import read

    found = definitions.bring_in(read(path), adopt, _progress)
    _progress("")
    written = write_kernels(found, kernels) if kernels is not None else {}
    if as_json:
        print(json.dumps(_document(found, written), indent=1))
    else:
        _print(found, written)
    if not any(p.problem for p in found.placed):
        raise typer.Exit(1)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist, or is empty.")],
    operator: Annotated[str, typer.Option(help="Only this operator.")] = "",
    as_json: Json = False,
) -> None:
    """Accepted and promoted kernels, and trials whose sources can be had, as a dataset of that benchmark."""
    import dataclasses

    from kforge.core.words import counted
    from kforge.interchange.export import export as run_export
    from kforge.registry.database import Registry
    from kforge.targets.files import load_target

    with Registry.open() as registry:
        done = run_export(registry, folder, load_target("host"), operator)
    if as_json:
        print(json.dumps({"folder": str(folder), **dataclasses.asdict(done)}, indent=1))
        return
    print(
        f"{folder}: {counted(done.definitions, 'definition')}, {counted(done.workloads, 'workload')}, "
        f"{counted(done.solutions, 'solution')}, {counted(done.traces, 'trace')}, "
        f"{done.blob_bytes / 1e6:.1f} MB of tensors"
    )
    for sentence in done.left_out:
        print(f"  left out: {sentence}")


def write_kernels(found: Imported, folder: Path) -> dict[str, str]:
    """Solution -> file. KforgeError for a folder that cannot be written."""
    from kforge.core.drafts import write_whole
    from kforge.core.errors import sentence_of
    from kforge.core.workload import stable_hash

    written = {}
    for solution in (s for p in found.placed for s in p.solutions):
        plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in solution.name)[:150]
        file = folder / f"{plain.lstrip('.') or 'solution'}-{stable_hash(solution.name, 8)}.cc"
        try:
            write_whole(file, solution.source.encode())
        except OSError as error:
            raise KforgeError(f"cannot write a kernel: {sentence_of(error)}") from error
        written[solution.name] = str(file)
    return written


def _progress(what: str) -> None:
    """One line that is written over; nothing where nobody reads along."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


def _print(found: Imported, written: dict[str, str]) -> None:
    from rich.console import Console

    from kforge.cli.tables import folding
    from kforge.core.words import one_line

    came_in = sum(p.problem is not None for p in found.placed)
    table = folding(
        "definition",
        "kforge",
        "workloads",
        "notes",
        right=["workloads"],
        title=f"{came_in} of {len(found.placed)} definitions come in",
    )
    for placed in found.placed:
        name = one_line(placed.definition.name)
        table.add_row(name, _onto(placed), str(len(placed.workloads)), _notes(placed))
    Console().print(table)
    for broken in found.broken:
        print(f"{one_line(broken.path)}: {one_line(broken.reason)}")
    for name in found.orphans:
        print(f"{one_line(name)}: it is named by workloads, solutions or traces, and not defined")
    for name, file in written.items():
        print(f"{one_line(name)}: {one_line(file)}")


def _onto(placed: Placed) -> str:
    if placed.problem is None:
        return "-"
    return f"{placed.kind}: {placed.problem.key}"


def _notes(placed: Placed) -> str:
    from kforge.core.words import counted, one_line

    said = [one_line(note) for note in (*placed.notes, *placed.refused)]
    if placed.solutions:
        said.append(f"{counted(len(placed.solutions), 'solution')} for kforge try")
    if placed.others:
        said.append(f"{counted(placed.others, 'solution')} of other kinds than kforge's kernels")
    if placed.traces:
        said.append(f"{counted(placed.traces, 'trace')} read")
    return "; ".join(said)


def _document(found: Imported, written: dict[str, str]) -> dict[str, Any]:
    return {
        "definitions": [_entry(placed, written) for placed in found.placed],
        "broken": [{"file": b.path, "reason": b.reason} for b in found.broken],
        "undefined": list(found.orphans),
    }


def _entry(placed: Placed, written: dict[str, str]) -> dict[str, Any]:
    from kforge.interchange.definitions import told

    problem = placed.problem
    return {
        "definition": placed.definition.name,
        "op_type": placed.definition.op_type,
        "kind": placed.kind.value,
        "operator": problem.operator if problem else None,
        "axes": told(problem) if problem else None,
        "notes": list(placed.notes),
        "workloads": [told(w.problem, w) for w in placed.workloads],
        "refused": list(placed.refused),
        "solutions": [{"name": s.name, "file": written.get(s.name)} for s in placed.solutions],
        "other_solutions": placed.others,
        "traces": placed.traces,
    }
