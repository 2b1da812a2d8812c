"""Calls on disk: whole, readable, and the same when they are loaded again."""

from __future__ import annotations

import dataclasses
import json
import threading
from datetime import UTC, datetime

import pytest
from asking import ARGUMENTS, request
from hypothesis import given, settings
from hypothesis import strategies as st

from kforge.agent.calls import CallFailure, CallFailureKind, Message, Reply, Role, Usage
from kforge.agent.transcripts import Transcript, Transcripts, from_json, load, to_json
from kforge.core.errors import KforgeError

REPLY = Reply("anthropic", "m-1", ARGUMENTS, "Because.\nYes.", Usage(1, 2, 3, 4), 1.5, 2)
FAILURE = CallFailure(CallFailureKind.MALFORMED, "no JSON", Usage(5, 6, 7, 8), "propose({\n", True, 1)


def transcript(**changes) -> Transcript:
    given = {"request": request(), "provider": "anthropic", "model": "m", "answer": REPLY, "first": FAILURE,
             "usd": 0.0123, "started": datetime(2026, 11, 30, 12, 0, 0, 5000, tzinfo=UTC), "seconds": 12.5}
    return Transcript(**{**given, **changes})


@pytest.mark.parametrize("changes", [
    {}, {"answer": FAILURE, "first": None}, {"usd": None}, {"answer": dataclasses.replace(REPLY, assumed=True)},
    {"request": request(role=Role.GENERATOR, parent="", messages=(Message("user", "a"), Message("assistant", "")))},
])
def test_a_call_comes_back_as_it_was(tmp_path, changes):
    written = transcript(**changes)
    path = Transcripts(tmp_path).write(written)
    assert load(tmp_path) == load(path.parent) == [written]
    assert load(tmp_path)[0].request.hash == written.request.hash
    assert path.name == f"0001-{written.request.role}.json"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(["|", "\n", "a\nb\n", "\r\n"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(texts, values, max_size=3), texts, texts)
def test_whatever_a_model_says_comes_back_as_it_was(arguments, text, prompt):
    written = transcript(answer=dataclasses.replace(REPLY, arguments=arguments, text=text),
                         request=request(system=prompt, messages=(Message("user", prompt),)))
    assert from_json(json.loads(json.dumps(to_json(written)))) == written


def test_people_can_read_the_prompt_line_by_line(tmp_path):
    text = Transcripts(tmp_path).write(transcript()).read_text()
    assert '"You analyse.",\n' in text
    assert '"memory",\n' in text
    assert "of the “weights”" in text
    assert "\\n" not in text


def test_files_are_numbered_in_one_sequence_from_all_threads_and_over_a_resume(tmp_path):
    files = Transcripts(tmp_path)
    threads = [threading.Thread(target=files.write, args=(transcript(request=request(ordinal=i)),)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Transcripts(tmp_path).write(transcript(request=request(role=Role.REPAIRER, ordinal=12)))
    names = sorted(p.name for p in (tmp_path / "calls").iterdir())
    assert names == [*(f"{n:04d}-analyst.json" for n in range(1, 13)), "0013-repairer.json"]
    assert sorted(t.request.ordinal for t in load(tmp_path)) == list(range(13))


def test_a_gap_that_a_kill_left_is_not_filled(tmp_path):
    files = Transcripts(tmp_path)
    files.write(transcript())
    files.write(transcript(request=request(ordinal=1))).rename(tmp_path / "calls" / "0007-analyst.json")
    assert Transcripts(tmp_path).write(transcript(request=request(ordinal=2))).name == "0008-analyst.json"


def test_only_the_very_same_request_was_answered_before(tmp_path):
    Transcripts(tmp_path).write(transcript())
    Transcripts(tmp_path).write(transcript(request=request(ordinal=1), answer=FAILURE))
    again = Transcripts(tmp_path)
    assert again.reply_to(request()) == REPLY
    for other in (request(ordinal=1), request(ordinal=2), request(max_tokens=501), request(parent="x")):
        assert again.reply_to(other) is None


@pytest.mark.parametrize("damage", [
    lambda text: text[:200], lambda text: "[]", lambda text: text.replace('"format": 1', '"format": 99'),
    lambda text: text.replace('"kind": "malformed"', '"kind": "odd"'), lambda text: text.replace("by", "from"),
    lambda text: text.replace('"reply"', '"answer"'), lambda text: "\x00",
])
def test_a_file_that_is_no_record_is_named(tmp_path, damage):
    path = Transcripts(tmp_path).write(transcript())
    path.write_text(damage(path.read_text()))
    with pytest.raises(KforgeError, match=r"0001-analyst\.json is no record of a call"):
        load(tmp_path)


def test_an_edited_request_is_noticed(tmp_path):
    path = Transcripts(tmp_path).write(transcript())
    path.write_text(path.read_text().replace("What is slow?", "What is fast?"))
    with pytest.raises(KforgeError, match="was edited"):
        load(tmp_path)


def test_a_folder_that_cannot_be_written_ends_in_one_sentence(tmp_path):
    (tmp_path / "calls").write_text("in the way")
    with pytest.raises(KforgeError, match=r"cannot write .*0001-analyst"):
        Transcripts(tmp_path).write(transcript())
