"""Scripted answers through everything that is ours: calls on record, drafts, compiler, checker, repair, replay."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from scripted import FAILED, Script, Scripted, analysis, edit, settle
from situations import NORM, norm_story, shipped_template

from kforge.agent.caller import Caller
from kforge.agent.calls import Request, Role
from kforge.agent.loop import ModelProposer
from kforge.agent.providers.replay import Replay
from kforge.agent.providers.router import Router
from kforge.agent.transcripts import Transcripts
from kforge.core.trial import Failure, FailureClass
from kforge.core.workload import Workload
from kforge.harness import Harness
from kforge.harness.check import CheckResult
from kforge.targets import host
from kforge.tuner.proposals import Proposal


def small_run(caller: Caller, run: Path) -> list[tuple[str, str, str]]:
    """Two ideas, one of which fails and is mended, then another on what they brought: what was proposed."""
    story, proposer = norm_story(), ModelProposer(caller, run)
    for _ in range(2):
        proposer.ask(story.situation)
    first, second = settle(proposer)
    proposer.tell(story.outcome(first, 1.5, 30.0))
    proposer.tell(story.outcome(second, failure=FAILED))
    (mended,) = settle(proposer)
    proposer.tell(story.outcome(mended, 1.4, 29.0))
    proposer.ask(story.situation)
    made = [first, second, mended, *settle(proposer)]
    proposer.close()
    assert proposer.stopped == ""
    return [(p.id, p.template.hash, p.author) for p in made]


def test_a_recorded_run_is_replayed_from_its_transcripts_to_the_same_templates(tmp_path: Path) -> None:
    def mend(request: Request) -> dict[str, object]:
        return {"name": "mended", "hypothesis": "h", "edits": [{"find": "    Call c;", "replace": "    Call c{};"}]}

    def write(request: Request) -> dict[str, object]:
        if "[1, 2, 4, 8]" in request.messages[0].text:
            return dict(edit())  # other choices at every call: only a record can bring them back
        more = {"find": "default = 4", "replace": "default = 4\n[params.more]\nchoices = [1, 2]"}
        return {"name": "later", "hypothesis": "h", "edits": [more]}

    script = Script(analyst=[lambda r: analysis(change=f"move {r.ordinal}")], generator=[write], repairer=[mend])
    recording = Caller(Router.of(Scripted(script)), transcripts=Transcripts(tmp_path / "lived"))
    lived = small_run(recording, tmp_path / "lived")
    assert len(lived) == 4 and len(script.requests) == 7
    replayed = small_run(Caller(Router.of(Replay(tmp_path / "lived"))), tmp_path / "replayed")
    assert replayed == lived


CLEAN = "sum{{ i }} = fma(y{{ i }}, y{{ i }}, sum{{ i }});"


@pytest.mark.slow
def test_a_scripted_kernel_is_built_and_checked_and_mended_by_what_compiler_and_checker_said(tmp_path: Path) -> None:
    """The first answer does not compile, its repair rounds a square twice, the next repair is right to the bit."""

    def change(find: str, to: str) -> dict[str, object]:
        return {"name": "variation", "hypothesis": "h", "edits": [{"find": find, "replace": to}]}

    broken, inexact = CLEAN.replace(";", ""), CLEAN.replace("fma(y{{ i }}, y{{ i }},", "add(mul(y{{ i }}, y{{ i }}),")
    variation = {"name": "variation", "hypothesis": "h", "edits": [
        {"find": "[1, 2, 4, 8]", "replace": "[2, 3, 5]"}, {"find": "default = 4", "replace": "default = 3"},
        {"find": CLEAN, "replace": broken}]}
    script = Script(analyst=[analysis()], generator=[variation],
                    repairer=[change(broken, inexact), change(inexact, CLEAN)])
    story, target = norm_story(), host()
    proposer = ModelProposer(script, tmp_path)
    proposer.ask(replace(story.situation, target=target))
    with Harness(target, min(2, len(os.sched_getaffinity(0)))) as harness:

        def checked(proposal: Proposal) -> CheckResult | Failure:
            template = proposal.template
            candidate = template.render(NORM, target, template.defaults(NORM, target), proposer=proposal.author)
            return harness.check(candidate, Workload.of(NORM, T=32))

        def tell(proposal: Proposal, failure: Failure) -> Proposal:
            proposer.tell(story.outcome(proposal, failure=failure))
            (mended,) = settle(proposer)
            return mended

        (first,) = settle(proposer)
        no_code = checked(first)
        assert isinstance(no_code, Failure) and no_code.kind is FailureClass.COMPILE
        second = tell(first, no_code)
        wrong = checked(second)
        assert isinstance(wrong, Failure) and wrong.kind is FailureClass.INEXACT
        third = tell(second, wrong)
        right = checked(third)
    assert isinstance(right, CheckResult) and right.cases > 5
    assert first.parent == shipped_template("rms_norm").hash and third.parent == second.template.hash
    compiler, checker = (r.messages[0].text for r in script.requests if r.role is Role.REPAIRER)
    assert "expected ';'" in compiler and "sum0 = fma(y0, y0, sum0)" in compiler
    assert "First wrong element: out[" in checker and " to the bit" in checker
    assert "seed" not in checker.split("# What failed")[1] and "case:" not in checker
    proposer.close()
