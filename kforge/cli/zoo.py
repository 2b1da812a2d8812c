"""``kforge zoo``: every known cheat against this machine's gates, and honest kernels that must pass them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kforge.core.errors import KforgeError

if TYPE_CHECKING:
    from kforge.harness.zoo import Sighting, Specimen


def zoo(
    names: Annotated[list[str] | None, typer.Argument(help="Specimens, as kind/name; all when none is given.")] = None,
    kind: Annotated[str, typer.Option(help="Only timing, memory, semantics, sandbox or honest ones.")] = "",
    folder: Annotated[Path | None, typer.Option(help="Where they lie; tests/zoo of the checkout by default.")] = None,
    warm: Annotated[bool, typer.Option("--warm", help="Use your cache of built kernels, not an empty one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try all hostile and wrong candidates. Exit code 1 when one gets through or an honest one is refused."""
    import os

    from kforge.core.paths import shipped
    from kforge.harness.zoo import Keeper, find
    from kforge.targets import host

    begin = time.monotonic()
    everything = find(folder or shipped("tests") / "zoo")
    chosen = _chosen(everything, names or [], kind)
    keeper = Keeper(host(), min(2, len(os.sched_getaffinity(0))), cold=not warm)
    try:
        seen = []
        for sighting in keeper.watch(chosen, everything):
            seen.append(sighting)
            if not as_json:
                _tell(sighting)
    finally:
        left = keeper.close()
    seconds = time.monotonic() - begin
    print(json.dumps(_document(seen, left, seconds), indent=1)) if as_json else _table(seen, left, seconds)
    if left or not all(s.as_told for s in seen):
        raise typer.Exit(1)


def _chosen(everything: Sequence[Specimen], names: Sequence[str], kind: str) -> list[Specimen]:
    from kforge.harness.zoo import Kind

    if kind and kind not in set(Kind):
        raise KforgeError(f"--kind {kind!r} is none of {', '.join(Kind)}")
    known = {s.name: s for s in everything}
    if unknown := [name for name in names if name not in known]:
        raise KforgeError(f"no specimen {unknown[0]!r}; kforge zoo --json lists all, for instance {everything[0].name}")
    return [s for s in everything if (not names or s.name in names) and (not kind or s.kind == kind)]


def _tell(sighting: Sighting) -> None:
    from kforge.harness.zoo.specimens import told

    if sighting.as_told:
        what = f"stopped by {told(sighting.gate)}" if sighting.stopped else "passes"
        print(f"ok     {sighting.specimen.name}: {what}", flush=True)
    else:
        print(f"WRONG  {sighting.specimen.name}: {sighting.sentence}", flush=True)


def _table(seen: Sequence[Sighting], left: Sequence[str], seconds: float) -> None:
    from rich.console import Console

    from kforge.cli.tables import folding
    from kforge.harness.zoo import Kind
    from kforge.harness.zoo.specimens import told

    table = folding("kind", "tried", "stopped", "as told", "by which gate", "false alarms")
    for kind in Kind:
        if not (mine := [s for s in seen if s.specimen.kind is kind]):
            continue
        stopped = [s for s in mine if s.stopped]
        honest = kind is Kind.HONEST
        gates = Counter(told(s.gate) for s in stopped)
        table.add_row(kind, str(len(mine)), "" if honest else str(len(stopped)), str(sum(s.as_told for s in mine)),
                      ", ".join(f"{n} {gate}" for gate, n in gates.most_common()), str(len(stopped)) if honest else "")
    Console().print(table)
    for sentence in left:
        print(f"left behind: {sentence}")
    wrong = sum(not s.as_told for s in seen)
    print(f"{len(seen)} specimens in {seconds:.0f} s, {wrong} not as told, {len(left)} traces left behind")


def _document(seen: Sequence[Sighting], left: Sequence[str], seconds: float) -> dict[str, Any]:
    from kforge.harness.zoo.specimens import told

    return {
        "ok": not left and all(s.as_told for s in seen),
        "seconds": round(seconds, 1),
        "left": list(left),
        "specimens": [
            {
                "name": s.specimen.name,
                "kind": s.specimen.kind.value,
                "workload": s.specimen.workload.key,
                "numerics": s.specimen.numerics.value,
                "tries": s.specimen.tries,
                "reported": s.specimen.reported,
                "to_be_stopped_by": [told(gate) for gate in s.specimen.gates],
                "stopped_by": told(s.gate) if s.stopped else None,
                "text": s.text,
                "left": list(s.left),
                "as_told": s.as_told,
                "seconds": round(s.seconds, 2),
            }
            for s in seen
        ],
    }
