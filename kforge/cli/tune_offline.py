"""``kforge tune --offline``: a run for a chip that is not here, and what it came to."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kforge.core.target import Target
    from kforge.models.model import Model
    from kforge.registry.database import Registry
    from kforge.tuner.journal import RunFolder
    from kforge.tuner.offline import OfflineResult
    from kforge.tuner.options import TuneOptions
    from kforge.tuner.progress import Watcher


def prepared(model: Model, options: TuneOptions) -> Callable[..., OfflineResult]:
    """What runs the options' offline tune, called as every tune is. Raises KforgeError where nothing can be built."""
    from kforge.targets.files import load_target
    from kforge.tuner.offline import require_offline, tune_offline

    require_offline(load_target(options.target))

    def run(options: TuneOptions, folder: RunFolder, registry: Registry, target: Target, watcher: Watcher,
            *_: object) -> OfflineResult:
        return tune_offline(model, options, folder, registry, target, watcher)

    return run


def show(result: OfflineResult, folder: Path, as_json: bool) -> None:
    """Prints what the run came to."""
    if as_json:
        print(json.dumps({**dataclasses.asdict(result), "folder": str(folder), "text": result.text}, indent=1))
        return
    from rich.console import Console

    from kforge.cli.run_tables import problem_table
    from kforge.tuner.run_view import view_of

    if (table := problem_table(view_of(folder))) is not None:
        Console().print(table)
    print(result.text)
    print(f"They wait in state 'checked' (kforge kernels list --state checked) and are timed first when the device is "
          f"here. Run {result.run}; report: kforge runs report {folder}")
