"""Builds a linear template for a problem, runs it on the native executor and compares with the order specification."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kforge import operators
from kforge.backends import templates
from kforge.backends.cpp.admission import admit
from kforge.backends.cpp.build import build
from kforge.core.dtypes import DType
from kforge.core.image import Image
from kforge.core.target import Target
from kforge.core.trial import Artifact
from kforge.core.workload import Attr, Problem, Workload
from kforge.native import Arena, Kernel, Program, Team
from kforge.operators.base import Distribution
from kforge.targets.files import host

FEATURES: dict[str, tuple[str, ...] | None] = {
    "a8_vnni": None,
    "f32_avx512": None,
    "a8_avx2": ("avx", "avx2", "f16c", "fma", "pni", "sse4_1", "sse4_2", "ssse3"),
    "f32_avx2": ("avx", "avx2", "f16c", "fma", "pni", "sse4_1", "sse4_2", "ssse3"),
    "bf16_dot_avx512": None,
    "a8_token_vnni": None,
    "a8_token_avx2": ("avx", "avx2", "f16c", "fma", "pni", "sse4_1", "sse4_2", "ssse3"),
    "portable": (),
}


def target_of(name: str) -> Target:
    """This machine, cut down to the features that the template is meant for."""
    here, wanted = host(quick=True), FEATURES[name]
    return here if wanted is None else replace(here, features=tuple(f for f in here.features if f in wanted))


def template_of(name: str) -> templates.Template:
    return next(t for t in templates.load("linear") if t.path == f"cpp/linear/{name}.cc.j2")


def problem_of(weight: str, K: int, N: int, rows: int, epilogue: str, bias: int, act: str) -> Problem:
    return Problem.of("linear", K=K, N=N, weight=weight, act=act, epilogue=epilogue, bias=bias, rows=rows)


def compiled(name: str, problem: Problem, **params: Attr) -> Kernel:
    """The kernel with the template's defaults but for ``params``."""
    template, target = template_of(name), target_of(name)
    candidate = template.render(problem, target, {**template.defaults(problem, target), **params})
    built = build(candidate, target)
    assert isinstance(built, Artifact), built
    image = admit(built.data)
    assert isinstance(image, Image), image
    return Kernel(image)


def assert_exact(kernel: Kernel, problem: Problem, tokens: int, threads: int, distribution: Distribution) -> None:
    """Runs the kernel once, with rows of x and out further apart than they are wide, and compares every bit."""
    operator = operators.get("linear")
    workload = Workload.of(problem, M=tokens)
    inputs = operator.inputs(workload, seed=tokens, distribution=distribution)
    wanted = operator.spec(workload, inputs)["out"]
    specs = operator.tensors(workload)
    arena = Arena(sum(2 * s.bytes + 65536 for s in specs))
    wholes, tensors = [], []
    for spec in specs:
        shape = (*spec.shape[:-1], spec.shape[-1] + (0 if spec.name in ("w", "bias") else 5))
        whole = arena.take(shape, np.float32 if spec.dtype is DType.F32 else np.uint8)
        part = whole[..., : spec.shape[-1]]
        if spec.name in inputs:
            part[...] = inputs[spec.name]
        else:
            whole[...] = np.nan
        wholes.append(whole)
        tensors.append(part)
    team = Team(threads)
    with Program(team) as program:
        program.add(kernel, tensors, np.array([tokens], np.int64), np.array([], np.float64))
        program.run()
    out = tensors[-1]
    assert np.array_equal(out.view(np.uint32), wanted.view(np.uint32)), f"M={tokens}, {threads} threads: {problem.key}"
    assert np.isnan(wholes[-1][:, out.shape[1]:]).all(), "wrote beside its output"
