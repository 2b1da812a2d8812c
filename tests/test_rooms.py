"""Imports point downwards only, and the fast commands stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "kforge"
FLOORS = {
    "core": 0,
    "native": 0,
    "targets": 1,
    "operators": 1,
    "models": 1,
    "backends": 2,
    "harness": 2,
    "registry": 2,
    "engine": 3,
    "importing": 3,
    "tuner": 4,
    "agent": 4,
    "interchange": 4,
    "torch": 4,
    "mcp": 5,
    "server": 5,
    "cli": 6,
}
# Floor by floor, what may be used beside lower floors: neighbours on one floor, in one direction only.
NEIGHBOURS = {
    ("native", "core"),
    ("models", "operators"),
    ("models", "targets"),
    ("targets", "operators"),
    ("harness", "backends"),
    ("agent", "tuner"),
    ("interchange", "tuner"),
    ("interchange", "torch"),
    ("backends", "harness.sandbox"),
}


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("kforge."):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("kforge."))


def test_no_room_imports_one_above_it():
    broken = []
    for path in sorted(ROOT.rglob("*.py")):
        room = path.relative_to(ROOT).parts[0]
        if room not in FLOORS:
            continue
        for module in imports(path):
            other = module.split(".")[1]
            if other == room or other not in FLOORS:
                continue
            beside = any((room, n) in NEIGHBOURS and module.startswith(f"kforge.{n}") for _, n in NEIGHBOURS)
            if FLOORS[other] >= FLOORS[room] and not beside:
                broken.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not broken, "\n".join(broken)


def test_every_room_has_a_floor():
    rooms = {p.name for p in ROOT.iterdir() if p.is_dir() and any(p.glob("*.py"))}
    assert rooms == set(FLOORS)


@pytest.mark.parametrize("module", ["kforge.cli.main", "kforge.cli.lookup", "kforge.registry.ask", "kforge.operators"])
def test_the_look_up_path_imports_neither_torch_nor_numpy(module):
    code = f"import sys, {module}; print(*({{'torch', 'numpy', 'sqlalchemy', 'optuna'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
