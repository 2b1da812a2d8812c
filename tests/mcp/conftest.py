from __future__ import annotations

from pathlib import Path

import mcp_host
import psutil
import pytest
from mcp_host import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.below(tmp_path)


@pytest.fixture(autouse=True)
def own_children() -> None:
    """Processes that other tests of this run have started are nobody's business here."""
    mcp_host.BEFORE.clear()
    mcp_host.BEFORE.update(psutil.Process().children(recursive=True))
