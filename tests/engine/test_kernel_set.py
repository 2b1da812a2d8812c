"""Which kernel serves: defaults by capability, the registry's where it has one, everything admitted before it runs."""

from dataclasses import replace

import numpy as np
import pytest
from toy_model import ToyModel

from kforge.backends import templates
from kforge.backends.cpp.build import build
from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord, KernelState, Tier
from kforge.core.workload import Problem
from kforge.engine.engine import Engine
from kforge.engine.kernel_set import Overlay, TunedKernels
from kforge.operators import get
from kforge.registry.database import Registry
from kforge.registry.snapshot import EMPTY, Snapshot, read

ARGMAX = Problem.of("argmax", V=320)
TOKENS = list(range(40))


@pytest.fixture(scope="module")
def toy() -> ToyModel:
    return ToyModel(rest=WeightFormat.Q8_0)


@pytest.fixture(scope="module")
def other(kernels):
    """An argmax that is not the default: another point of the template's space, built."""
    template = templates.load("argmax")[0]
    point = next(p for p in template.space(ARGMAX, kernels.target) if p != template.defaults(ARGMAX, kernels.target))
    candidate = template.render(ARGMAX, kernels.target, point)
    return candidate, build(candidate, kernels.target)


@pytest.fixture
def registry(tmp_path, kernels, other):
    """A registry that serves ``other`` at R = 1."""
    candidate, artifact = other
    with Registry.open(tmp_path / "registry.db") as opened:
        opened.begin_run("r1", "toy", kernels.target.identity, tmp_path)
        bucket = tuple(sorted(get("argmax").bucket(ARGMAX, {"R": 1}).items()))
        record = KernelRecord(
            candidate.hash, ARGMAX, bucket, kernels.target.identity, kernels.target.name, get("argmax").version, 1,
            candidate.numerics, candidate.layouts, "cpp", candidate.template, candidate.template_hash, candidate.params,
            opened.store.put(candidate.source.encode()), artifact.hash, artifact.report.compiler, 1e-6, 2e-6, 1.0, 0.9,
            "r1")
        kernel = opened.accept(record, artifact.data, candidate.source, {})
        opened.set_state(kernel, KernelState.PROMOTED, "test")
        yield opened


def argmax_uses(engine: Engine) -> set[tuple[str, str]]:
    return {(use.hash, use.tier) for use in engine.kernels_used() if use.label == "argmax"}


def test_the_default_is_the_most_demanding_template_that_fits(kernels):
    problem = Problem.of("linear", K=256, N=320, weight="q8_0", act="f32", epilogue="none", bias=0, rows=32)
    fitting = [t for t in templates.load("linear") if t.applies(problem, kernels.target) is None]
    chosen = kernels.choose(problem, {"M": 1})
    assert len(next(t for t in fitting if t.path == chosen.template).requires) == max(len(t.requires) for t in fitting)
    assert chosen.tier is Tier.DEFAULT and chosen is kernels.choose(problem, {"M": 64})


def test_a_problem_without_a_kernel_is_named(kernels):
    with pytest.raises(KforgeError, match=r"No kernel for convolution\(C=3\) on .*no template is shipped"):
        kernels.choose(Problem.of("convolution", C=3), {})


def test_an_empty_registry_gives_the_defaults(kernels, tmp_path):
    tuned = TunedKernels(EMPTY, None, kernels)
    assert tuned.choose(ARGMAX, {"R": 1}) is kernels.choose(ARGMAX, {"R": 1})


def test_the_engine_runs_what_the_registry_serves_and_says_so(toy, kernels, registry, other, tmp_path):
    tuned = TunedKernels(read(tmp_path / "registry.db"), registry.store, kernels)
    ours = Engine(toy, tuned, act="f32", kv_tokens=256, text=False)
    plain = Engine(toy, kernels, act="f32", kv_tokens=256, text=False)
    assert ours.generate([TOKENS])[0].tokens == plain.generate([TOKENS])[0].tokens
    assert argmax_uses(ours) == {(other[0].hash, "exact")}
    assert argmax_uses(plain) == {(kernels.choose(ARGMAX, {}).candidate_hash, "default")}


def test_leaving_a_kernel_out_uses_the_other_set_for_that_problem_only(toy, kernels, registry, other, tmp_path):
    tuned = TunedKernels(read(tmp_path / "registry.db"), registry.store, kernels)
    mixed = Overlay(kernels, {ARGMAX.key: tuned})
    engine = Engine(toy, mixed, act="f32", kv_tokens=256, text=False)
    engine.generate([TOKENS])
    assert argmax_uses(engine) == {(other[0].hash, "exact")}
    assert all(use.tier == "default" for use in engine.kernels_used() if use.label != "argmax")


def test_a_damaged_artifact_is_not_loaded(kernels, registry, other, tmp_path):
    path = registry.store.path(other[1].hash)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(KforgeError, match=r"does not have the hash"):
        TunedKernels(read(tmp_path / "registry.db"), registry.store, kernels).choose(ARGMAX, {"R": 1})


def test_an_artifact_that_is_no_pure_computation_is_refused(kernels, registry, tmp_path):
    served = read(tmp_path / "registry.db").kernels[0]
    impure = replace(served, artifact_hash=registry.store.put(b"\x7fELF" + bytes(100)))
    with pytest.raises(KforgeError, match=r"is refused"):
        TunedKernels(Snapshot.of([impure]), registry.store, kernels).choose(ARGMAX, {"R": 1})


def test_shared_scratch_serves_any_number_of_rows(toy, kernels):
    """argmax wants scratch for few rows and none for many: the program must have what each step needs."""
    engine = Engine(toy, kernels, act="f32", kv_tokens=1024, text=False)
    many = engine.logits(TOKENS, 40)
    for chunk in (1, 2, 3):
        np.testing.assert_array_equal(engine.logits(TOKENS, chunk).view(np.int32), many.view(np.int32))
