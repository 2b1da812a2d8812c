"""``ideas.jsonl`` in a run's folder: what was asked for and what came of it, on the disk before it is acted on."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kforge.agent.ideas import Branch, Idea
from kforge.agent.thinking import End, Ending
from kforge.core.errors import KforgeError, sentence_of
from kforge.tuner.proposals import Proposal

FILE = "ideas.jsonl"


@dataclass(frozen=True)
class Offered:
    """A proposal as it is written down; its template lies in the run's folder."""

    path: str
    template_hash: str
    parent: str
    bottleneck: str
    move: str
    predicted: float
    author: str


@dataclass
class IdeaLog:
    """In the order of their numbers. ``begun``: number -> what its prompts depend on (``assignments``), as of the last
    time that it was begun. ``ended``: number -> how it ended without a template."""

    path: Path
    ideas: list[Idea] = field(default_factory=list)
    begun: dict[int, dict[str, Any]] = field(default_factory=dict)
    offered: dict[int, Offered] = field(default_factory=dict)
    ended: dict[int, Ending] = field(default_factory=dict)

    @classmethod
    def open(cls, run: Path) -> IdeaLog:
        """With what an earlier process wrote; a line that a kill tore is left out. Raises KforgeError."""
        log = cls(run / FILE)
        try:
            lines = log.path.read_text(encoding="utf-8", errors="replace").splitlines() if log.path.is_file() else []
        except OSError as error:
            raise KforgeError(sentence_of(error)) from error
        for line in lines:
            try:
                log._read(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue
        log.ideas.sort(key=lambda idea: idea.number)
        return log

    @property
    def unfinished(self) -> list[Idea]:
        """Asked for by a process that did not live to see what came of it."""
        return [i for i in self.ideas if i.number not in self.offered and i.number not in self.ended]

    @property
    def next(self) -> int:
        """The number of the next idea."""
        return 1 + max((idea.number for idea in self.ideas), default=-1)

    def ask(self, idea: Idea) -> None:
        self._write({"kind": "asked", "idea": asdict(idea)})
        self.ideas.append(idea)

    def begin(self, idea: Idea, job: dict[str, Any]) -> None:
        self._write({"kind": "begun", "number": idea.number, "job": job})
        self.begun[idea.number] = job

    def offer(self, idea: Idea, proposal: Proposal) -> None:
        offered = Offered(proposal.template.path, proposal.template.hash, proposal.parent, proposal.bottleneck,
                          proposal.move, proposal.predicted, proposal.author)
        self._write({"kind": "offered", "number": idea.number, "proposal": asdict(offered)})
        self.offered[idea.number] = offered

    def end(self, idea: Idea, ending: Ending) -> None:
        self._write({"kind": "ended", "number": idea.number, "ending": asdict(ending)})
        self.ended[idea.number] = ending

    def _read(self, data: dict[str, Any]) -> None:
        if data["kind"] == "asked":
            idea = data["idea"]
            branch = {**idea["branch"], "exhausted": tuple(idea["branch"]["exhausted"])}
            before, margins = _pairs(idea["before"]), _pairs(idea.get("margins", ()))
            self.ideas.append(Idea(**{**idea, "branch": Branch(**branch), "before": before, "margins": margins}))
        elif data["kind"] == "begun":
            self.begun[data["number"]] = data["job"]
        elif data["kind"] == "offered":
            self.offered[data["number"]] = Offered(**data["proposal"])
        elif data["kind"] == "ended":
            self.ended[data["number"]] = Ending(**{**data["ending"], "how": End(data["ending"]["how"])})

    def _write(self, data: dict[str, Any]) -> None:
        """One whole line; behind a torn one it begins on a line of its own. Raises KforgeError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab+") as out:
                if out.tell():
                    out.seek(-1, os.SEEK_END)
                    torn = out.read(1) != b"\n"
                else:
                    torn = False
                out.write(b"\n" * torn + json.dumps(data, sort_keys=True).encode() + b"\n")
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            raise KforgeError(sentence_of(error)) from error


def _pairs(data: list[Any] | tuple[Any, ...]) -> tuple[tuple[str, float], ...]:
    return tuple((str(bucket), float(seconds)) for bucket, seconds in data)
