"""One measurement at a time among processes that agree on a file."""

import subprocess
import sys
from pathlib import Path

import pytest

from kforge.harness.turn import Turn

TAKE = """
import fcntl, os, sys
try:
    fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(3)
"""


def another_takes_it(path: Path) -> bool:
    return subprocess.run([sys.executable, "-c", TAKE, str(path)], check=False).returncode == 0


def test_a_turn_is_held_to_the_outermost_end(tmp_path: Path) -> None:
    path = tmp_path / "turn.lock"
    turn = Turn(path)
    assert another_takes_it(path)
    with turn:
        with turn:
            assert not another_takes_it(path)
        assert not another_takes_it(path)
    assert another_takes_it(path)
    turn.close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "turn.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        Turn(tmp_path / "turn.lock")
