"""A run that asked a model, thought again from its folder: the same prompts, the same templates, or the difference."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from scripted import FAILED, Script, breaking, plain, settle
from situations import Story, norm_story

from kforge.agent.calls import CallFailure, CallFailureKind, Reply, Request, Role
from kforge.agent.loop import ModelProposer
from kforge.agent.replaying import replay, stale_systems
from kforge.agent.transcripts import FOLDER, Transcript, Transcripts, from_json, to_json
from kforge.core.errors import KforgeError
from kforge.tuner.proposals import Outcome


class Recorded:
    """A script's answers, each call on the disk."""

    def __init__(self, script: Script, run: Path) -> None:
        self._script, self._transcripts = script, Transcripts(run)

    def call(self, request: Request, cancel: threading.Event) -> Reply | CallFailure:
        answer = self._script.call(request, cancel)
        self._transcripts.write(Transcript(request, "script", "model-1", answer, None, None, datetime.now(UTC), 0.1))
        return answer


def recorded(run: Path, story: Story, **answers: Any) -> Path:
    """A run of two ideas, of which the first one fails once it is built and is mended."""
    proposer = ModelProposer(Recorded(plain(**answers), run), run)
    proposer.ask(story.situation)
    for proposal in settle(proposer):
        proposer.tell(Outcome(proposal, (), FAILED, ()))
    settle(proposer)
    proposer.ask(story.situation)
    settle(proposer)
    proposer.close()
    return run


def test_a_run_is_thought_again_to_the_byte(tmp_path: Path) -> None:
    run = recorded(tmp_path, norm_story())
    found = list(replay(run))
    assert len(found) == 3 and sum(one.prompts for one in found) == len(list((run / FOLDER).iterdir())) >= 5
    assert [one.difference for one in found] == ["", "", ""]
    assert found[0].came_to.endswith("/more_000.cc.j2")
    assert stale_systems(run) == []


def test_ends_and_repairs_of_drafts_are_repeated_too(tmp_path: Path) -> None:
    refused = CallFailure(CallFailureKind.REFUSED, "it will not")
    run = recorded(tmp_path, norm_story(), generator=[breaking(), refused])
    found = list(replay(run))
    assert {one.difference for one in found} == {""}
    assert any(one.came_to.startswith("call: refused") for one in found)


def changed(run: Path, role: Role, change: Callable[[Transcript], Transcript]) -> None:
    """Calls of a role as if they had been others."""
    files = [file for file in (run / FOLDER).iterdir() if role in file.name]
    assert files
    for file in files:
        file.write_text(json.dumps(to_json(change(from_json(json.loads(file.read_text()))))))


def test_another_answer_is_told_as_a_difference(tmp_path: Path) -> None:
    run = recorded(tmp_path, norm_story())
    answer = {"name": "another", "hypothesis": "h", "edits": [{"find": "[1, 2, 4, 8]", "replace": "[2, 4]"}]}

    def other(call: Transcript) -> Transcript:
        assert isinstance(call.answer, Reply)
        return replace(call, answer=replace(call.answer, arguments=answer))

    changed(run, Role.GENERATOR, other)
    assert "is not the recorded" in next(one.difference for one in replay(run) if one.difference)


def test_other_measurements_are_told_with_the_first_line_of_the_prompt_that_differs(tmp_path: Path) -> None:
    run = recorded(tmp_path, norm_story())
    lines = (run / "ideas.jsonl").read_text().splitlines()
    begun = [json.loads(line) for line in lines]
    first = next(line for line in begun if line["kind"] == "begun")
    first["job"]["sheet"]["buckets"][0]["best"]["seconds"] *= 2
    (run / "ideas.jsonl").write_text("".join(json.dumps(line) + "\n" for line in begun))
    difference = next(iter(replay(run))).difference
    assert "diverged" in difference and "message 1 (user)" in difference


def test_a_system_text_that_is_written_otherwise_now_is_named_and_the_runs_own_is_used(tmp_path: Path) -> None:
    run = recorded(tmp_path, norm_story())

    def older(call: Transcript) -> Transcript:
        system = call.request.system.replace("You analyse kernels", "You judge kernels")
        return replace(call, request=replace(call.request, system=system))

    changed(run, Role.ANALYST, older)
    assert {one.difference for one in replay(run)} == {""}
    assert [str(stale.role) for stale in stale_systems(run)] == ["analyst"]


def test_a_template_that_was_edited_afterwards_cannot_be_replayed(tmp_path: Path) -> None:
    run = recorded(tmp_path, norm_story())
    for file in (run / "known").rglob("rms_norm/*.cc.j2"):
        file.write_text(file.read_text() + " ")
    with pytest.raises(KforgeError, match="was edited"):
        list(replay(run))


def test_a_run_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(KforgeError, match="holds no ideas"):
        list(replay(tmp_path))
