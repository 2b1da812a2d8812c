"""What the README and the guide tell a newcomer to type exists, down to the options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from kforge.cli.main import app
from kforge.models.fetch import SOURCES

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/kernels.md", "runs/README.md")}
LINES = [
    (page, line)
    for page, text in PAGES.items()
    for block in re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("kforge ")
]
LINES += [(page, line) for page, text in PAGES.items() for line in re.findall(r"`(kforge [a-z][^`]*)`", text)]


def commands(words: list[str]) -> list[tuple[TyperCommand, list[str]]]:
    """The commands that the words name (a|b: several), each with the words after it."""
    found: list[tuple[object, list[str]]] = [(typer.main.get_command(app), words)]
    while any(isinstance(command, TyperGroup) and left for command, left in found):
        step = []
        for command, left in found:
            if not isinstance(command, TyperGroup) or not left:
                step.append((command, left))
                continue
            for name in left[0].split("|"):
                inner = command.get_command(typer.Context(command), name)
                assert inner is not None, f"there is no {name} in {left}"
                step.append((inner, left[1:]))
        found = step
    return found  # type: ignore[return-value]


@pytest.mark.parametrize(("page", "line"), LINES, ids=[line for _, line in LINES])
def test_what_a_page_says_to_type_exists(page: str, line: str, monkeypatch: pytest.MonkeyPatch):
    words = shlex.split(line.partition(" # ")[0].partition("  #")[0])[1:]
    monkeypatch.setattr("sys.argv", ["kforge", *words])
    for command, left in commands(words):
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        for word in left:
            assert not word.startswith("-") or word == "--help" or word in options, f"{page}: {word} of {line!r}"


def test_the_python_of_the_readme_takes_a_name_that_exists():
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", PAGES["README.md"], re.MULTILINE | re.DOTALL)
    compile(snippet, "README.md", "exec")
    assert re.findall(r'load\("([^"]+)"\)', snippet) == list(SOURCES)
