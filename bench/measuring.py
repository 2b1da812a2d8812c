"""What every bench shares: figures as JSON, with the machine that they are from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from kforge.core.summary import Summary
from kforge.targets.facts import machine_facts


def write_json(path: Path | None, command: str, figures: dict[str, object]) -> None:
    """Figures with the machine and the command that made them; nothing when no path was given."""
    if path is not None:
        document = {"command": command, "machine": dataclasses.asdict(machine_facts()), **figures}
        path.write_text(json.dumps(document, indent=1, default=_plain) + "\n")


def _plain(value: object) -> object:
    if isinstance(value, Summary):
        return dataclasses.asdict(value)
    raise TypeError(f"{value!r} is not a figure")
