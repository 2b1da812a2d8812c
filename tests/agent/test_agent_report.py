"""The report of a run with models: the tree, what was said beside what was measured, what changed, what it cost."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from agent_runs import A_CALL, AgentRun
from scripted import FAILED, analysis, breaking, edit
from typer.testing import CliRunner

from kforge.agent.budget import Ledger, Limits, Payee
from kforge.agent.calls import CallFailure, CallFailureKind, Request, Role, Usage
from kforge.agent.prices import Price, Prices
from kforge.agent.report import words
from kforge.agent.report.diffs import MOST_LINES, diffs, unified
from kforge.agent.report.facts import AgentReport, State
from kforge.agent.report.gathering import report_of
from kforge.agent.report.section import section
from kforge.agent.report.summary import to_json
from kforge.cli.runs import app
from kforge.core.errors import KforgeError
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.options import TuneOptions
from kforge.tuner.report import render
from kforge.tuner.run_view import view_of

GAIN = (0.3 + 0.1 * 38 / 40) / (0.3 * 1.5 / 2 + 0.1 * 38 / 40) - 1  # 1.5 us instead of 2.0 at T=1


def reported(path: Path) -> AgentReport:
    report = report_of(view_of(path))
    assert report is not None
    return report


def page_of(path: Path) -> str:
    return render(view_of(path), [section(reported(path))])


def told(path: Path) -> str:
    """The section alone: a page holds the library of its plots, too."""
    return str(section(reported(path)).body)


def choosing(choices: str) -> Callable[[Request], dict]:
    """An edit of the choices of the template that is shown."""

    def answer(request: Request) -> dict:
        text = request.messages[0].text
        old = next(known for known in ("[4, 12]", "[4, 10]", "[1, 2, 4, 8]") if known in text)
        return {"name": "more", "hypothesis": "h", "edits": [{"find": old, "replace": choices}]}

    return answer


def lived(root: Path) -> AgentRun:
    """Three ideas: one that is accepted, one made from it that fails and its repair, which is not accepted."""
    run = AgentRun(root, generator=[choosing("[4, 10]"), choosing("[4, 12]")], repairer=[choosing("[4, 14]")])
    first = run.idea()
    run.measured(first, 1.5, 38.0)
    second = run.idea()
    run.failed(second, FAILED)
    mended = run.taken()
    run.measured(mended, 3.0, 60.0)
    run.judged(first, 0, 0.25)
    run.judged(mended, 1, -0.03)
    return run


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lived(tmp_path_factory.mktemp("runs")).finished()


def test_the_tree_has_repairs_and_later_ideas_below_the_idea_that_they_began_at(story: Path) -> None:
    (task,) = reported(story).tasks
    shape = {i.idea.id: [child.idea.id for child in i.ideas] for b in task.branches for i in b.ideas for i in i.walk()}
    begun_at_first = [i.idea.id for b in task.branches if b.template.endswith("portable.cc.j2") for i in b.ideas]
    assert "idea-000" in begun_at_first
    assert shape["idea-001"] == ["idea-002"]
    assert set(shape) == {"idea-000", "idea-001", "idea-002"}


def test_each_idea_says_where_it_stands_and_why(story: Path) -> None:
    first, second, mended = reported(story).ideas
    assert (first.state, second.state, mended.state) == (State.ACCEPTED, State.FAILED, State.REJECTED)
    assert "T=1: accepted, +25.0 %" in first.why and "engine" in first.why
    assert "none of 3 points ran; after so many failures no more is tried. compile: g++" in second.why
    assert mended.why == "T=32: slower when judged"
    assert first.gain == pytest.approx(GAIN) and first.predicted == 0.25
    assert (first.points, first.trials, second.points, second.trials) == (4, 8, 3, 3)
    assert [(m.before, m.best, m.shipped) for m in first.measured] == [
        (pytest.approx(2e-6), pytest.approx(1.5e-6), pytest.approx(2e-6)),
        (pytest.approx(38e-6), pytest.approx(38e-6), pytest.approx(38e-6))]


def test_every_call_is_with_the_idea_that_it_was_made_for(story: Path) -> None:
    report = reported(story)
    roles = [[call.transcript.request.role.value for call in idea.calls] for idea in report.ideas]
    assert roles == [["analyst", "generator"], ["analyst", "generator"], ["repairer"]]
    assert [idea.usd for idea in report.ideas] == [pytest.approx(n * A_CALL) for n in (2, 2, 1)]


def test_what_each_accepted_percent_of_a_step_cost(story: Path) -> None:
    money = reported(story).money
    (won,) = money.won
    assert (won.idea, won.bucket[-3:], won.promoted) == ("idea-000", "T=1", False)
    assert won.saved == pytest.approx(0.3 * (1 - 1 / 1.25))  # 6 % of a step
    assert won.beside == pytest.approx(2.0 / 1.5 - 1)
    assert money.spent.usd == pytest.approx(5 * A_CALL)
    assert money.per_percent == pytest.approx(5 * A_CALL / 6)
    assert money.per_promoted_percent is None
    said = " ".join(words.money(reported(story)))
    assert "save 6.00 % of a step, nothing of it promoted: $0.0167 for each accepted percent." in said
    assert "5 calls of models, 75 tokens, $0.1000 (at most $200.00 were allowed)." in said


def test_promoted_kernels_are_counted_as_such(tmp_path: Path) -> None:
    path = lived(tmp_path).finished(promoted=True)
    report = reported(path)
    assert report.ideas[0].state is State.PROMOTED
    assert "save 6.00 % of a step, 6.00 % of it promoted" in " ".join(words.money(report))
    assert report.money.per_promoted_percent == report.money.per_percent


def test_where_nothing_was_accepted_it_says_what_the_money_bought(tmp_path: Path) -> None:
    run = AgentRun(tmp_path)
    run.measured(run.idea(), 3.0, 60.0)
    report = reported(run.finished())
    assert words.money(report)[-1] == "No kernel of a model was accepted: $0.0400 bought nothing that serves."
    assert report.ideas[0].state is State.NO_GAIN
    assert report.ideas[0].why.startswith("all ") or "share" in report.ideas[0].why


def test_tokens_without_a_price_are_counted_as_tokens(tmp_path: Path) -> None:
    run = AgentRun(tmp_path, prices=Prices(()))
    proposal = run.idea()
    run.measured(proposal, 1.5, 38.0)
    run.judged(proposal, 0, 0.25)
    report = reported(run.finished())
    assert "5 tokens for each accepted percent" in words.money(report)[-1]  # 30 tokens, 6 %
    assert "no price known" in words.money(report)[0]
    bill = to_json(report)["money"]
    assert bill["usd"] is None and bill["tokens_per_accepted_percent"] == pytest.approx(5)


def test_what_a_killed_process_may_have_spent_is_told_apart(story: Path, tmp_path: Path) -> None:
    path = shutil.copytree(story, tmp_path / "run")
    prices = Prices((Price("script", ("*",), 1000.0, 0.0, 0.0, 2000.0, "", ""),))
    with Ledger.open(path, Limits(usd=200.0), prices) as ledger:
        ledger.reserve(Payee(Role.ANALYST, "script", "model-1"), Usage(1000, 0, 0, 500), threading.Event())
    report = reported(path)
    assert report.money.spent.usd == pytest.approx(5 * A_CALL + 2.0)
    assert any(line.startswith("$2.00 of it is set down for calls whose process ended") for line in words.money(report))
    assert "at most $2.00 of it unknown" in words.paid(report.money.payments[0])


def test_predictions_are_scored_against_what_was_measured(story: Path) -> None:
    report = reported(story)
    assert report.calibration is not None and report.calibration.count == 2 and report.calibration.right_sign == 1
    page = told(story)
    assert page.count("<circle") == 2
    assert f"predicted +25.0 %, measured {100 * GAIN:+.1f} %" in page


def test_templates_and_kernels_are_shown_beside_those_that_they_were_made_from(story: Path) -> None:
    found = diffs(reported(story))
    template, kernel = found["idea-000"]
    assert "-choices = [1, 2, 4, 8]" in template.lines and "+choices = [4, 10]" in template.lines
    assert (template.added, template.removed) == (1, 1)
    assert kernel.title == "kernels of the best points (compiler=gcc tokens=4 -> compiler=gcc tokens=4)"
    assert any("more_000.cc.j2" in line for line in kernel.lines)
    mended = found["idea-002"]
    assert "+choices = [4," in "".join(mended[0].lines) and "more_001" in mended[0].title
    assert len(found["idea-001"]) == 1  # nothing of it ran, so there is no kernel


def test_a_template_that_is_gone_is_said_and_the_rest_is_shown(story: Path, tmp_path: Path) -> None:
    path = shutil.copytree(story, tmp_path / "run")
    for file in (path / "templates").rglob("more_000.cc.j2"):
        file.unlink()
    page = told(path)
    assert "is gone" in page and "choices = [4, 12]" in page


def test_long_and_endless_differences_are_cut_with_the_number_of_lines_that_are_left() -> None:
    long = unified("t", "", "\n".join(f"line {n}" for n in range(1000)))
    assert len(long.lines) == MOST_LINES and long.left == 1001 - MOST_LINES
    assert unified("t", "same", "same").note == "Nothing differs."
    endless = unified("t", "\n" * 50_000, "x\n" * 50_000)
    assert endless.note == "Only the first 2000 lines were compared."


def hostile(root: Path) -> Path:
    """A model that writes markup, commands to terminals, and far too much."""
    evil = "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202eevil"
    said = analysis(change=f"{evil} {{{{ 7 * 7 }}}}", evidence=evil, more="y" * 400_000)
    generator = {**edit("[4, 10]"), "name": evil[:60], "hypothesis": evil, "note": "\n".join(["<b>"] * 50_000)}
    refused = CallFailure(CallFailureKind.REFUSED, f"it refuses: {evil}", answer=evil * 10_000)
    run = AgentRun(root, analyst=[said, refused], generator=[generator])
    run.measured(run.idea(), 1.5, 38.0)
    run.proposer.ask(run.story.situation)
    while run.proposer.working:
        run.proposer.take()
    return run.finished()


def test_what_a_model_says_stays_text_however_much_it_is(tmp_path: Path) -> None:
    path = hostile(tmp_path)
    page = told(path)
    page.encode()
    assert "<script>alert" not in page and "<img" not in page and "\x1b" not in page and "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "{{ 7 * 7 }}" in page
    assert re.search(r"Cut here: [\d,]+ more characters; the whole is in <code>calls/0001-analyst.json</code>", page)
    assert len(page) < 1_500_000
    assert balanced(page)


def test_a_terminal_is_told_what_a_model_says_in_harmless_lines(tmp_path: Path) -> None:
    path = hostile(tmp_path)
    shown = CliRunner().invoke(app, ["show", str(path)], env={"COLUMNS": "80"}).stdout
    assert "\x1b" not in shown and "\u202e" not in shown
    assert "unanswered" in shown and "refused: it refuses" in shown


class _Tags(HTMLParser):
    VOID = frozenset({"meta", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def balanced(page: str) -> bool:
    tags = _Tags()
    tags.feed(page)
    return not tags.wrong and not tags.open


def test_a_run_without_models_has_no_such_section_and_one_without_ideas_says_so(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "m") as folder:
        folder.write(Event.STARTED, {"options": TuneOptions(model="m").to_json(), "target": "host"})
    assert report_of(view_of(folder.path)) is None
    with RunFolder.create(tmp_path, "n") as folder:
        options = TuneOptions(model="m", agent="openai:x", max_usd=1)
        folder.write(Event.STARTED, {"options": options.to_json(), "target": "host"})
    page = told(folder.path)
    assert "No idea has been asked for yet." in page
    assert "Nothing was spent: no call is on the bill of openai:x." in page
    assert balanced(page)
    assert "Nothing was spent" in CliRunner().invoke(app, ["show", str(folder.path)]).stdout


def test_an_idea_whose_process_was_killed_is_open(tmp_path: Path) -> None:
    run = AgentRun(tmp_path)
    run.proposer.ask(run.story.situation)
    run.proposer.close()
    lines = (run.path / "ideas.jsonl").read_text().splitlines()
    (run.path / "ideas.jsonl").write_text("\n".join(line for line in lines if '"offered"' not in line) + "\n{torn")
    (idea,) = reported(run.path).ideas
    assert (idea.state, idea.why) == (State.OPEN, "it is being worked out, or its process was ended")
    assert balanced(told(run.path))


def test_drafts_that_could_not_be_mended_and_duplicates_say_why(tmp_path: Path) -> None:
    run = AgentRun(tmp_path, generator=[breaking()], repairer=[breaking("tokens >> >")])
    run.proposer.ask(run.story.situation)
    while run.proposer.working:
        run.proposer.take()
    (idea,) = reported(run.finished()).ideas
    assert idea.state is State.UNUSABLE and idea.why
    assert [call.transcript.request.role.value for call in idea.calls][:3] == ["analyst", "generator", "repairer"]
    assert (idea.bottleneck, idea.predicted) == ("edges", 0.25)


def test_an_edited_record_of_a_call_is_named(story: Path, tmp_path: Path) -> None:
    path = shutil.copytree(story, tmp_path / "run")
    file = next((path / "calls").iterdir())
    file.write_text(file.read_text().replace('"max_tokens": ', '"max_tokens": 1'))
    with pytest.raises(KforgeError, match="was edited"):
        report_of(view_of(path))


def test_show_has_the_tree_and_the_money_in_eighty_columns(story: Path) -> None:
    shown = CliRunner().invoke(app, ["show", str(story)], env={"COLUMNS": "80"}).stdout
    tree = shown[shown.index("rms_norm H=576 residual=1\n"):]
    assert all(len(line) <= 80 for line in tree.splitlines())
    assert re.search(r"├── idea-000|└── idea-000", tree) and "repair of idea-001" in tree
    assert "for each accepted percent" in shown and "generator script:model-1: 2 calls" in shown


def test_the_json_of_show_carries_ideas_calls_and_money(story: Path) -> None:
    data = json.loads(CliRunner().invoke(app, ["show", str(story), "--json"]).stdout)["agent"]
    assert [idea["state"] for idea in data["ideas"]] == ["accepted", "failed", "not accepted"]
    assert data["ideas"][0]["calls"] == ["calls/0001-analyst.json", "calls/0002-generator.json"]
    assert data["money"]["usd_per_accepted_percent"] == pytest.approx(5 * A_CALL / 6)
    assert [call["idea"] for call in data["calls"]] == ["idea-000"] * 2 + ["idea-001"] * 2 + ["idea-002"]
    assert data["predictions"]["count"] == 2


def test_the_page_shows_the_conversation_beside_the_measurements_and_needs_no_network(story: Path) -> None:
    page = page_of(story)
    assert balanced(page)
    section_of = page[page.index("Ideas of models"):page.index("<h2>Roofline")]
    for text in ("What was said", "What was measured", "T=1 reaches 25.0 %", "more tokens in flight",
                 "calls/0005-repairer.json", "System text: <a href=\"#system1\">", "tokens=", "accepted"):
        assert text in section_of, text
    assert not re.search(r"(?:src|href)=\"(?!#)", section_of)
    assert section_of.count("<details class=\"idea\"") == 3
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.slow
def test_a_browser_opens_the_idea_that_a_link_names_and_has_nothing_to_complain_of(story: Path, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium here")
    (file := tmp_path / "report.html").write_text(page_of(story), encoding="utf-8")
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom", f"{file.as_uri()}#idea-002"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert re.search(r'<details class="idea" id="idea-002" open="">', done.stdout)
    assert not re.search(r'id="idea-000" open', done.stdout)
