"""Specimens: one candidate a file, whose first comment says what it tries and which gate must stop it.

    // tries: fills the output with zeros
    // reported: where such a thing was seen, or: no public report known
    // workload: rms_norm(H=96,residual=0)@T=5
    // numerics: exact
    // stopped by: incorrect

A field may go on in the next lines, indented. In a template (``.j2``) the fields stand in its header as comments of
TOML, with ``#``, and ``numerics`` is the header's own. The folder is the kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kforge.core.errors import KforgeError
from kforge.core.trial import FailureClass, NumericsClass, RejectReason
from kforge.core.workload import Problem, Workload

Gate = FailureClass | RejectReason  # of a trial, or of the judge's verdict

_SUFFIXES = (".cc", ".j2")
_LINE = re.compile(r"^(?://|#) (?:(?P<name>[a-z][a-z ]*): |  +)(?P<text>.+)$")
_JUDGE = "judge: "
_NOTHING = "nothing"
_NEEDED = ("tries", "reported", "workload", "stopped by")


class Kind(StrEnum):
    """What a specimen attacks; its folder's name."""

    TIMING = "timing"
    MEMORY = "memory"
    SEMANTICS = "semantics"
    SANDBOX = "sandbox"
    HONEST = "honest"  # unusual, and right: it must pass


@dataclass(frozen=True)
class Specimen:
    """``gates``: any of them may stop it; none for the honest. ``incumbent``: the specimen that the judge holds it
    against, "" for the shipped default."""

    name: str  # folder/file without suffix
    kind: Kind
    file: Path
    tries: str
    reported: str
    workload: Workload
    numerics: NumericsClass
    gates: tuple[Gate, ...]
    incumbent: str = ""


def told(gate: Gate | None) -> str:
    """A gate as headers write it."""
    if gate is None:
        return _NOTHING
    return f"{_JUDGE}{gate}" if isinstance(gate, RejectReason) else str(gate)


def find(folder: Path) -> list[Specimen]:
    """All specimens below ``folder``, by kind and name. Raises KforgeError for none, and for a broken header."""
    if not folder.is_dir():
        raise KforgeError(f"{folder}: no such folder; the zoo's specimens lie in tests/zoo of a checkout of kforge: "
                          "give that folder with --folder")
    files = [file for kind in Kind for file in sorted((folder / kind).glob("*")) if file.suffix in _SUFFIXES]
    if not files:
        raise KforgeError(f"{folder}: no specimens ({', '.join(Kind)}/*.cc or *.j2) lie there")
    return [_read(file) for file in files]


def _read(file: Path) -> Specimen:
    fields = _fields(file)
    if missing := [name for name in _NEEDED if name not in fields]:
        raise KforgeError(f"{file}: its first comment lacks '{missing[0]}:'")
    kind = Kind(file.parent.name)
    gates = tuple(_gate(file, text.strip()) for text in fields["stopped by"].split(",")
                  if text.strip() != _NOTHING)
    if bool(gates) == (kind is Kind.HONEST):
        raise KforgeError(f"{file}: 'stopped by: {_NOTHING}' is for the kind {Kind.HONEST}, and only for it")
    try:
        numerics = NumericsClass(fields.get("numerics", NumericsClass.EXACT))
        workload = _workload(fields["workload"])
    except (KeyError, ValueError) as error:
        raise KforgeError(f"{file}: {error}") from None
    return Specimen(f"{kind}/{file.name.partition('.')[0]}", kind, file, fields["tries"], fields["reported"], workload,
                    numerics, gates, fields.get("incumbent", ""))


def _fields(file: Path) -> dict[str, str]:
    """The fields of the first comment; in a template of the comment lines in its header."""
    fields: dict[str, str] = {}
    last = ""
    for line in _head(file):
        if (found := _LINE.match(line)) is None:
            if file.suffix == ".cc":
                break
            continue
        last = found["name"] or last
        fields[last] = f"{fields[last]} {found['text']}" if last in fields else found["text"]
    return fields


def _head(file: Path) -> Iterator[str]:
    text = file.read_text(encoding="utf-8")
    return iter((text.partition("-#}")[0] if file.suffix == ".j2" else text).splitlines())


def _gate(file: Path, text: str) -> Gate:
    try:
        return RejectReason(text.removeprefix(_JUDGE)) if text.startswith(_JUDGE) else FailureClass(text)
    except ValueError:
        raise KforgeError(f"{file}: 'stopped by: {text}' names no class of failure and no judge's reason") from None


def _workload(key: str) -> Workload:
    """In any order of its axes."""
    given = Workload.parse(key)
    return Workload(Problem.of(given.problem.operator, **dict(given.problem.static)), tuple(sorted(given.dynamic)))
