"""Lessons as a client reads them."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from kforge.core.lesson import Evidence, Finding, Subject
from kforge.mcp import known
from kforge.mcp.desk import Desk
from kforge.mcp.reading import Reading
from kforge.mcp.tools import tools_of
from kforge.registry.database import Registry


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    return Desk(tmp_path / "runs", ())


def listed(desk: Desk, operator: str = "") -> known.Lessons:
    return anyio.run(Reading(desk).list_lessons, operator)


def test_lessons_of_an_operator_are_listed_held_ones_first_and_removed_ones_not(desk: Desk, tmp_path: Path) -> None:
    assert listed(desk).lessons == []
    with Registry.open() as registry:
        registry.begin_run("r1", "model", "here", tmp_path)
        for idea, (operator, move, finding) in enumerate([
            ("linear", "a taller tile", Finding.OPEN), ("linear", "prefetch", Finding.GAIN),
            ("rms_norm", "more chains", Finding.NO_GAIN), ("linear", "another order", Finding.GAIN),
        ]):
            subject = Subject(operator, "cpp", "x86_64 avx2", "edges", move)
            registry.learn(subject, Evidence("r1", f"idea-{idea}", "p", "host", finding, 0.1))
        registry.remove_lesson(4, "wrong")
    found = listed(desk, "linear")
    assert [(x.number, x.standing, x.says) for x in found.lessons] == [(2, "held", "gain"), (1, "open", "open")]
    assert "Move: prefetch" in found.lessons[0].told and found.left_out == 0
    assert {x.number for x in listed(desk).lessons} == {1, 2, 3}


def test_the_tool_only_reads(desk: Desk) -> None:
    (tool,) = [tool for tool in tools_of(desk) if tool.name == "list_lessons"]
    assert tool.annotations is not None and tool.annotations.read_only_hint
