"""Which branch is thought about next, how many trials a template deserves, and when a task is left alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from situations import LINEAR, TARGET, Story, linear_story, norm_story, task_of, variation

from kforge.agent import ideas as tree
from kforge.agent.answers import Writing
from kforge.agent.drafting import draft, root_of, source_of
from kforge.agent.idea_log import FILE, IdeaLog
from kforge.agent.ideas import Branch, Idea, Rest, calibration, choose, deserved_trials, gain, results
from kforge.agent.readings import best_readings
from kforge.agent.thinking import End, Ending
from kforge.backends.templates import Template
from kforge.core.trial import Failure, FailureClass, Timing
from kforge.tuner.proposals import Outcome, Proposal

FAILED = Failure(FailureClass.COMPILE, "g++: kernel.cc:3: expected ';'")


class Telling:
    """A task with the ideas that were asked for: what the loop would keep."""

    def __init__(self, story: Story, run: Path) -> None:
        self.story, self.run, self.ideas = story, run, list[Idea]()

    def choose(self) -> Branch | Rest:
        return choose(self.ideas, self.story.situation)

    def ask(self, branch: Branch | None = None) -> Idea:
        chosen = branch or self.choose()
        assert isinstance(chosen, Branch), chosen
        situation = self.story.situation
        number = len(self.ideas)
        before = tuple(tree.best_seconds(situation.tried).items())
        idea = Idea(number, situation.task.problem.key, chosen, 0, len(situation.outcomes), before, number)
        self.ideas.append(idea)
        return idea

    def tell(self, idea: Idea, *us: float, predicted: float = 0.1, failure: Failure | None = None) -> Outcome:
        template = variation("try", idea.number, self.run, (1, 2, 5 + idea.number))
        proposal = Proposal(idea.id, idea.task, template, idea.branch.parent, "edges", f"move {idea.number}", predicted,
                            "script/model")
        return self.story.outcome(proposal, *us, failure=failure)


@pytest.fixture
def telling(tmp_path: Path) -> Telling:
    return Telling(norm_story(), tmp_path)


WEIGHTS = {"a": 1.0, "b": 1.0}


def test_a_gain_in_one_bucket_counts_although_the_template_is_slower_in_the_other() -> None:
    assert gain({"a": 1.0, "b": 9.0}, {"a": 2.0, "b": 2.0}, WEIGHTS) == pytest.approx(4 / 3 - 1)


def test_a_template_that_is_nowhere_better_has_a_loss_over_what_was_measured_of_it() -> None:
    assert gain({"a": 4.0}, {"a": 2.0, "b": 2.0}, WEIGHTS) == pytest.approx(-0.5)
    assert gain({"a": 2.0, "b": 2.0}, {"a": 2.0, "b": 2.0}, WEIGHTS) == 0


def test_a_time_below_what_the_clock_resolves_is_none() -> None:
    story = norm_story()
    story.measured(story.templates[0], 0.0, 39.0)
    best = tree.best_seconds(story.situation.tried)
    assert sorted(best.values()) == pytest.approx([2e-6, 38e-6])
    assert isinstance(choose([], story.situation), Branch)


def test_without_anything_measured_there_is_no_gain() -> None:
    assert gain({}, {"a": 2.0}, WEIGHTS) is None
    assert gain({"a": 2.0}, {}, WEIGHTS) is None


def test_buckets_weigh() -> None:
    assert gain({"a": 1.0}, {"a": 2.0, "b": 2.0}, {"a": 1.0, "b": 99.0}) == pytest.approx(200 / 199 - 1)


def test_the_fastest_template_is_thought_about_first(telling: Telling) -> None:
    assert telling.choose() == Branch(telling.story.templates[0].hash)


def test_two_ideas_from_one_place_know_of_each_other_until_something_was_told(telling: Telling) -> None:
    first = telling.ask()
    second = telling.choose()
    assert second == Branch(first.branch.parent, turn=1)
    telling.tell(first, failure=FAILED)
    assert telling.choose() == Branch(first.branch.parent)


def test_a_faster_template_takes_over_the_thinking(telling: Telling) -> None:
    idea = telling.ask()
    made = telling.tell(idea, 1.0, 20.0).proposal.template
    choice = telling.choose()
    assert isinstance(choice, Branch) and choice.parent == made.hash


def test_a_branch_that_was_visited_often_gives_way_to_one_that_is_nearly_as_fast(telling: Telling) -> None:
    near = variation("near", 50, telling.run)
    telling.story.measured(near, 2.05, 38.5)
    asked = {telling.ask().branch.parent for _ in range(4)}
    assert near.hash in asked


def test_a_branch_that_is_far_slower_is_not_visited(telling: Telling) -> None:
    slow = variation("slow", 50, telling.run)
    telling.story.measured(slow, 20.0, 400.0)
    asked = {telling.ask().branch.parent for _ in range(6)}
    assert slow.hash not in asked


def test_after_ideas_without_progress_another_approach_is_asked_for_and_the_old_moves_are_named(
        telling: Telling) -> None:
    for _ in range(tree.STAGNANT):
        telling.tell(telling.ask(), 2.1, 41.0)
    choice = telling.choose()
    assert isinstance(choice, Branch) and choice.wide and choice.parent == ""
    assert choice.exhausted == tuple(f"edges: move {n}" for n in range(tree.STAGNANT))


def test_what_waits_for_its_trials_or_has_had_a_few_is_not_held_against_the_search(telling: Telling) -> None:
    for n in range(tree.STAGNANT + 1):
        told = telling.tell(telling.ask(Branch("x")), 2.1, 41.0)
        telling.story.outcomes[n] = Outcome(told.proposal, told.tried[: n % 3], None, ())
    choice = telling.choose()
    assert isinstance(choice, Branch) and not choice.wide
    assert calibration(results(telling.ideas, telling.story.situation)) is None


def test_a_small_space_that_was_tried_out_is_settled(telling: Telling) -> None:
    idea = telling.ask()
    text = source_of(telling.story.templates[0]).text.replace("[1, 2, 4, 8]", "[4]")
    template = draft(Writing(name="small", hypothesis="h", template=text), 0, None, telling.story.task, TARGET,
                     root_of(telling.run), [])
    assert isinstance(template, Template)
    told = telling.story.outcome(Proposal(idea.id, idea.task, template, "", "edges", "m", 0.1, "a/b"), 2.1, 41.0)
    telling.story.outcomes[0] = Outcome(told.proposal, told.tried[:2], None, ())
    (result,) = results(telling.ideas, telling.story.situation)
    assert result.settled
    telling.story.outcomes[0] = Outcome(told.proposal, told.tried[:1], None, ())
    (result,) = results(telling.ideas, telling.story.situation)
    assert not result.settled


def test_ideas_of_which_none_came_to_a_trial_widen_the_search_too(telling: Telling) -> None:
    for _ in range(tree.FRUITLESS):
        choice = telling.choose()
        assert isinstance(choice, Branch) and not choice.wide
        telling.ask(choice)
    assert telling.choose() == Branch("", wide=True, turn=tree.FRUITLESS)


def test_progress_ends_the_widening(telling: Telling) -> None:
    for _ in range(tree.STAGNANT):
        telling.tell(telling.ask(), 2.1, 41.0)
    telling.tell(telling.ask(), 1.0, 20.0)
    choice = telling.choose()
    assert isinstance(choice, Branch) and not choice.wide and choice.exhausted == ()


def test_failures_are_no_progress_and_a_mended_one_counts_once(telling: Telling) -> None:
    first = telling.ask()
    failed = telling.tell(first, failure=FAILED)
    mend = Idea(1, first.task, Branch(failed.proposal.template.hash), 0, 0, first.before, first.number, first.id)
    telling.ideas.append(mend)
    telling.tell(mend, 1.0, 20.0)
    outcome, mended = results(telling.ideas, telling.story.situation)
    assert not outcome.progress and mended.progress and mended.gain is not None and mended.gain > 0.5
    choice = telling.choose()
    assert isinstance(choice, Branch) and choice.parent == telling.story.outcomes[-1].proposal.template.hash


def test_patience_ends(telling: Telling) -> None:
    for _ in range(tree.PATIENCE):
        telling.ask(Branch("x"))
    assert isinstance(telling.choose(), Rest)


def test_at_the_limit_in_every_bucket_that_weighs_a_task_rests(telling: Telling) -> None:
    telling.story.limits = (0.1, 37.0)  # the first has 5 % of the time
    assert isinstance(telling.choose(), Branch)
    telling.story.limits = (1.95, 37.0)
    assert isinstance(telling.choose(), Rest)


def test_a_task_whose_calls_are_hardly_more_than_empty_rests(telling: Telling) -> None:
    telling.story.limits = (0.1, 37.0)
    telling.story.empty_call = Timing(1.5e-6, 0.02, 5, 1000)
    assert isinstance(telling.choose(), Branch)
    telling.story.empty_call = Timing(1.95e-6, 0.02, 5, 1000)
    assert isinstance(telling.choose(), Rest)


def test_a_gain_within_what_times_can_tell_is_no_progress(telling: Telling) -> None:
    best = best_readings(telling.story.situation.tried)
    margins = tuple((bucket, found.margin) for bucket, found in best.items())
    for us, progress in (((1.97, 37.4), False), ((1.97, 36.0), True)):
        idea = replace(telling.ask(Branch("x")), margins=margins)
        telling.ideas[-1] = idea
        telling.tell(idea, *us)
        assert results(telling.ideas, telling.story.situation)[-1].progress == progress


def test_two_ideas_for_one_task_know_of_each_other_wherever_they_start(telling: Telling) -> None:
    telling.ask(Branch("elsewhere"))
    choice = telling.choose()
    assert isinstance(choice, Branch) and choice.parent != "elsewhere" and choice.turn == 1


def test_a_bucket_that_hardly_weighs_does_not_keep_a_task_from_resting(tmp_path: Path) -> None:
    story = norm_story()
    story.points.clear()
    story.measured(story.templates[0], 0.5, 40.0)
    story.limits = (0.01, 39.0)
    assert isinstance(choose([], story.situation), Rest)


def test_a_task_without_templates_begins_with_a_new_one() -> None:
    assert choose([], Story(task_of(LINEAR)).situation) == Branch("")


def test_the_first_template_that_works_is_progress(tmp_path: Path) -> None:
    telling = Telling(Story(norm_story().task), tmp_path)
    telling.tell(telling.ask(), 5.0, 50.0)
    (result,) = results(telling.ideas, telling.story.situation)
    assert result.gain is None and result.progress


def test_every_template_gets_a_first_share_of_trials_and_the_better_half_more(telling: Telling) -> None:
    outcomes = []
    for us in (30.0, 39.0, 50.0, 80.0):
        told = telling.tell(telling.ask(Branch("x")), us / 20, us)
        outcomes.append(told)
    told = telling.tell(telling.ask(Branch("x")), 2.5, 50.0)
    fresh = Outcome(told.proposal, told.tried[:1], None, ())
    share = deserved_trials([*outcomes, fresh], telling.story.situation)
    assert [share[o.proposal.id] for o in outcomes] == [2 * tree.FIRST_TRIALS] * 2 + [tree.FIRST_TRIALS] * 2
    assert share[fresh.proposal.id] == tree.FIRST_TRIALS


def test_a_template_that_leads_in_one_bucket_stays_in_the_race(telling: Telling) -> None:
    outcomes = []
    for us in ((1.9, 20.0), (2.0, 21.0), (0.5, 300.0)):
        told = telling.tell(telling.ask(Branch("x")), *us)
        outcomes.append(told)
    share = deserved_trials(outcomes, telling.story.situation)
    assert share[outcomes[2].proposal.id] == 2 * tree.FIRST_TRIALS


def test_a_template_of_which_nothing_runs_is_given_up(telling: Telling) -> None:
    thrice = telling.tell(telling.ask(), failure=FAILED)
    once = Outcome(thrice.proposal, thrice.tried[:1], FAILED, ())
    assert deserved_trials([once], telling.story.situation)[once.proposal.id] == tree.FIRST_TRIALS
    assert deserved_trials([thrice], telling.story.situation)[once.proposal.id] == tree.GIVEN_UP


def test_predictions_are_scored_by_what_was_measured(telling: Telling) -> None:
    telling.tell(telling.ask(), 1.9, 38.0, predicted=0.5)
    telling.tell(telling.ask(), 2.0, 19.0, predicted=1.0)
    telling.tell(telling.ask(), failure=FAILED)
    score = calibration(results(telling.ideas, telling.story.situation))
    assert score is not None and score.count == 2 and score.right_sign == 1
    gains = [r.gain for r in results(telling.ideas, telling.story.situation)]
    assert gains[0] is not None and gains[1] is not None
    assert math.isclose(score.ratio, ((1 + gains[0]) / 1.5 + (1 + gains[1]) / 2) / 2)


def test_the_tree_is_rebuilt_from_what_was_written_down(telling: Telling, tmp_path: Path) -> None:
    log = IdeaLog.open(tmp_path)
    for n in range(5):
        idea = telling.ask()
        log.ask(idea)
        if n == 0:
            log.end(idea, Ending(End.CALL, "refused: no"))
        else:
            log.offer(idea, telling.tell(idea, 2.1, 41.0).proposal)
    with open(tmp_path / FILE, "ab") as out:
        out.write(b'{"kind": "asked", "idea": {"num')  # torn by a kill
    again = IdeaLog.open(tmp_path)
    assert again.ideas == telling.ideas and again.ended == log.ended and again.offered == log.offered
    assert choose(again.ideas, telling.story.situation) == telling.choose()
    extra = telling.ask()
    again.ask(extra)
    assert IdeaLog.open(tmp_path).ideas == telling.ideas and IdeaLog.open(tmp_path).unfinished == [extra]
    lines = (tmp_path / FILE).read_text().splitlines()
    assert json.loads(lines[-1])["idea"]["number"] == extra.number


def test_choices_in_another_task_do_not_count(telling: Telling) -> None:
    for n in range(tree.PATIENCE):
        telling.ideas.append(Idea(n, "another task", Branch(telling.story.templates[0].hash), 0, 0, (), n))
    assert telling.choose() == Branch(telling.story.templates[0].hash)
    assert choose(telling.ideas, linear_story().situation) != telling.choose()
