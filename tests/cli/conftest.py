from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_host import host_target

from kforge.targets.files import save_target

ROOT = Path(__file__).resolve().parents[2]
Kforge = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data folder with a probed host and nothing else."""
    path = tmp_path / "home"
    save_target(host_target(), path / "targets" / "host.toml")
    return path


@pytest.fixture
def kforge(home: Path) -> Kforge:
    """The real command in a process of its own."""

    def run(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        full = {**os.environ, "KFORGE_HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "200", **env}
        command = [sys.executable, "-m", "kforge.cli.main", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=full, timeout=280, check=False)

    return run
