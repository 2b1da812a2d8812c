"""What ideas came to is learned from measurements, shown to later runs, and overruled by what they measure."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from scripted import FAILED, Script, analysis, breaking, edit, fresh, plain, settle
from situations import NORM, TARGET, Story, norm_story, variation
from test_replaying import Recorded

from kforge.agent import ideas as tree
from kforge.agent.calls import Request, Role
from kforge.agent.evidence import sheet
from kforge.agent.ideas import Branch, Idea, Result
from kforge.agent.loop import ModelProposer
from kforge.agent.memory import Memory, finding_of, suspected
from kforge.agent.replaying import replay
from kforge.core.lesson import Finding, Lesson, Standing
from kforge.core.trial import Decision, Failure, FailureClass, RejectReason, Timing, Trial, Verdict
from kforge.registry.database import Registry
from kforge.targets.family import family
from kforge.tuner.proposals import Outcome, Proposal

SECTION = "# What earlier runs taught"
INEXACT = Failure(FailureClass.INEXACT, "the output differs from the order specification")
INCUMBENT = "the default"


def verdict(decision: Decision, reason: RejectReason | None = None, gain: float = 0.0) -> Verdict:
    shape = ((norm_story().keys[1], gain), ("a shape of checks@T=17", gain))
    return Verdict(decision, "c", INCUMBENT, gain, gain - 0.01, gain + 0.01, 30, 6, 0.01, reason, shape)


ACCEPTED = verdict(Decision.ACCEPTED, gain=0.3)
SLOWER = verdict(Decision.REJECTED, RejectReason.SLOWER, -0.05)
NOISY = verdict(Decision.UNDECIDED, RejectReason.TOO_NOISY)
BROKEN = verdict(Decision.REJECTED, RejectReason.FAILED)


def result(run: Path, *us: float, failure: Failure | None = None, verdicts: tuple[Verdict, ...] = (),
           points: int = tree.FIRST_TRIALS) -> Result:
    """Of an idea that began where the shipped template takes 2 and 38 us."""
    story = norm_story()
    before = tuple(tree.best_seconds(story.situation.tried).items())
    idea = Idea(0, story.task.problem.key, Branch(""), 0, 0, before, 0)
    proposal = Proposal(idea.id, idea.task, variation("try", 0, run), "", "edges", "m", 0.1, "a/b")
    told = story.outcome(proposal, *us, failure=failure)
    outcome = Outcome(proposal, told.tried[:points], failure, verdicts)
    return tree.result_of(idea, outcome, story.situation.weights)


def found(result: Result, measured: tuple[str, ...] = (INCUMBENT,)) -> Finding | None:
    return finding_of(result, norm_story().situation.weights, measured)


@pytest.mark.parametrize(("us", "says"), [
    ((2.0, 30.0), Finding.GAIN),
    ((2.0, 37.0), Finding.OPEN),
    ((2.2, 39.0), Finding.OPEN),
    ((2.4, 46.0), Finding.NO_GAIN),
    ((0.2, 38.0), Finding.OPEN),  # ten times as fast below a microsecond: no clock can tell
])
def test_search_timings_alone_tell_only_what_is_far_apart_and_long_enough(
        tmp_path: Path, us: tuple[float, ...], says: Finding) -> None:
    assert found(result(tmp_path, *us)) is says


def test_a_call_below_a_microsecond_is_left_out_and_the_other_buckets_still_tell(tmp_path: Path) -> None:
    assert found(result(tmp_path, 0.1, 30.0)) is Finding.GAIN
    assert found(result(tmp_path, 0.1, 46.0)) is Finding.NO_GAIN


@pytest.mark.parametrize(("us", "verdicts", "says"), [
    ((2.0, 36.0), (ACCEPTED,), Finding.GAIN),
    ((2.0, 36.0), (SLOWER, ACCEPTED), Finding.GAIN),
    ((2.0, 38.0), (ACCEPTED,), Finding.OPEN),  # better than the incumbent, as another template was before
    ((2.0, 30.0), (SLOWER,), Finding.NO_GAIN),
    ((2.0, 30.0), (SLOWER, NOISY), Finding.OPEN),
    ((2.0, 30.0), (BROKEN,), Finding.OPEN),
])
def test_the_judge_has_the_word_where_it_spoke(
        tmp_path: Path, us: tuple[float, ...], verdicts: tuple[Verdict, ...], says: Finding) -> None:
    assert found(result(tmp_path, *us, verdicts=verdicts)) is says


def test_a_refusal_beside_a_kernel_that_this_run_never_timed_says_nothing(tmp_path: Path) -> None:
    assert found(result(tmp_path, 2.0, 30.0, verdicts=(SLOWER,)), measured=()) is Finding.OPEN


def test_slips_of_the_pen_teach_nothing_and_wrong_results_do(tmp_path: Path) -> None:
    assert found(result(tmp_path, failure=FAILED)) is None
    assert found(result(tmp_path, failure=Failure(FailureClass.HARNESS, "no child"))) is None
    assert found(result(tmp_path, failure=INEXACT)) is Finding.FAILED


def test_nothing_is_learned_before_a_template_had_its_share_of_trials(tmp_path: Path) -> None:
    assert found(result(tmp_path, 2.0, 20.0, points=1)) is None


def test_a_task_is_suspected_of_what_its_limit_and_its_ideas_name() -> None:
    facts = sheet(norm_story().situation, [])
    memory = replace(facts, buckets=tuple(replace(b, bound_by="memory") for b in facts.buckets))
    assert suspected(memory) == {"memory_bandwidth", "memory_latency"}
    unknown = replace(facts, buckets=tuple(replace(b, bound_by="") for b in facts.buckets))
    assert suspected(unknown) == frozenset()
    assert "instruction_overhead" in suspected(replace(facts, buckets=(replace(facts.buckets[0], bound_by="fp32"),)))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry.open(tmp_path / "registry.db") as opened:
        yield opened


def write(request: Request) -> dict[str, object]:
    """Another variation of whatever template is shown."""
    if "[1, 2, 4, 8]" in request.messages[0].text:
        return dict(edit())
    more = {"find": "default = 4", "replace": f"default = 4\n[params.more]\nchoices = [1, {next(fresh)}]\ndefault = 1"}
    return {"name": "later", "hypothesis": "h", "edits": [more]}


Tell = Callable[[Story, Proposal], Outcome]


def lived(registry: Registry, run: Path, tell: Tell, *, again: bool = True, **answers: list) -> Script:
    """A run of one idea, on record, of which the author is told what it came to; ``again``: and of another one."""
    registry.begin_run(run.name, "model", TARGET.identity, run)
    script = plain(**{"analyst": [analysis(bottleneck="dependency_chains")], "generator": [write], **answers})
    proposer = ModelProposer(Recorded(script, run), run, memory=Memory(registry, run.name, TARGET))
    story = norm_story()
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    proposer.tell(tell(story, made))
    settle(proposer)
    if again:
        proposer.ask(story.situation)
        settle(proposer)
    proposer.close()
    return script


def gains(story: Story, made: Proposal) -> Outcome:
    return story.outcome(made, 1.5, 25.0)


def loses(story: Story, made: Proposal) -> Outcome:
    return story.outcome(made, 3.0, 60.0)


def users(script: Script, role: Role = Role.ANALYST) -> list[str]:
    """In the order in which they were asked."""
    return [request.messages[0].text for request in script.requests if request.role is role]


@dataclass(frozen=True)
class Two:
    """Two runs, one after another, whose registry is gone since; ``learned``: what it held after the first one."""

    first: Path
    second: Path
    scripts: tuple[Script, Script]
    learned: tuple[Lesson, ...]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Two:
    folder = tmp_path_factory.mktemp("two")
    first, second = folder / "first", folder / "second"
    with Registry.open(folder / "registry.db") as registry:
        one = lived(registry, first, gains)
        learned = tuple(registry.lessons())
        other = lived(registry, second, gains)
    (folder / "registry.db").unlink()
    return Two(first, second, (one, other), learned)


def test_what_an_idea_came_to_becomes_a_lesson_with_its_evidence(two: Two) -> None:
    (lesson,) = two.learned
    about, (evidence,) = lesson.subject, lesson.evidence
    assert (about.operator, about.backend, about.family) == ("rms_norm", "cpp", family(TARGET))
    assert (about.bottleneck, about.move) == ("dependency_chains", "more tokens in flight")
    assert (evidence.run, evidence.idea, evidence.problem, evidence.finding) == (
        "first", "idea-000", NORM.key, Finding.GAIN)
    assert evidence.predicted == 0.25 and evidence.gain == pytest.approx(40 / 26.5 - 1)
    assert evidence.buckets == (("T=1", pytest.approx(2 / 1.5)), ("T=32", pytest.approx(38 / 25)))


def test_a_second_run_is_told_what_the_first_one_learned(two: Two) -> None:
    first, second = two.scripts
    assert not any(SECTION in text for text in users(first))  # what is its own stands in its list of ideas
    assert all(SECTION in text for role in (Role.ANALYST, Role.GENERATOR) for text in users(second, role))
    text = " ".join(users(second)[0].split())
    assert "against dependency_chains: it gained (1 for it, 0 against it)" in text
    assert "Move: more tokens in flight" in text and "[run first, idea-000]" in text


def test_a_run_that_was_told_lessons_is_thought_again_to_the_byte_without_a_registry(two: Two) -> None:
    again = list(replay(two.second))
    assert len(again) == 2 and sum(one.prompts for one in again) == 4
    assert {one.difference for one in again} == {""}


def test_a_prompt_that_a_replay_writes_holds_the_lessons_that_were_on_record(two: Two, tmp_path: Path) -> None:
    run = shutil.copytree(two.second, tmp_path / "second")
    log = run / "ideas.jsonl"
    log.write_text(log.read_text().replace("more tokens in flight", "fewer tokens in flight", 1))
    assert "fewer tokens in flight" in next(iter(replay(run))).difference


def test_a_record_from_before_there_were_lessons_is_replayed(two: Two, tmp_path: Path) -> None:
    run = shutil.copytree(two.first, tmp_path / "first")
    lines = [json.loads(line) for line in (run / "ideas.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "begun":
            assert line["job"]["sheet"].pop("lessons") == []
    (run / "ideas.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert {one.difference for one in replay(run)} == {""}


def test_a_lesson_that_a_later_run_contradicts_leaves_the_prompts_and_stays_listed(
        registry: Registry, tmp_path: Path) -> None:
    lived(registry, tmp_path / "first", gains, again=False)
    (told,) = users(lived(registry, tmp_path / "second", loses, again=False))
    assert SECTION in told
    (lesson,) = registry.lessons()
    assert (lesson.supports, lesson.contradictions, lesson.standing) == (1, 1, Standing.DEMOTED)
    before, after = users(lived(registry, tmp_path / "third", loses))
    assert SECTION not in before and "it brought no gain (2 for it, 1 against it)" in " ".join(after.split())
    (lesson,) = registry.lessons()
    assert (lesson.claim, lesson.standing) == (Finding.NO_GAIN, Standing.HELD)


def test_what_search_timings_taught_is_taken_back_by_the_judge(registry: Registry, tmp_path: Path) -> None:
    registry.begin_run("r", "model", TARGET.identity, tmp_path)
    proposer = ModelProposer(plain(), tmp_path / "r", memory=Memory(registry, "r", TARGET))
    story = norm_story()
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    told = gains(story, made)
    proposer.tell(told)
    assert registry.lessons()[0].claim is Finding.GAIN
    proposer.tell(replace(told, verdicts=(SLOWER,)))
    (lesson,) = registry.lessons()
    assert lesson.claim is Finding.OPEN  # the incumbent is none that this run has timed
    (judged,) = lesson.evidence[0].judged
    assert (judged.bucket, judged.decision, judged.reason, judged.pairs) == ("T=32", "rejected", "slower", 30)
    assert "T=17" not in repr(lesson)
    registry.record_trial("r", TARGET.identity, NORM, Trial(INCUMBENT, "w", (), "t", timing=Timing(1e-5, 0, 5, 9)))
    proposer.tell(replace(told, verdicts=(SLOWER, SLOWER)))
    assert registry.lessons()[0].claim is Finding.NO_GAIN
    proposer.close()


def test_a_repair_is_part_of_the_idea_that_it_mends(registry: Registry, tmp_path: Path) -> None:
    registry.begin_run("r", "model", TARGET.identity, tmp_path)
    mend = {"name": "again", "hypothesis": "h", "edits": [{"find": "    Call c;", "replace": "    Call c; c.eps = 1;"}]}
    proposer = ModelProposer(plain(repairer=[mend]), tmp_path / "r", memory=Memory(registry, "r", TARGET))
    story = norm_story()
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    proposer.tell(story.outcome(made, failure=INEXACT))
    (lesson,) = registry.lessons()
    assert lesson.claim is Finding.FAILED and lesson.evidence[0].failure == "inexact"
    (mended,) = settle(proposer)
    proposer.tell(gains(story, mended))
    (lesson,) = registry.lessons()
    assert [(e.idea, e.finding) for e in lesson.evidence] == [("idea-000", Finding.GAIN)]
    proposer.close()


def test_a_template_that_was_mended_while_it_was_written_is_learned_of_too(registry: Registry, tmp_path: Path) -> None:
    lived(registry, tmp_path / "first", gains, again=False, generator=[breaking()])
    assert [lesson.claim for lesson in registry.lessons()] == [Finding.GAIN]


def test_lessons_of_this_run_are_shown_to_its_other_tasks(registry: Registry, tmp_path: Path) -> None:
    registry.begin_run("r", "model", TARGET.identity, tmp_path)
    memory = Memory(registry, "r", TARGET)
    proposer = ModelProposer(plain(), tmp_path / "r", memory=memory)
    story = norm_story()
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    proposer.tell(gains(story, made))
    facts = sheet(story.situation, [])
    assert memory.recall(facts, NORM.key) == ()
    assert [lesson.number for lesson in memory.recall(facts, "rms_norm(H=2048,residual=0)")] == [1]
    proposer.close()


def test_what_a_process_hears_of_a_task_that_it_never_saw_is_learned_as_well(
        registry: Registry, tmp_path: Path) -> None:
    registry.begin_run("r", "model", TARGET.identity, tmp_path)
    proposer = ModelProposer(plain(), tmp_path / "r")
    story = norm_story()
    proposer.ask(story.situation)
    (made,) = settle(proposer)
    proposer.close()
    later = ModelProposer(plain(), tmp_path / "r", known={made.id}, memory=Memory(registry, "r", TARGET))
    later.tell(gains(story, made))
    (lesson,) = registry.lessons()
    assert lesson.claim is Finding.GAIN
    later.close()
