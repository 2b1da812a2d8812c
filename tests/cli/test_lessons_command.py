"""``kforge lessons`` on a real registry."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kforge.cli.lessons import app
from kforge.core.errors import KforgeError
from kforge.core.lesson import Evidence, Finding, Subject
from kforge.registry.database import Registry

FAMILY = "x86_64 avx512_vnni"
NORM = Subject("rms_norm", "cpp", FAMILY, "dependency_chains", "eight tokens in flight")
LINEAR = Subject("linear", "cpp", FAMILY, "cache_traffic", "a taller tile\n# of tokens")


def came_to(idea: int, finding: Finding) -> Evidence:
    return Evidence("r1", f"idea-{idea:03d}", "p", "host", finding, 0.1, gain=0.2, trials=(7,))


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    with Registry.open() as opened:
        opened.begin_run("r1", "model", "here", tmp_path)
        opened.learn(NORM, came_to(0, Finding.GAIN))
        opened.learn(LINEAR, came_to(1, Finding.GAIN))
        opened.learn(LINEAR, came_to(2, Finding.NO_GAIN))


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def listed(*words: str) -> list[tuple[int, str]]:
    return [(found["number"], found["standing"]) for found in json.loads(run("list", "--json", *words).stdout)]


def test_lessons_are_listed_with_their_standing_and_those_removed_where_asked_for():
    assert listed() == [(1, "held"), (2, "demoted")]
    assert listed("--operator", "linear") == listed("--standing", "demoted") == [(2, "demoted")]
    assert "lesson 1 is removed" in run("rm", "1", "--reason", "not so").stdout
    assert listed() == [(2, "demoted")] and listed("--standing", "removed") == [(1, "removed")]


def test_the_table_says_what_speaks_for_a_lesson_and_against_it():
    (row,) = [line for line in run("list").stdout.splitlines() if "demoted" in line]
    assert [cell.strip() for cell in row.split("│")[1:6]] == ["2", "demoted", "gain", "1", "1"]


def test_a_move_is_shown_letter_by_letter_and_moves_no_cursor(tmp_path: Path) -> None:
    wild = "[/m] :smile: [red]four\x1b[2J\u202e rows\x07[/]"
    with Registry.open() as opened:
        number = opened.learn(replace(NORM, bottleneck="edges", move=wild), came_to(3, Finding.GAIN))
    tame = "[/m] :smile: [red]four\\u001b[2J\\u202e rows\\u0007[/]"
    with closing(sqlite3.connect(tmp_path / "registry.db")) as database, database:
        assert database.execute("SELECT move FROM lesson WHERE id = ?", [number]).fetchone() == (tame,)
        database.execute("UPDATE lesson SET move = ? WHERE id = ?", [wild, number])  # as an earlier kforge kept it
    for words in (["list"], ["show", str(number)], ["export", "--format", "markdown"]):
        text = run(*words).stdout
        assert tame in " ".join(text.replace("│", " ").split()), words
        assert all(letter.isprintable() or letter == "\n" for letter in text), words


def test_one_lesson_is_shown_as_prompts_show_it_and_as_a_document():
    text = run("show", "2").stdout
    assert text.startswith("lesson 2: demoted, last heard of 20")
    assert "it gained (1 for it, 1 against it)" in text and "[run r1, idea-002, trials 7]" in text
    document = json.loads(run("show", "1", "--json").stdout)
    assert (document["move"], document["says"], document["supports"]) == ("eight tokens in flight", "gain", 1)
    assert document["evidence"][0]["gain"] == 0.2 and document["text"].startswith("rms_norm on")


def test_an_export_has_a_line_for_each_lesson_or_a_section(tmp_path: Path):
    lines = [json.loads(line) for line in run("export").stdout.splitlines()]
    assert [line["number"] for line in lines] == [1, 2] and len(lines[1]["evidence"]) == 2
    file = tmp_path / "lessons.md"
    assert "1 lesson: " in run("export", "--format", "markdown", "--operator", "linear", "--out", str(file)).stdout
    page = file.read_text()
    assert "## Lesson 2: linear, demoted" in page
    assert [line for line in page.splitlines() if line.startswith("#")] == ["# Lessons", "## Lesson 2: linear, demoted"]


@pytest.mark.parametrize(("words", "says"), [
    (("show", "9"), "no lesson 9"),
    (("rm", "9"), "no lesson 9"),
    (("list", "--standing", "loved"), "is none of held, demoted, open, removed"),
    (("export", "--out", "/nowhere/at/all"), "/nowhere/at/all"),
])
def test_what_cannot_be_is_one_sentence(words: tuple[str, ...], says: str):
    with pytest.raises(KforgeError, match=says):
        run(*words)


def test_without_lessons_it_says_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "new"))
    assert "kforge tune --agent" in run("list").stdout
    assert json.loads(run("list", "--json").stdout) == []
    assert run("export").stdout == ""
