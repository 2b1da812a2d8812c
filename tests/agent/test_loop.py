"""The loop with a scripted caller: from a situation to proposals, through failures, a kill, and back."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from scripted import FAILED, NEVER, Answer, Script, analysis, breaking, edit, fresh, plain, settle
from situations import NORM, TARGET, Story, linear_story, norm_story, shipped_template, task_of

from kforge.agent import ideas as tree
from kforge.agent.calls import CallFailure, CallFailureKind, Request, Role
from kforge.agent.drafting import source_of
from kforge.agent.idea_log import IdeaLog
from kforge.agent.loop import MENDS, ModelProposer
from kforge.agent.thinking import REPAIRS, End
from kforge.core.trial import Failure, FailureClass
from kforge.tuner.proposals import Proposer


@pytest.fixture
def story() -> Story:
    return norm_story()


def test_an_ask_returns_at_once_and_a_proposal_comes_with_lineage_prediction_and_author(
        story: Story, tmp_path: Path) -> None:
    script = plain()
    script.hold.clear()
    proposer: Proposer = ModelProposer(script, tmp_path)
    began = time.monotonic()
    assert proposer.ask(story.situation) and proposer.working and proposer.take() == []
    assert time.monotonic() - began < 30
    script.hold.set()
    assert isinstance(proposer, ModelProposer)
    (made,) = settle(proposer)
    assert (made.id, made.task, made.author) == ("idea-000", NORM.key, "script/model-1")
    assert (made.bottleneck, made.move, made.predicted) == ("edges", "more tokens in flight", 0.25)
    assert made.parent == shipped_template("rms_norm").hash and made.template.path == "cpp/rms_norm/more_000.cc.j2"
    assert not made.template.trusted and made.template.applies(NORM, TARGET) is None
    proposer.close()


def test_calls_are_named_by_role_parent_and_ordinal(story: Story, tmp_path: Path) -> None:
    script = plain()
    proposer = ModelProposer(script, tmp_path)
    for _ in range(2):
        proposer.ask(story.situation)
    settle(proposer)
    parent = shipped_template("rms_norm").hash
    assert {(r.role, r.parent, r.ordinal) for r in script.requests} == {
        (Role.ANALYST, parent, 0), (Role.GENERATOR, parent, 0), (Role.ANALYST, parent, 2), (Role.GENERATOR, parent, 2)}
    proposer.close()


def test_ideas_are_worked_out_side_by_side_and_no_more_than_asked_for(story: Story, tmp_path: Path) -> None:
    meeting = threading.Barrier(2, timeout=NEVER)

    def meet(request: Request) -> Answer:
        meeting.wait()
        return analysis()

    proposer = ModelProposer(plain(analyst=[meet]), tmp_path, parallel=2)
    assert all(proposer.ask(story.situation) for _ in range(5))
    assert len(proposer.ideas) == 2
    assert len(settle(proposer)) == 2
    proposer.close()


def test_full_hands_refuse_no_task_for_good(story: Story, tmp_path: Path) -> None:
    script = plain()
    script.hold.clear()
    proposer = ModelProposer(script, tmp_path, parallel=1)
    other = linear_story().situation
    assert proposer.ask(story.situation) and proposer.ask(other) and len(proposer.ideas) == 1
    script.hold.set()
    settle(proposer)
    assert proposer.ask(other) and len(proposer.ideas) == 2
    proposer.close()


def test_machine_code_is_looked_into_for_an_idea_that_begins_and_not_while_no_hand_is_free(
        story: Story, tmp_path: Path) -> None:
    script = plain()
    script.hold.clear()
    proposer = ModelProposer(script, tmp_path, parallel=1)
    proposer.ask(story.situation)
    seen = len(story.inspected)
    assert 1 <= seen <= 3
    for _ in range(3):
        proposer.ask(story.situation)
    assert len(story.inspected) == seen
    script.hold.set()
    settle(proposer)
    proposer.close()


def test_proposals_come_in_the_order_in_which_they_were_asked_for(story: Story, tmp_path: Path) -> None:
    second_done = threading.Event()

    def slow_first(request: Request) -> Answer:
        if request.ordinal == 0:
            assert second_done.wait(NEVER)
        return edit()

    def note(request: Request) -> Answer:
        second_done.set() if request.ordinal == 2 else None
        return analysis()

    proposer = ModelProposer(plain(analyst=[note], generator=[slow_first]), tmp_path)
    for _ in range(2):
        proposer.ask(story.situation)
    assert [p.id for p in settle(proposer)] == ["idea-000", "idea-001"]
    proposer.close()


def test_an_answer_that_makes_no_sense_is_asked_for_once_more_with_the_reason(story: Story, tmp_path: Path) -> None:
    script = plain(generator=[{"name": "a", "hypothesis": "b"}, edit()])
    proposer = ModelProposer(script, tmp_path)
    proposer.ask(story.situation)
    assert len(settle(proposer)) == 1
    first, second = script.of(Role.GENERATOR)
    assert (first.ordinal, second.ordinal) == (0, 1) and first.messages[0] == second.messages[0]
    assert [m.by for m in second.messages] == ["user", "assistant", "user"]
    assert "either the whole 'template' or 'edits'" in second.messages[2].text
    proposer.close()


def test_nonsense_twice_ends_the_idea_and_not_the_run(story: Story, tmp_path: Path) -> None:
    proposer = ModelProposer(plain(analyst=[{"bottleneck": "magic"}, {"bottleneck": "magic"}, analysis()]), tmp_path)
    proposer.ask(story.situation)
    assert settle(proposer) == []
    assert IdeaLog.open(tmp_path).ended[0].how is End.CALL
    assert proposer.ask(story.situation)
    assert [p.id for p in settle(proposer)] == ["idea-001"]
    proposer.close()


@pytest.mark.parametrize("kind", [k for k in CallFailureKind if not CallFailure(k, "").final and k != "cancelled"])
def test_a_call_that_fails_ends_its_idea_and_the_next_one_is_worked_out(
        story: Story, tmp_path: Path, kind: CallFailureKind) -> None:
    proposer = ModelProposer(plain(analyst=[CallFailure(kind, "no"), analysis()]), tmp_path)
    proposer.ask(story.situation)
    assert settle(proposer) == [] and proposer.stopped == ""
    assert IdeaLog.open(tmp_path).ended[0].reason == f"{kind.value}: no"
    assert proposer.ask(story.situation) and len(settle(proposer)) == 1
    proposer.close()


@pytest.mark.parametrize("kind", [k for k in CallFailureKind if CallFailure(k, "").final])
def test_a_failure_that_no_call_can_better_stops_the_agent(
        story: Story, tmp_path: Path, kind: CallFailureKind) -> None:
    proposer = ModelProposer(plain(generator=[CallFailure(kind, "no money")]), tmp_path)
    proposer.ask(story.situation)
    assert settle(proposer) == []
    assert proposer.stopped == f"{kind.value}: no money"
    assert not proposer.ask(story.situation) and not proposer.ask(linear_story().situation) and not proposer.working
    proposer.close()


def test_a_draft_that_is_no_template_is_mended_within_its_idea(story: Story, tmp_path: Path) -> None:
    script = plain(generator=[breaking()])
    proposer = ModelProposer(script, tmp_path)
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    assert made.id == "idea-000" and made.template.path == "cpp/rms_norm/mended_000.cc.j2"
    assert made.parent == shipped_template("rms_norm").hash
    (repair,) = script.of(Role.REPAIRER)
    assert "Jinja" in repair.messages[0].text and "edges: more tokens in flight" in repair.messages[0].text
    assert ">   92 {% if tokens > %}" in repair.messages[0].text
    proposer.close()


def test_repairs_of_a_draft_are_bounded(story: Story, tmp_path: Path) -> None:
    script = plain(generator=[breaking()], repairer=[{"name": "x", "hypothesis": "h", "template": "nothing"}])
    proposer = ModelProposer(script, tmp_path)
    proposer.ask(story.situation)
    assert settle(proposer) == []
    assert len(script.of(Role.REPAIRER)) == REPAIRS and IdeaLog.open(tmp_path).ended[0].how is End.UNUSABLE
    assert len({(r.parent, r.ordinal) for r in script.of(Role.REPAIRER)}) == REPAIRS
    proposer.close()


def test_a_duplicate_is_no_proposal_and_costs_no_repair(story: Story, tmp_path: Path) -> None:
    script = plain(generator=[{"name": "same", "hypothesis": "h", "edits": [{"find": "default = 4",
                                                                             "replace": "default = 2"}]}])
    proposer = ModelProposer(script, tmp_path)
    proposer.ask(story.situation)
    assert settle(proposer) == [] and script.of(Role.REPAIRER) == []
    assert IdeaLog.open(tmp_path).ended[0].how is End.DUPLICATE
    proposer.close()


def test_two_ideas_side_by_side_that_come_to_the_same_make_one_proposal(story: Story, tmp_path: Path) -> None:
    proposer = ModelProposer(plain(generator=[edit("[4, 6]")]), tmp_path)
    for _ in range(2):
        proposer.ask(story.situation)
    assert [p.id for p in settle(proposer)] == ["idea-000"]
    assert IdeaLog.open(tmp_path).ended[1].how is End.DUPLICATE
    proposer.close()


def test_a_proposal_that_failed_to_build_is_repaired_without_being_asked_for(story: Story, tmp_path: Path) -> None:
    def repair_it(request: Request) -> Answer:
        change = {"find": "    Call c;", "replace": f"    Call c; c.eps = {next(fresh)};"}
        return {"name": "again", "hypothesis": "h", "edits": [change]}

    script = plain(repairer=[repair_it])
    proposer = ModelProposer(script, tmp_path)
    proposer.ask(story.situation)
    (first,) = settle(proposer)
    proposer.tell(story.outcome(first, failure=FAILED))
    (second,) = settle(proposer)
    assert second.id == "idea-001" and second.parent == first.template.hash and second.move == first.move
    (repair,) = script.of(Role.REPAIRER)
    assert repair.parent == first.template.hash and ">    3 int x" in repair.messages[0].text
    assert source_of(first.template).text.strip() in repair.messages[0].text
    proposer.tell(story.outcomes[0])
    assert not proposer.working  # it was mended already
    chain = [second]
    while True:
        proposer.tell(story.outcome(chain[-1], failure=FAILED))
        more = settle(proposer)
        if not more:
            break
        chain += more
    assert len(chain) == MENDS
    proposer.close()


def test_a_failure_of_the_harness_is_not_mended(story: Story, tmp_path: Path) -> None:
    proposer = ModelProposer(plain(), tmp_path)
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    proposer.tell(story.outcome(made, failure=Failure(FailureClass.HARNESS, "a child did not start")))
    assert not proposer.working
    proposer.close()


def test_thinking_gives_way_to_what_is_being_timed(story: Story, tmp_path: Path) -> None:
    nice = []

    def look(request: Request) -> Answer:
        nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return analysis()

    proposer = ModelProposer(plain(analyst=[look]), tmp_path)
    proposer.ask(story.situation)
    settle(proposer)
    assert nice[0] >= 10
    proposer.close()


def test_one_point_that_failed_is_no_reason_to_repair_while_others_may_work(story: Story, tmp_path: Path) -> None:
    proposer = ModelProposer(plain(), tmp_path)
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    told = story.outcome(made, failure=FAILED)
    story.outcomes[0] = replace(told, tried=told.tried[:1])
    proposer.ask(story.situation)
    assert not any(idea.mends for idea in proposer.ideas)
    story.outcomes[0] = told
    proposer.ask(story.situation)
    assert any(idea.mends for idea in proposer.ideas)
    proposer.close()


def test_what_works_is_not_repaired(story: Story, tmp_path: Path) -> None:
    script = plain()
    proposer = ModelProposer(script, tmp_path)
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    proposer.tell(story.outcome(made, 1.0, 20.0))
    assert not proposer.working and script.of(Role.REPAIRER) == []
    proposer.close()


def test_what_an_analyst_calls_finished_is_left_alone(story: Story, tmp_path: Path) -> None:
    script = plain(analyst=[analysis("stop", change="", evidence="at 97 % of the limit")])
    proposer = ModelProposer(script, tmp_path)
    assert proposer.ask(story.situation)
    assert settle(proposer) == [] and not proposer.ask(story.situation) and len(script.requests) == 1
    assert proposer.resting == {NORM.key: "the analyst: at 97 % of the limit"}
    proposer.close()
    assert not ModelProposer(script, tmp_path).ask(story.situation)


def test_at_the_limit_no_model_is_asked(story: Story, tmp_path: Path) -> None:
    story.limits = (1.95, 37.5)
    script = plain()
    proposer = ModelProposer(script, tmp_path)
    assert not proposer.ask(story.situation) and not proposer.working and script.requests == []
    assert "limit" in proposer.resting[NORM.key]
    proposer.close()


def test_a_new_approach_has_no_parent_and_an_example(story: Story, tmp_path: Path) -> None:
    text = source_of(shipped_template("rms_norm")).text.replace("[1, 2, 4, 8]", "[4, 12]")
    script = plain(analyst=[analysis("write_new")],
                   generator=[{"name": "new", "hypothesis": "h", "template": text}])
    proposer = ModelProposer(script, tmp_path)
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    assert made.parent == ""
    assert "as an example of how one is written" in script.of(Role.GENERATOR)[0].messages[0].text
    proposer.close()


def test_a_task_without_any_template_gets_its_first_one(tmp_path: Path) -> None:
    text = source_of(shipped_template("rms_norm")).text
    script = plain(analyst=[analysis("write_new", bottleneck="not_yet_working")],
                   generator=[{"name": "first", "hypothesis": "h", "template": text}])
    proposer = ModelProposer(script, tmp_path)
    assert proposer.ask(Story(task_of(NORM)).situation)
    (made,) = settle(proposer)
    assert made.parent == "" and script.of(Role.ANALYST)[0].key == "analyst-root-0"
    proposer.close()


def test_outcomes_and_the_score_of_predictions_are_in_the_next_prompt(story: Story, tmp_path: Path) -> None:
    script = plain()
    proposer = ModelProposer(script, tmp_path)
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    proposer.tell(story.outcome(made, 2.0, 19.0))
    proposer.ask(story.situation)
    settle(proposer)
    before, user = (r.messages[0].text for r in script.requests if r.role is Role.ANALYST)
    assert "What was tried before" not in before
    assert "Predicted +25.0 %, measured +90.5 %" in user and "1 measured, 1 of them brought a gain" in user
    proposer.close()


def play(script: Script, run: Path) -> list[tuple[str, str]]:
    """A small run: asks, outcomes and repairs in a fixed order. The calls by key, with the hash of what was shown."""
    story, proposer = norm_story(), ModelProposer(script, run)
    for _ in range(2):
        proposer.ask(story.situation)
    first, second = settle(proposer)
    proposer.tell(story.outcome(first, 1.5, 30.0))
    proposer.tell(story.outcome(second, failure=FAILED))
    proposer.ask(story.situation)
    for made in settle(proposer):
        proposer.tell(story.outcome(made, 1.4, 29.0))
    proposer.ask(story.situation)
    settle(proposer)
    proposer.close()
    return sorted((r.key, r.hash) for r in script.requests)


def test_the_same_asks_and_outcomes_give_the_same_prompts_whatever_the_latency(tmp_path: Path) -> None:
    def by_key(request: Request) -> Answer:
        if delay[request.role] and request.ordinal == 0:
            time.sleep(delay[request.role])
        if request.role is Role.ANALYST:
            return analysis(change=f"move {request.ordinal}")
        old = "[1, 2, 4, 8]" if "[1, 2, 4, 8]" in request.messages[0].text else "default = 4"
        new = f"[4, {sum(map(ord, request.key)) % 50 + 10}]" if old.startswith("[") else "default = 4 # again"
        return {"name": "m", "hypothesis": "h", "edits": [{"find": old, "replace": new}, {
            "find": "    Call c;", "replace": f"    Call c; c.eps = {sum(map(ord, request.key))};"}]}

    recorded = []
    for n, slow in enumerate((Role.ANALYST, Role.GENERATOR, None)):
        delay: dict[Role, float] = {role: 0.15 * (role is slow) for role in Role}
        script = Script(analyst=[by_key], generator=[by_key], repairer=[by_key])
        recorded.append(play(script, tmp_path / str(n)))
    assert recorded[0] == recorded[1] == recorded[2] and len(recorded[0]) >= 9
    assert len({key for key, _ in recorded[0]}) == len(recorded[0])


def test_closing_ends_open_calls_and_a_later_process_takes_the_idea_up_with_the_same_prompt(
        story: Story, tmp_path: Path) -> None:
    script = plain()
    script.hold.clear()
    proposer = ModelProposer(script, tmp_path)
    proposer.ask(story.situation)
    began = time.monotonic()
    proposer.close()
    assert time.monotonic() - began < 30 and not proposer.working and not proposer.ask(story.situation)
    assert [i.number for i in IdeaLog.open(tmp_path).unfinished] == [0]
    again, other = plain(), plain()
    later = ModelProposer(again, tmp_path)
    assert later.ask(story.situation) and [p.id for p in settle(later)] == ["idea-000"]
    fresh = ModelProposer(other, tmp_path / "fresh")
    fresh.ask(story.situation)
    settle(fresh)
    assert again.of(Role.ANALYST)[0].hash == other.of(Role.ANALYST)[0].hash
    for each in (later, fresh):
        each.close()


def test_after_a_kill_untaken_proposals_are_offered_again_and_the_tree_goes_on(story: Story, tmp_path: Path) -> None:
    proposer = ModelProposer(plain(), tmp_path)
    for _ in range(2):
        proposer.ask(story.situation)
    first, second = settle(proposer)  # a kill: nothing is closed
    story.outcome(first, 1.0, 20.0)
    script = plain()
    later = ModelProposer(script, tmp_path, known={first.id})
    (offered,) = later.take()
    assert (offered.id, offered.template.hash, offered.parent) == (second.id, second.template.hash, second.parent)
    assert (offered.move, offered.predicted, offered.author) == (second.move, second.predicted, second.author)
    assert later.ask(story.situation)
    settle(later)
    assert later.ideas[-1].number == 2 and later.ideas[-1].branch.parent == first.template.hash
    for each in (proposer, later):
        each.close()


def test_a_failure_that_was_told_before_a_kill_is_mended_after_it(story: Story, tmp_path: Path) -> None:
    proposer = ModelProposer(plain(), tmp_path)
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    proposer.close()
    story.outcome(made, failure=FAILED)
    script = plain(repairer=[{"name": "again", "hypothesis": "h",
                              "edits": [{"find": "    Call c;", "replace": "    Call c; c.eps = 1;"}]}])
    later = ModelProposer(script, tmp_path, known={made.id})
    later.tell(story.outcomes[0])
    assert not later.working  # what the task looks like is not known yet
    assert later.ask(story.situation)
    mended = next(p for p in settle(later) if p.parent == made.template.hash)
    assert mended.move == made.move and len(script.of(Role.REPAIRER)) == 1
    later.close()


def test_a_template_that_is_gone_from_the_folder_is_not_offered(story: Story, tmp_path: Path) -> None:
    proposer = ModelProposer(plain(), tmp_path)
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    proposer.close()
    (tmp_path / "templates" / made.template.path).write_text("spoilt")
    later = ModelProposer(plain(), tmp_path)
    assert later.take() == [] and IdeaLog.open(tmp_path).ended[0].how is End.LOST
    later.close()


def test_trials_follow_what_was_told(story: Story, tmp_path: Path) -> None:
    proposer = ModelProposer(plain(), tmp_path)
    assert proposer.trials("idea-000") == tree.FIRST_TRIALS
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    story.outcome(made, 1.0, 20.0)
    proposer.tell(story.outcomes[0])
    assert proposer.trials(made.id) == 2 * tree.FIRST_TRIALS
    proposer.close()


def test_a_full_disk_reaches_the_run_as_an_error(story: Story, tmp_path: Path) -> None:
    def spoil(request: Request) -> Answer:
        for part in (tmp_path / "templates" / "cpp" / "common").iterdir():
            part.unlink()
        (tmp_path / "templates" / "cpp" / "common").rmdir()
        return edit()

    proposer = ModelProposer(plain(generator=[spoil]), tmp_path)
    proposer.ask(story.situation)
    with pytest.raises(OSError, match="common"):
        settle(proposer)
    proposer.close()
