"""The header of a template: TOML inside the leading Jinja comment ``{#- kforge ... -#}``."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass

from kforge.core.errors import KforgeError
from kforge.core.launch import LaunchError
from kforge.core.launch import names as launch_names
from kforge.core.trial import Failure, FailureClass, NumericsClass
from kforge.core.workload import Attr

_COMMENT = re.compile(r"\A\s*\{#-?\s*kforge[ \t]*\n(.*?)-?#\}", re.DOTALL)
_TOML_LINE = re.compile(r"\(at line (\d+)")
_MOST_SAID = 2000  # characters of an error: a template can make one as long as its memory allows
_MOST_TEXT = 200  # characters of a choice
_MOST_DIMENSIONS = 3
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class TemplateError(KforgeError):
    """A template that cannot be read, rendered or given these parameters. The sentence names file and line."""

    def __init__(self, path: str, line: int, what: str) -> None:
        self.path = path
        self.line = line
        self.what = what[:_MOST_SAID]
        super().__init__(f"{path}:{line}: {self.what}" if line else f"{path}: {self.what}")

    @property
    def failure(self) -> Failure:
        """The same as a trial's failure."""
        return Failure(FailureClass.TEMPLATE, str(self))


@dataclass(frozen=True)
class Param:
    """A tunable parameter. ``when`` is an expression over attributes, features and *earlier* parameters; while it is
    false the parameter is pinned to its default."""

    name: str
    choices: tuple[Attr, ...]
    default: Attr
    when: str = ""


@dataclass(frozen=True)
class LaunchHeader:
    """One ``[[launch]]`` of a device language, as written; ``kforge.backends.launching`` binds it to a problem.

    ``grid``: groups, up to three; ``block``: threads of a group (left out where the compiler decides); ``arguments``:
    names of tensors, ``TENSOR.strideN``, axes, scalars or ``scratch``, with a "?" behind what a problem may lack;
    ``scratch``: bytes; ``when``: an expression over attributes and parameters, false where it is not launched.
    """

    entry: str
    grid: tuple[str, ...]
    arguments: tuple[str, ...]
    block: tuple[str, ...] = ()
    scratch: str = "0"
    when: str = ""


@dataclass(frozen=True)
class Header:
    operator: str
    version: int
    numerics: NumericsClass
    summary: str
    requires: tuple[str, ...]
    applies: str
    constraints: tuple[str, ...]
    params: tuple[Param, ...]
    launches: tuple[LaunchHeader, ...] = ()


def parse(path: str, text: str) -> Header:
    """Header of the template ``text``; ``path`` is only for messages. Raises TemplateError."""
    return _Parser(path, text).header()


class _Parser:
    def __init__(self, path: str, text: str) -> None:
        self.path = path
        found = _COMMENT.match(text)
        if not found:
            raise TemplateError(path, 1, "a template begins with '{#- kforge', its header in TOML, and '-#}'")
        self.body = found.group(1)
        self.first = text[: found.start(1)].count("\n") + 1
        try:
            self.data = tomllib.loads(self.body)
        except tomllib.TOMLDecodeError as error:
            at = _TOML_LINE.search(str(error))
            line = self.first + (int(at.group(1)) - 1 if at else self.body.rstrip().count("\n"))
            raise TemplateError(path, line, f"the header is not TOML: {error}") from None
        except RecursionError:
            raise TemplateError(path, self.first, "the header is nested too deeply") from None

    def line(self, word: str) -> int:
        """Line where ``word`` stands as a key or inside a table's name; the header's first line when nowhere."""
        pattern = re.compile(rf"^\s*\[?(params\.)?{re.escape(word)}\b", re.MULTILINE)
        found = pattern.search(self.body)
        return self.first + (self.body[: found.end()].count("\n") if found else 0)

    def fail(self, word: str, what: str) -> TemplateError:
        return TemplateError(self.path, self.line(word), what)

    def text(self, name: str, default: str | None = None) -> str:
        value = self.data.get(name, default)
        if not isinstance(value, str):
            raise self.fail(name, f"'{name}' must be a text, found {value!r}" if name in self.data else
                            f"the header lacks '{name}'")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.data.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(name, f"'{name}' must be a list of texts, found {value!r}")
        return tuple(value)

    def header(self) -> Header:
        known = {"operator", "version", "numerics", "summary", "requires", "applies", "constraints", "params",
                 "launch"}
        for name in self.data:
            if name not in known:
                raise self.fail(name, f"unknown key '{name}' in the header; known: {', '.join(sorted(known))}")
        version = self.data.get("version")
        if type(version) is not int or version < 1:
            raise self.fail("version", f"'version' must be a positive integer, found {version!r}")
        numerics = self.text("numerics")
        if numerics not in set(NumericsClass):
            raise self.fail("numerics", f"'numerics' is 'exact' or 'relaxed', found {numerics!r}")
        tables = self.data.get("params", {})
        if not isinstance(tables, dict):
            raise self.fail("params", "'params' must be tables [params.NAME]")
        return Header(self.text("operator"), version, NumericsClass(numerics), self.text("summary", ""),
                      self.texts("requires"), self.text("applies", ""), self.texts("constraints"),
                      tuple(self.param(name, table) for name, table in tables.items()), self.launches())

    def launches(self) -> tuple[LaunchHeader, ...]:
        tables = self.data.get("launch", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise self.fail("launch", "a launch is a table [[launch]]")
        return tuple(self.launch(table) for table in tables)

    def launch(self, table: dict[str, object]) -> LaunchHeader:
        known = {"entry": str, "grid": list, "arguments": list, "block": list, "scratch": str, "when": str}
        for name, value in table.items():
            if name not in known:
                raise self.fail(name, f"unknown key '{name}' of a launch; known: {', '.join(sorted(known))}")
            if not isinstance(value, known[name]) or (isinstance(value, list)
                                                      and not all(isinstance(item, str) for item in value)):
                wanted = "list of texts" if known[name] is list else "text"
                raise self.fail(name, f"'{name}' of a launch must be a {wanted}, found {value!r}")
        if missing := [name for name in ("entry", "grid", "arguments") if not table.get(name)]:
            raise self.fail("launch", f"a launch lacks '{missing[0]}'")
        lists = {name: tuple(value) for name, value in table.items() if isinstance(value, list)}
        if max(len(lists["grid"]), len(lists.get("block", ()))) > _MOST_DIMENSIONS:
            raise self.fail("launch", f"a grid has at most {_MOST_DIMENSIONS} dimensions")
        texts = {name: value for name, value in table.items() if isinstance(value, str)}
        try:
            for text in (*lists["grid"], *lists.get("block", ()), texts.get("scratch", "0")):
                launch_names(text)
        except LaunchError as error:
            raise self.fail("launch", f"a launch's sizes: {error}") from None
        return LaunchHeader(texts["entry"], lists["grid"], lists["arguments"], lists.get("block", ()),
                            texts.get("scratch", "0"), texts.get("when", ""))

    def param(self, name: str, table: object) -> Param:
        if not _NAME.match(name):
            raise self.fail(name, f"parameter '{name}' is not a name that an expression can use")
        if not isinstance(table, dict) or set(table) - {"choices", "default", "when"}:
            raise self.fail(name, f"parameter '{name}' has choices, default and optionally when, found {table!r}")
        choices = table.get("choices")
        if not isinstance(choices, list) or not choices or not all(type(c) in (int, str) for c in choices):
            raise self.fail(name, f"parameter '{name}': choices must be a non-empty list of integers or texts")
        if not all(abs(c) < 1 << 63 if isinstance(c, int) else len(c) <= _MOST_TEXT for c in choices):
            raise self.fail(name, f"parameter '{name}': a choice is a number of 64 bits or a text of at most "
                            f"{_MOST_TEXT} characters")
        if len(set(choices)) != len(choices):
            raise self.fail(name, f"parameter '{name}': a choice is listed twice")
        default = table.get("default", choices[0])
        if default is None or default not in choices:
            raise self.fail(name, f"parameter '{name}': the default {default!r} is not among the choices")
        when = table.get("when", "")
        if not isinstance(when, str):
            raise self.fail(name, f"parameter '{name}': when must be a text")
        return Param(name, tuple(choices), default, when)
