"""The evidence sheet: the operator's contract, the measured figures, and nothing of what checks use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from situations import AXES, LINEAR, LOOP, NORM, REPORT, Story, linear_story, norm_story, task_of, tried, variation

from kforge.agent import ideas as tree
from kforge.agent.contracts import contract_of, signatures
from kforge.agent.evidence import sheet
from kforge.agent.failures import told
from kforge.agent.ideas import Branch, Idea
from kforge.agent.readings import best_readings
from kforge.agent.rolling import rolled
from kforge.core.trial import Decision, Failure, FailureClass, RejectReason, Timing, Verdict
from kforge.core.workload import Problem, Workload
from kforge.operators import get, names
from kforge.tuner.proposals import Importances, Outcome, Proposal, Tried

PROBLEMS = {
    "embedding": Workload.of(Problem.of("embedding", V=100, H=96, weight="q8_0", rows=32), T=3),
    "rms_norm": Workload.of(NORM, T=8),
    "linear": Workload.of(LINEAR.with_rows(32), M=8),
    "rope_kv_write": Workload.of(Problem.of("rope_kv_write", Hq=9, Hkv=3, D=64, P=64, kv="bf16", style="norm"), T=8,
                                 pages=3, positions=100),
    "qk_norm_rope_kv_write": Workload.of(Problem.of("qk_norm_rope_kv_write", Hq=16, Hkv=8, D=128, P=64, kv="f16",
                                                    style="neox"), T=8, pages=3, positions=100),
    "paged_attention": Workload.of(Problem.of("paged_attention", Hq=32, Hkv=8, D=64, P=64, kv="f16"), T=8, S=8, B=8,
                                   pages=64, max_context=512),
    "silu_mul": Workload.of(Problem.of("silu_mul", I=64), T=3),
    "gather_rows": Workload.of(Problem.of("gather_rows", H=64), R=3, T=5),
    "argmax": Workload.of(Problem.of("argmax", V=64), R=3),
    "moe_route": Workload.of(Problem.of("moe_route", E=8, k=2, style="all"), T=3),
    "moe_linear": Workload.of(Problem.of("moe_linear", E=4, k=2, input="token", K=64, N=32, weight="mxfp4", act="a8",
                                         epilogue="swiglu_oai", bias=1, rows=32), T=3),
    "moe_combine": Workload.of(Problem.of("moe_combine", H=64, k=2), T=3),
}
INEXACT = Failure(
    FailureClass.INEXACT, "the output differs from the order specification",
    "out[3, 17] is 1.5, expected 1.25 to the bit (7 of 4123 elements are wrong); case: T=29 nan strided seed 987654")


@pytest.mark.parametrize("name", names())
def test_every_operator_has_a_contract_with_its_tensors_in_launch_order_and_an_order_specification(name: str) -> None:
    workload = PROBLEMS[name]
    contract = contract_of(workload)
    assert [t.name for t in contract.tensors] == [t.name for t in get(name).tensors(workload)]
    assert contract.axes == get(name).dynamic_axes and contract.scalars == get(name).scalar_names
    assert "spec" in contract.order and len(contract.order) > 100
    assert contract.text and "Bound." not in contract.text  # error bounds are for relaxed kernels
    assert bool(contract.panel) == (name in ("linear", "embedding", "moe_linear"))


def test_shapes_name_their_dynamic_axes() -> None:
    shapes = {t.name: t.shape for t in contract_of(PROBLEMS["paged_attention"]).tensors}
    assert shapes["q"] == "[T, 2048]" and shapes["query_start"] == "[S+1]" and shapes["block_table"] == "[S, B]"
    assert shapes["k_cache"] == "[pages, 8, 64, 64]"
    shapes = {t.name: t.shape for t in contract_of(PROBLEMS["moe_linear"]).tensors}
    assert shapes["x"] == "[T, 64]" and shapes["order"] == "[2*T]" and shapes["out"] == "[2*T, 16]"


def test_a_specification_that_shares_its_file_comes_alone_with_the_helpers_that_it_uses() -> None:
    norm, rope = contract_of(PROBLEMS["rms_norm"]).order, contract_of(PROBLEMS["rope_kv_write"]).order
    assert "kf_spec_rms_norm" in norm and "kf_spec_silu_mul" not in norm and norm.rstrip().endswith("}")
    assert "inline void rotate(" in rope and "struct Written" in rope and "struct Tile" not in rope
    moe = contract_of(PROBLEMS["moe_linear"]).order
    places = [moe.index(text) for text in ("struct Tile", "struct Activations", "void kf_spec_moe_linear")]
    assert places == sorted(places), "a helper comes before the one that uses it"


def test_the_mathematics_that_kernels_may_use_is_listed_by_signature() -> None:
    found = signatures("math.h")
    assert "float exp(float x)" in found and "__m512 exp(__m512 x)" in found and "float tree_sum(__m512 x)" in found


def test_buckets_have_their_best_point_their_share_and_what_of_the_limit_is_reached() -> None:
    small, large = sheet(norm_story().situation, []).buckets
    assert small.best is not None and (small.name, small.limit) == ("T=1", pytest.approx(0.5e-6))
    assert small.best.seconds == pytest.approx(2e-6) and small.best.spread == 0.01
    assert small.reached == pytest.approx(0.25) and large.reached == pytest.approx(10 / 38)
    assert small.share == pytest.approx(2 / 40) and large.share == pytest.approx(38 / 40)
    assert "tokens=4" in small.by and "tokens=8" in large.by


def test_only_parameters_that_mattered_are_listed_the_most_important_first() -> None:
    assert sheet(linear_story().situation, []).importances == (("m_tile", 0.61), ("prefetch", 0.2))


def test_the_order_in_which_figures_come_changes_nothing() -> None:
    story = linear_story()
    first = sheet(story.situation, [])
    turned = replace(story.situation, importances=Importances(40, dict(reversed(story.importances.items()))),
                     weights=dict(reversed(story.situation.weights.items())),
                     limits=dict(reversed(story.situation.limits.items())),
                     tried=[replace(t, trials=dict(reversed(t.trials.items()))) for t in story.situation.tried])
    assert sheet(turned, []) == first


def test_each_buckets_best_point_is_shown_once_with_its_loops_and_their_instructions() -> None:
    small, large = sorted(sheet(norm_story().situation, []).reports, key=lambda report: report.buckets)
    assert (small.buckets, large.buckets) == (("T=1",), ("T=32",)) and "tokens=8" in large.point
    assert small.spills == REPORT.spills and small.loops[0].mix[0] == ("vector move", 1)
    assert small.loops[0].lines == LOOP and small.loops[0].instructions == 4
    story = norm_story()
    story.measured(story.templates[0], 1.0, 30.0, tokens=2, compiler="gcc")
    (both,) = sheet(story.situation, []).reports
    assert both.buckets == ("T=32", "T=1")  # what costs more first


def test_what_an_unroller_repeated_stands_once_with_its_count() -> None:
    pairs = [(f"vmovups zmm{n},[rsi+{n}0h]", f"vfmadd231ps zmm{n + 8},zmm{n},[rdx+{n}8h]") for n in range(6)]
    body = [line for pair in pairs for line in pair]
    lines = ["add rax,40h", *body, "vaddps zmm1,zmm2,zmm3", "vaddps zmm4,zmm5,zmm6", "jne short 0000000000001040h"]
    assert rolled(lines, 20) == (
        "add rax,40h", "6 x  2 instructions:", "    vmovups zmm0,[rsi+00h]", "    vfmadd231ps zmm8,zmm0,[rdx+08h]",
        "2 x  vaddps zmm1,zmm2,zmm3", "jne short 0000000000001040h")
    assert rolled(lines, 3) == (*rolled(lines, 20)[:3], "(3 more lines)")
    assert rolled(LOOP, 9) == LOOP and rolled([], 9) == ()


def test_times_that_cannot_be_told_from_the_best_are_marked_and_counted() -> None:
    story = norm_story()
    story.measured(story.templates[0], 2.02, 39.9, tokens=2, compiler="gcc")
    facts = sheet(story.situation, [])
    marks = {point.name.split()[2]: [time.alike for time in point.times if time] for point in facts.points}
    assert marks == {"tokens=4": [False, False], "tokens=8": [False, False], "tokens=2": [True, False]}
    assert [bucket.alike for bucket in facts.buckets] == [1, 0]


def test_where_batches_scatter_more_is_alike() -> None:
    story = Story(task_of(NORM), limits=(0.5, 10))
    template = norm_story().templates[0]
    story.templates.append(template)
    for params, us in (({"tokens": 1}, 2.0), ({"tokens": 2}, 2.2)):
        story.points.append(tried(template, story.seconds((us, 20 * us)), {**params, "compiler": "gcc"}, spread=0.2))
    assert [bucket.alike for bucket in sheet(story.situation, []).buckets] == [1, 1]


def test_no_bucket_is_held_against_less_than_an_empty_call() -> None:
    story = norm_story()
    story.empty_call = Timing(1.2e-6, 0.02, 5, 1000)
    facts = sheet(story.situation, [])
    small, large = facts.buckets
    assert facts.empty_call is not None and facts.empty_call.seconds == 1.2e-6
    assert (small.least, large.least) == (1.2e-6, pytest.approx(10e-6)) and small.reached == pytest.approx(0.6)
    assert facts.share == pytest.approx(1e3 * (0.8e-6 + 28e-6))


def test_an_empty_call_that_takes_longer_than_one_that_works_was_disturbed_and_is_not_believed() -> None:
    story = norm_story()
    story.empty_call = Timing(2.2e-6, 3.0, 5, 1000)
    facts = sheet(story.situation, [])
    assert facts.empty_call is None and facts.buckets[0].least == pytest.approx(0.5e-6)


def test_a_gain_that_times_cannot_tell_is_none(tmp_path: Path) -> None:
    story = norm_story()
    key = story.task.problem.key
    best = best_readings(story.situation.tried)
    before, margins = (tuple((b, getattr(r, name)) for b, r in best.items()) for name in ("seconds", "margin"))
    idea = Idea(0, key, Branch(story.templates[0].hash), 0, 0, before, 0, margins=margins)
    proposal = Proposal(idea.id, key, variation("try", 0, tmp_path), idea.branch.parent, "edges", "m", 0.5, "a/b")
    for us, gain in (((1.98, 37.5), 0.0), ((1.98, 30.0), 40 / 32 - 1)):
        told = story.outcome(proposal, *us)
        found = tree.result_of(idea, told, story.situation.weights)
        assert found.gain == pytest.approx(gain) and found.progress == (gain > 0)


def test_a_proposal_that_came_to_known_machine_code_is_told_so(tmp_path: Path) -> None:
    story = norm_story()
    story.points = [coded(point, f"code {n}") for n, point in enumerate(story.points)]
    key = story.task.problem.key
    idea = Idea(0, key, Branch(story.templates[0].hash), 0, 0, (), 0)
    proposal = Proposal(idea.id, key, variation("try", 0, tmp_path), idea.branch.parent, "edges", "m", 0.5, "a/b")
    told = story.outcome(proposal, 2.0, 40.0)
    story.points = story.points[:2]
    for code, says in (("code 0", "; all of them the machine code of `portable`"), ("another", "")):
        story.outcomes[0] = replace(told, tried=[coded(point, code) for point in told.tried])
        (facts,) = sheet(story.situation, [idea]).ideas
        assert facts.became == f"6 points tried{says}"


def coded(point: Tried, code: str) -> Tried:
    """A point whose machine code has this hash."""
    return replace(point, trials={key: replace(trial, artifact_hash=code) for key, trial in point.trials.items()})


def test_a_wrong_element_is_told_without_shape_distribution_or_seed() -> None:
    text = told(INEXACT)
    assert "out[a later row, 17] is 1.5, expected 1.25 to the bit" in text and "under 1 %" in text
    assert not any(word in text for word in ("4123", "29", "987654", "strided", "nan", "seed", "case"))


def test_the_first_row_is_told_apart_and_unwritten_elements_are_named() -> None:
    first = replace(INEXACT, detail=INEXACT.detail.replace("out[3, 17]", "out[0, 17]"))
    assert "out[0, 17]" in told(first)
    unwritten = Failure(FailureClass.INCORRECT, "the kernel left output elements unwritten",
                        "out[5, 560] was not written (80 of 2880 elements); case: T=5 normal seed 1")
    assert told(unwritten) == ("the kernel left output elements unwritten. The first of them: out[a later row, 560]; "
                               "under 10 % of the elements")


@pytest.mark.parametrize("detail", ["case: T=29 normal seed 5", "at 0x7f; case: T=29 nan seed 5", "T=29", "seed 5"])
def test_details_of_a_check_that_are_not_known_to_be_harmless_are_left_out(detail: str) -> None:
    assert told(Failure(FailureClass.CRASH, "the kernel crashed with SIGSEGV", detail)) == (
        "the kernel crashed with SIGSEGV")


def test_a_compilers_output_is_told_with_the_lines_around_the_error() -> None:
    text = told(Failure(FailureClass.COMPILE, "g++: kernel.cc:3: expected ';'", ">    3 int x\nkernel.cc:3:6: error"))
    assert ">    3 int x" in text


def test_failures_are_grouped_and_told_by_the_shortest() -> None:
    story = norm_story()
    template = story.templates[0]
    longer = replace(INEXACT, detail="")
    for params, failure in (({"tokens": 1}, INEXACT), ({"tokens": 2}, longer), ({"tokens": 8}, INEXACT)):
        story.failures.append(tried(template, story.seconds((1,)), params, failure=failure))
    (facts,) = sheet(story.situation, []).failures
    assert facts.count == 3 and facts.kind == "inexact" and "tokens=2" in facts.point


def test_what_the_harness_did_wrong_is_not_told_of_a_kernel() -> None:
    story = norm_story()
    broken = Failure(FailureClass.HARNESS, "a child did not start")
    story.failures.append(tried(story.templates[0], story.seconds((1,)), failure=broken))
    assert sheet(story.situation, []).failures == ()


def test_ideas_are_told_with_prediction_measurement_failure_and_verdict(tmp_path: Path) -> None:
    story = norm_story()
    key = story.task.problem.key
    before = tuple(tree.best_seconds(story.situation.tried).items())
    ideas = [Idea(n, key, Branch(story.templates[0].hash), n, 0, before, n) for n in range(2)]

    def proposal(n: int) -> Proposal:
        template = variation("try", n, tmp_path, (1, 2, 5 + n))
        return Proposal(ideas[n].id, key, template, ideas[n].branch.parent, "edges", "m", 0.5, "a/b")

    told = story.outcome(proposal(0), 2.0, 19.0)
    verdict = Verdict(Decision.REJECTED, "c", "i", 0.004, 0.0, 0.0, 5, 5, 0.01, RejectReason.NOT_SIGNIFICANT)
    story.outcomes[0] = Outcome(told.proposal, told.tried, None, [verdict, verdict])
    story.outcome(proposal(1), failure=INEXACT)
    good, bad = sheet(story.situation, ideas).ideas
    assert good.predicted == 0.5 and good.gain == pytest.approx(40 / 21 - 1) and good.made_from == "portable"
    assert good.became == "6 points tried; judged in pairs: rejected (not_significant) at +0.4 % over what serves"
    assert bad.gain is None and bad.became.startswith("failed (inexact): the output differs")
    assert "987654" not in repr(sheet(story.situation, ideas))
    story.outcomes[0] = Outcome(told.proposal, (), None, ())
    story.outcomes[1] = Outcome(story.outcomes[1].proposal, told.tried[:2], None, ())
    waiting, begun = sheet(story.situation, ideas).ideas
    assert waiting.became == "it waits for its trials" and begun.became == "2 points tried so far"


def test_every_task_of_these_tests_has_a_sheet_before_anything_was_measured() -> None:
    for operator in AXES:
        problem = PROBLEMS[operator].problem.without_layout
        story = norm_story()
        story.task, story.points, story.templates, story.limits = task_of(problem), [], [], ()
        empty = sheet(story.situation, [])
        assert all(b.best is None and b.share is None and b.reached is None for b in empty.buckets)
