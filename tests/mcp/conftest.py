from __future__ import annotations

from pathlib import Path

import pytest
from mcp_host import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.below(tmp_path)
