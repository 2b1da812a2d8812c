"""The Triton templates render for every target that builds them, and mistakes planted in them are known."""

from __future__ import annotations

import ast
from collections import Counter
from functools import lru_cache

import pytest
from triton_faults import Base, bases, faults

from kforge.backends import templates
from kforge.backends.templates import Template
from kforge.core.paths import shipped
from kforge.core.target import Target
from kforge.core.trial import Candidate
from kforge.core.workload import Problem
from kforge.targets import list_targets, load_target

FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "mxfp4", "int8_channel")
ACTS = {"int8_channel": ("a8_token", "f32", "bf16"), "f32": ("f32", "bf16"), "f16": ("f32", "bf16"),
        "bf16": ("f32", "bf16")}


@lru_cache
def templates_of(operator: str) -> tuple[Template, ...]:
    return tuple(t for t in templates.load(operator) if t.backend == "triton")


def template_of(path: str) -> Template:
    found, = [t for t in templates_of(path.split("/")[1]) if t.path == path]
    return found


def candidate_of(base: Base, target: Target) -> Candidate:
    template, problem = template_of(base.template), base.workload.problem
    assert template.applies(problem, target) is None
    return template.render(problem, target, {**template.defaults(problem, target), **base.params})


def targets() -> list[Target]:
    return [target for target in map(load_target, list_targets()) if "triton" in target.backends]


def problems() -> list[Problem]:
    made = [base.workload.problem for base in bases.values()]
    for weight in FORMATS:
        k = 150 if weight in ("f32", "f16", "bf16") else 160
        for act in ACTS.get(weight, ("a8", "f32", "bf16")):
            common = {"K": k, "N": 72, "weight": weight, "act": act}
            for epilogue in ("residual", "silu_gate"):
                made.append(Problem.of("linear", epilogue=epilogue, bias=1, rows=32, **common))
            for source, epilogue in (("token", "silu_gate"), ("slot", "none")):
                made.append(Problem.of("moe_linear", E=5, k=2, input=source, epilogue=epilogue, bias=0, rows=64,
                                       **common))
        made.append(Problem.of("embedding", V=90, H=k, weight=weight, rows=16))
    for kv in ("f32", "bf16", "f16", "i8"):
        for style in ("norm", "neox"):
            made.append(Problem.of("rope_kv_write", Hq=4, Hkv=2, D=64, P=16, kv=kv, style=style))
            made.append(Problem.of("qk_norm_rope_kv_write", Hq=4, Hkv=2, D=64, P=16, kv=kv, style=style))
        for window, sinks in ((0, 0), (40, 1)):
            made.append(Problem.of("paged_attention", Hq=4, Hkv=2, D=64, P=16, kv=kv, window=window, sinks=sinks))
    return made


def test_every_problem_renders_with_its_defaults_and_has_a_template() -> None:
    target = load_target("nvidia-h200")
    for problem in problems():
        found = [t for t in templates_of(problem.operator) if t.applies(problem, target) is None]
        assert found, problem.key
        for template in found:
            source = template.render(problem, target, template.defaults(problem, target)).source
            ast.parse(source)
            assert source.count("import triton\n") == 1


def test_every_target_of_the_backend_has_legal_parameters() -> None:
    assert {"sm_90", "gfx942"} <= {target.arch for target in targets()}
    for target in targets():
        for base in bases.values():
            candidate_of(base, target)


def test_each_operator_has_five_faults_that_change_its_source() -> None:
    target = load_target("nvidia-h200")
    sources = {name: candidate_of(base, target).source for name, base in bases.items()}
    for fault in faults:
        ast.parse(fault.planted(sources[fault.base]))
    count = Counter(bases[fault.base].workload.problem.operator for fault in faults)
    assert set(count) == {path.parent.name for path in (shipped("templates") / "kernels" / "triton").glob("*/*.py.j2")}
    assert min(count.values()) >= 5


@pytest.mark.parametrize("act", ["f32", "bf16", "a8"])
def test_a_product_of_few_rows_needs_no_more_scratch_than_its_header_says(act: str) -> None:
    """Planes and partial sums fit what the header's expression, which knows no texts, allows for."""
    template, target = template_of("triton/linear/tile.py.j2"), load_target("nvidia-h200")
    problem = Problem.of("linear", K=96, N=70, weight="q4_1", act=act, epilogue="none", bias=0, rows=32)
    params = {**template.defaults(problem, target), "split_k": 4}
    launch = template.render(problem, target, params).launches[0]
    planes = {"f32": 3 * 2, "bf16": 2, "a8": 1}[act] * 96 + 2 * 4 * 3
    assert launch.scratch_bytes({"M": 5}) >= 5 * planes + 4 * 4 * 5 * 70
