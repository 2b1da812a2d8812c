"""Files that nobody expects. Everything else is named here, so that nothing can be left behind unseen."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.stage import PLACES, World

_HEX = "[0-9a-f]"
_EXPECTED = {
    "home": re.compile(
        # SQLite's own log and index go when the last process closes the registry in peace.
        rf"registry\.db(-wal|-shm)?|registry\.tuning|targets/host\.toml|store/{_HEX}{{2}}/{_HEX}{{64}}"
    ),
    "cache": re.compile(
        rf"artifacts/{_HEX}+\.(so|json)|prelude/{_HEX}+\.pch|native/{_HEX}+/[\w.-]+|sandbox/[\w-]+\.json"
    ),
    "tmp": re.compile(r"(?!)"),  # nothing at all
    "runs": re.compile(r"[\w-]+/(journal\.jsonl|study\.journal)"),
}
_OWN = {"out", "err", "reached", "touches"}  # of these tests


def strangers(here: World) -> list[str]:
    """Every file or link (and folder among the temporary files) that has no business where it is."""
    said = [f"{p.name} was left in the working folder" for p in here.root.iterdir() if p.name not in {*PLACES, *_OWN}]
    for place, expected in _EXPECTED.items():
        root = here.root / place
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if (not path.is_dir() or path.is_symlink() or place == "tmp") and not expected.fullmatch(name):
                said.append(f"{place}/{name} was left behind")
    return said + [f"/dev/shm/{p.name} was left behind" for p in Path("/dev/shm").glob("*kforge*")]
