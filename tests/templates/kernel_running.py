"""Builds a template of any operator, runs it on the native executor and compares with the order specification."""

from __future__ import annotations

import functools
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
from kforge.operators.base import Arrays, Distribution, Role
from kforge.targets.files import host

ISAS = ("host", "avx2", "plain")
_FEATURES = {"avx2": ("avx", "avx2", "f16c", "fma", "pni", "sse4_1", "sse4_2", "ssse3"), "plain": ()}
_OUTPUTS = {DType.F32: np.float32, DType.I32: np.int32}


def target_of(isa: str) -> Target:
    """This machine, all of it or cut down to AVX2 or to plain C++."""
    here = host(quick=True)
    return here if isa == "host" else replace(here, features=tuple(f for f in here.features if f in _FEATURES[isa]))


def template_of(operator: str, name: str) -> templates.Template:
    return next(t for t in templates.load(operator) if t.path == f"cpp/{operator}/{name}.cc.j2")


@functools.cache
def compiled(problem: Problem, name: str = "portable", isa: str = "host",
             params: tuple[tuple[str, Attr], ...] = ()) -> Kernel:
    """The kernel with the template's defaults but for ``params``."""
    template, target = template_of(problem.operator, name), target_of(isa)
    assert template.applies(problem, target) is None
    candidate = template.render(problem, target, {**template.defaults(problem, target), **dict(params)})
    built = build(candidate, target)
    assert isinstance(built, Artifact), built
    image = admit(built.data)
    assert isinstance(image, Image), image
    return Kernel(image)


@functools.cache
def team_of(threads: int) -> Team:
    return Team(threads)


def run(kernel: Kernel, workload: Workload, inputs: Arrays, threads: int) -> dict[str, np.ndarray]:
    """Outputs of one launch. Rows of float tensors are further apart than they are wide; scratch holds NaN."""
    operator = operators.get(workload.problem.operator)
    specs = operator.tensors(workload)
    arena = Arena(sum(2 * s.bytes + 65536 for s in specs))
    wholes, tensors = [], []
    for spec in specs:
        gap = 5 if len(spec.shape) == 2 and spec.dtype is DType.F32 else 0
        dtype = _OUTPUTS[spec.dtype] if spec.role is Role.OUT else inputs[spec.name].dtype
        whole = arena.take((*spec.shape[:-1], spec.shape[-1] + gap), dtype)
        whole[...] = np.nan if spec.dtype is DType.F32 else 1
        part = whole[..., : spec.shape[-1]]
        if spec.role is not Role.OUT:
            part[...] = inputs[spec.name]
        wholes.append(whole)
        tensors.append(part)
    team = team_of(threads)
    with Program(team) as program:
        axes = np.array([workload.axes[name] for name in operator.dynamic_axes], np.int64)
        program.add(kernel, tensors, axes, np.array(operator.given_scalars(workload, inputs), np.float64))
        if team.scratch is not None:
            team.scratch[...] = 0xFF
        program.run()
    for spec, whole in zip(specs, wholes, strict=True):
        assert np.isnan(whole[..., spec.shape[-1]:].astype(np.float32)).all(), f"wrote beside {spec.name}"
    return {spec.name: tensor for spec, tensor in zip(specs, tensors, strict=True) if spec.role is not Role.IN}


def assert_exact(kernel: Kernel, workload: Workload, threads: int, distribution: Distribution = Distribution.NORMAL,
                 inputs: Arrays | None = None) -> None:
    """Every bit of every output equals the order specification's; any NaN is as good as another."""
    operator = operators.get(workload.problem.operator)
    given = inputs or operator.inputs(workload, 3, distribution)
    wanted = operator.spec(workload, given)
    got = run(kernel, workload, given, threads)
    assert set(got) == set(wanted)
    for name, tensor in got.items():
        bits = np.dtype(f"u{tensor.itemsize}")
        same = np.ascontiguousarray(tensor).view(bits) == np.ascontiguousarray(wanted[name]).view(bits)
        if tensor.dtype == np.float32:
            same |= np.isnan(tensor) & np.isnan(wanted[name])
        assert same.all(), f"{name} differs, {threads} threads, {distribution}: {workload.key}"
