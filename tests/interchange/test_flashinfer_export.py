"""What goes out to FlashInfer-Bench: its own package loads it, and it comes back in as it was."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from kforge.backends import templates
from kforge.backends.cpp.build import build
from kforge.backends.defaults import default_kernel, exact_templates
from kforge.backends.handwritten import from_file, from_text
from kforge.cli.flashinfer_bench import write_kernels
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelState
from kforge.core.target import Target
from kforge.core.trial import (
    Artifact,
    Candidate,
    Decision,
    Failure,
    FailureClass,
    NumericsClass,
    Timing,
    Trial,
    Verdict,
)
from kforge.core.workload import Problem, Workload
from kforge.harness import Harness
from kforge.harness.sandbox import Limits, run
from kforge.interchange.contracts import definition_of, expressible, own, workload_of
from kforge.interchange.dataset import Dataset, read
from kforge.interchange.definitions import Kind, bring_in
from kforge.interchange.export import Exported, _Export, _Writer, export
from kforge.interchange.schema import Status, Trace
from kforge.operators import Distribution, get, import_file
from kforge.operators.base import Role
from kforge.operators.graph import Given, Graph, Op, Step
from kforge.operators.graph import Kind as GivenKind
from kforge.operators.import_record import GraphRecord, ImportRecord, write
from kforge.registry.database import Registry
from kforge.targets.files import save_target
from kforge.targets.noise import Noise, NoiseClass, save_noise
from kforge.tuner.attempt import submit
from kforge.tuner.contenders import Incumbent
from kforge.tuner.winners import Seconds, record_of
from tests.cli.cli_host import host_target

SILU = Problem.of("silu_mul", I=64)
LINEAR = Problem.of("linear", K=64, N=48, weight="q4_0", act="a8", epilogue="none", bias=0, rows=32)
HEADS = {"Hq": 4, "Hkv": 2, "D": 32, "P": 16}
PROBLEMS = {
    "silu_mul": Workload.of(SILU, T=3),
    "linear a8": Workload.of(LINEAR, M=3),
    "linear gated": Workload.of(
        Problem.of("linear", K=64, N=64, weight="q8_0", act="f32", epilogue="silu_gate", bias=1, rows=32), M=2
    ),
    "linear residual": Workload.of(
        Problem.of("linear", K=64, N=48, weight="bf16", act="f32", epilogue="residual", bias=0, rows=16), M=2
    ),
    "rms_norm": Workload.of(Problem.of("rms_norm", H=64, residual=0), T=3),
    "rms_norm residual": Workload.of(Problem.of("rms_norm", H=64, residual=1), T=3),
    "embedding": Workload.of(Problem.of("embedding", V=40, H=64, weight="q4_1", rows=32), T=3),
    "gather_rows": Workload.of(Problem.of("gather_rows", H=16), R=3, T=7),
    "argmax": Workload.of(Problem.of("argmax", V=100), R=4),
    "moe_linear": Workload.of(
        Problem.of("moe_linear", E=3, k=2, input="slot", K=64, N=64, weight="mxfp4", act="a8", epilogue="swiglu_oai",
                   bias=1, rows=32), T=3
    ),
    "moe_combine": Workload.of(Problem.of("moe_combine", H=64, k=2), T=3),
    "paged_attention": Workload.of(
        Problem.of("paged_attention", kv="f16", **HEADS), T=5, S=2, B=3, pages=6, max_context=40
    ),
    "paged_attention window sinks": Workload.of(
        Problem.of("paged_attention", kv="f16", window=17, sinks=1, **HEADS), T=5, S=2, B=3, pages=6, max_context=40
    ),
    "paged_attention i8": Workload.of(
        Problem.of("paged_attention", kv="i8", **HEADS), T=5, S=2, B=3, pages=6, max_context=40
    ),
    "rope i8": Workload.of(Problem.of("rope_kv_write", kv="i8", style="norm", **HEADS), T=5, pages=2, positions=50),
    "rope norm": Workload.of(Problem.of("rope_kv_write", kv="bf16", style="norm", **HEADS), T=5, pages=2, positions=50),
    "rope neox": Workload.of(Problem.of("rope_kv_write", kv="f32", style="neox", **HEADS), T=5, pages=2, positions=50),
    "qk norm": Workload.of(
        Problem.of("qk_norm_rope_kv_write", kv="f32", style="neox", **HEADS), T=5, pages=2, positions=50
    ),
}


@dataclasses.dataclass(frozen=True)
class Sent:
    """What was in the registry, and the folder that it was written to."""

    folder: Path
    done: Exported
    kernels: dict[str, Candidate]
    slower: Candidate
    target: Target

    @property
    def dataset(self) -> Dataset:
        return read(self.folder)

    def traces(self, problem: Problem, candidate: Candidate) -> list[Trace]:
        name = definition_of(problem).name
        return [t for t in self.dataset.traces_of(name) if (t.solution or "").endswith(candidate.hash)]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Sent:
    """Two kernels, one of them promoted, with trials of other points, failures, and what cannot go out."""
    target, place = host_target(), tmp_path_factory.mktemp("home")
    with Registry.open(place / "registry.db") as registry:
        registry.begin_run("r1", "toy", target.identity, place)
        silu = _kernel(registry, target, Workload.of(SILU, T=4), promoted=True)
        linear = _kernel(registry, target, Workload.of(LINEAR, M=1), promoted=False)
        retired = _kernel(registry, target, Workload.of(SILU, T=8), promoted=False)
        registry.set_state(3, KernelState.RETIRED, "for the test")
        assert retired == silu
        template = next(t for t in templates.load("linear") if t.path == linear.template)
        points = [p for p in template.space(LINEAR, target) if p != dict(linear.params)]
        slower, wrong = (template.render(LINEAR, target, p) for p in (points[0], points[-1]))
        assert len({linear.hash, slower.hash, wrong.hash}) == 3
        at = Workload.of(LINEAR, M=2)
        trials = [
            _trial(linear, at, Timing(2e-6, 0.01, 5, 10)),
            _trial(slower, at, Timing(4e-6, 0.02, 5, 10)),
            _trial(wrong, at, failure=Failure(FailureClass.INEXACT, "element 3 differs")),
            _trial(linear, Workload.of(LINEAR, M=64), failure=Failure(FailureClass.TIMEOUT, "it did not come back")),
            _trial(linear, Workload.of(LINEAR, M=32), failure=Failure(FailureClass.HARNESS, "out of memory")),
            dataclasses.replace(
                _trial(slower, Workload.of(LINEAR, M=8), Timing(1e-6, 0.1, 5, 10)),
                template="cpp/gone.j2",
                candidate_hash="0123456789abcdef",
            ),
        ]
        for trial in trials:
            registry.record_trial("r1", target.identity, LINEAR, trial)
        folder = place / "out" / "dataset"
        done = export(registry, folder, target)
    return Sent(folder, done, {"silu": silu, "linear": linear}, slower, target)


def _kernel(registry: Registry, target: Target, workload: Workload, promoted: bool) -> Candidate:
    template = next(
        t for t in exact_templates(workload.problem.operator) if t.applies(workload.problem, target) is None
    )
    candidate = template.render(workload.problem, target, template.defaults(workload.problem, target))
    artifact = build(candidate, target)
    assert isinstance(artifact, Artifact)
    verdict = Verdict(Decision.ACCEPTED, candidate.hash, "before", 0.25, 0.2, 0.3, 40, 5, 0.01, text="it wins")
    record = record_of(candidate, artifact, verdict, None, workload, target, "r1", Seconds(1e-5, 1.5e-5))
    number = registry.accept(record, artifact.data, candidate.source, {"verdict": dataclasses.asdict(verdict)})
    if promoted:
        registry.set_state(number, KernelState.PROMOTED, "decode at batch 1: +2 %")
    return candidate


def _trial(
    candidate: Candidate, workload: Workload, timing: Timing | None = None, failure: Failure | None = None
) -> Trial:
    return Trial(candidate.hash, workload.key, candidate.params, candidate.template, timing=timing, failure=failure)


def test_their_package_loads_the_whole_export(sent: Sent) -> None:
    data = pytest.importorskip("flashinfer_bench.data", reason="flashinfer-bench is not installed: make setup does it")
    loaded = data.TraceSet.from_path(str(sent.folder))
    assert sum(map(len, loaded.solutions.values())) == sent.done.solutions == 4
    assert sum(map(len, loaded.workloads.values())) == sent.done.workloads
    assert sum(map(len, loaded.traces.values())) == sent.done.traces
    assert set(loaded.definitions) == {definition_of(SILU).name, definition_of(LINEAR).name}
    best = loaded.get_best_trace(definition_of(SILU).name, axes={"T": 4})
    assert best.solution.endswith(sent.kernels["silu"].hash)
    assert best.evaluation.performance.speedup_factor == pytest.approx(1.25)
    for name, traces in loaded.traces.items():
        for trace in traces:
            assert loaded.get_solution(trace.solution).definition == name
            assert trace.workload.uuid in {t.workload.uuid for t in loaded.workloads[name]}


@pytest.mark.parametrize("name", PROBLEMS)
def test_their_package_accepts_every_definition_and_the_shapes_of_its_workloads(name: str, tmp_path: Path) -> None:
    data = pytest.importorskip("flashinfer_bench.data", reason="flashinfer-bench is not installed: make setup does it")
    workload = PROBLEMS[name]
    mine = definition_of(workload.problem)
    theirs = data.Definition.model_validate_json(mine.text())
    at = data.Workload.model_validate_json(workload_of(workload.problem, workload, "blob").text())
    assert set(theirs.var_axes) == set(at.axes) and list(at.inputs) == list(theirs.inputs)
    specs = {s.name: s.shape for s in get(workload.problem.operator).tensors(workload) if s.role is not Role.OUT}
    shapes = dict(zip(theirs.inputs, theirs.get_input_shapes(at.axes), strict=True))
    assert {n: tuple(s) for n, s in shapes.items() if s is not None} == specs
    assert theirs.get_axes_values(s if s is None else tuple(s) for s in shapes.values()) == at.axes


def test_routing_has_an_output_whose_extent_no_input_tells_and_does_not_go_out() -> None:
    """T * k slots; the products take that from their input ``order``."""
    assert not expressible(Problem.of("moe_route", E=8, k=2, style="chosen"))
    assert all(expressible(workload.problem) for workload in PROBLEMS.values())


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_reference_of_a_definition_computes_what_the_operator_does(name: str) -> None:
    import torch

    workload = PROBLEMS[name]
    operator = get(workload.problem.operator)
    inputs = operator.inputs(workload, 3, Distribution.POSITIVE)
    specs = {s.name: s for s in operator.tensors(workload)}
    definition = definition_of(workload.problem)
    given = [
        _torch(inputs[n], str(specs[n].dtype)) if n in specs else operator.given_scalars(workload, inputs)[0]
        for n in definition.inputs
    ]
    names: dict = {}
    exec(compile(definition.reference, "reference", "exec"), names)  # kforge's own text
    made = names["run"](*given)
    results = made if isinstance(made, tuple) else (made,)
    bounds = operator.reference(workload, inputs)
    for output, got in zip(definition.outputs, results, strict=True):
        bound = bounds[output.removesuffix("_out") if output not in bounds else output]
        exact = bound.reference
        values = got.to(torch.float64).numpy()
        slack = np.abs(exact) * 2.0**-7 if got.dtype in (torch.bfloat16, torch.float16) else np.abs(exact) * 2.0**-22
        same = np.isnan(exact) & np.isnan(values)
        assert values.shape == exact.shape
        assert (same | (np.abs(values - exact) <= bound.bound + slack)).all(), output


def _torch(array: np.ndarray, dtype: str):
    import torch

    if dtype == "bf16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array.view(np.int8) if dtype == "u8" else array)


def test_an_export_comes_back_in_as_the_same_problems_workloads_and_sources(sent: Sent) -> None:
    found = bring_in(sent.dataset)
    assert {p.problem for p in found.placed} == {SILU, LINEAR} and {p.kind for p in found.placed} == {Kind.OWN}
    placed = {p.problem: p for p in found.placed}
    assert [w.key for w in placed[SILU].workloads] == [Workload.of(SILU, T=4).key]
    assert {w.axes["M"] for w in placed[LINEAR].workloads} == {1, 2, 64}
    assert sent.kernels["linear"].source in {s.source for s in placed[LINEAR].solutions}
    assert not found.broken and not found.orphans


def test_a_kernel_that_came_back_in_is_the_same_candidate_to_try(sent: Sent, tmp_path: Path) -> None:
    files = write_kernels(bring_in(sent.dataset), tmp_path)
    linear = sent.kernels["linear"]
    (file,) = [Path(file) for name, file in files.items() if name.endswith(linear.hash)]
    assert from_file(file, LINEAR, sent.target, {}, NumericsClass.EXACT).hash == linear.hash


def test_an_export_that_was_changed_is_not_taken_for_kforges_own() -> None:
    mine = definition_of(SILU)
    assert own(mine) is not None
    for change in (
        {"reference": mine.reference.replace("* up", "+ up")},
        {"inputs": {}},
        {"tags": ("kforge:silu_mul(I=63)",)},
    ):
        assert own(mine.model_copy(update=change)) is None


def test_a_kernels_evaluation_says_what_was_judged_and_what_was_only_timed(sent: Sent) -> None:
    (trace,) = sent.traces(SILU, sent.kernels["silu"])
    assert trace.evaluation is not None and trace.evaluation.performance is not None
    said = trace.evaluation.log
    assert (
        "+25.00 % over the default kernel, at least +20.00 %" in said and "40 interleaved pairs of 5 processes" in said
    )
    assert "promoted: decode at batch 1: +2 %" in said and "speedup_factor: the judge's" in said
    performance = trace.evaluation.performance
    assert (performance.latency_ms, performance.reference_latency_ms) == (pytest.approx(0.01), pytest.approx(0.015))
    correctness = trace.evaluation.correctness
    assert correctness is not None and correctness.extra is not None
    assert 0 < correctness.max_relative_error < 1e-5 and 0 < correctness.extra["max_error_ratio"] <= 1
    assert trace.evaluation.environment.hardware == sent.target.model


def test_a_trial_goes_out_with_its_default_beside_it(sent: Sent) -> None:
    (trace,) = [t for t in sent.traces(LINEAR, sent.slower) if t.workload.axes["M"] == 2]
    assert trace.evaluation is not None and trace.evaluation.performance is not None
    assert trace.evaluation.performance.speedup_factor == pytest.approx(0.5)
    assert "a trial, not judged" in trace.evaluation.log


def test_failures_keep_their_class(sent: Sent) -> None:
    failed = [
        t.evaluation
        for t in sent.dataset.traces_of(definition_of(LINEAR).name)
        if t.evaluation is not None and t.evaluation.status is not Status.PASSED
    ]
    assert {e.status: e.log for e in failed} == {
        Status.INCORRECT_NUMERICAL: "inexact: element 3 differs",
        Status.TIMEOUT: "timeout: it did not come back",
    }
    wrong = next(e for e in failed if e.correctness is not None)
    assert wrong.correctness is not None and math.isnan(wrong.correctness.max_absolute_error)


def test_what_cannot_go_out_is_counted(sent: Sent) -> None:
    assert sorted(sent.done.left_out) == [
        "1 kernels that are retired",
        "1 trials in which the harness failed, not the candidate",
        "1 trials whose templates are no longer what they were: their sources are not kept",
    ]


def test_a_solution_is_whole(sent: Sent, tmp_path: Path) -> None:
    """Its files alone build: nothing that it includes is missing."""
    solution = next(s for s in sent.dataset.solutions if s.name.endswith(sent.kernels["linear"].hash))
    for source in solution.sources:
        file = tmp_path / source.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source.content)
    flags = next(line for line in (solution.description or "").splitlines() if line.startswith("flags: "))
    compiler = sent.target.compilers[0]
    command = [compiler.path, *flags.removeprefix("flags: ").split(), "kernel.cc", "-o", "kernel.so"]
    outcome = run(command, tmp_path, Limits(60, 4 << 30, 64 << 20))
    assert outcome.code == 0, outcome.text


def test_index_tensors_and_packed_weights_lie_beside_the_workloads(sent: Sent) -> None:
    at = next(t.workload for t in sent.dataset.workloads_of(definition_of(LINEAR).name))
    source = at.inputs["w"]
    assert source.path is not None
    packed = load_file(sent.folder / source.path)["w"].view(np.uint8)
    inputs = {**get("linear").inputs(Workload.of(LINEAR, M=1), 0, Distribution.NORMAL), "w": packed}
    assert np.isfinite(get("linear").reference(Workload.of(LINEAR, M=1), inputs)["out"].reference).all()


def test_an_export_goes_only_into_a_folder_of_its_own(sent: Sent, tmp_path: Path) -> None:
    with Registry.open(tmp_path / "registry.db") as registry:
        with pytest.raises(KforgeError, match="nothing to export"):
            export(registry, tmp_path / "new", sent.target)
        with pytest.raises(KforgeError, match="not an empty folder"):
            export(registry, sent.folder, sent.target)
    assert not (tmp_path / "new").exists()


def test_an_imported_operator_goes_out_with_kforges_own_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    x = Given("x", ("B", 8), GivenKind.ARGUMENT)
    steps = (Step("s", Op.SIGMOID, ("x",), ("B", 8)), Step("y", Op.MUL, ("x", "s"), ("B", 8)))
    graph = GraphRecord.of(Graph((x,), steps, ("y",)))
    record = ImportRecord(name="swish", source="swish.py", source_hash="0" * 16, graph=graph, batch=16)
    write(record, import_file("swish"))
    problem = get("swish").workload.problem  # type: ignore[attr-defined]
    definition = definition_of(problem)
    assert own(definition) is not None
    assert (definition.var, definition.inputs["x"].shape, definition.outputs["out"].shape) == (
        ("B",),
        ("B", "x_1"),
        ("B", "out_1"),
    )
    names: dict = {}
    exec(compile(definition.reference, "reference", "exec"), names)  # kforge's own text
    given = torch.linspace(-3, 3, 24).reshape(3, 8)
    torch.testing.assert_close(names["run"](given), given * torch.sigmoid(given))


def test_what_an_earlier_import_of_a_name_made_is_left_out_and_not_taken_for_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))

    def imported(op: Op) -> Workload:
        x = Given("x", ("B", 8), GivenKind.ARGUMENT)
        graph = GraphRecord.of(Graph((x,), (Step("y", op, ("x",), ("B", 8)),), ("y",)))
        write(
            ImportRecord(name="mine", source="m.py", source_hash="0" * 16, graph=graph, batch=16), import_file("mine")
        )
        return get("mine").workload  # type: ignore[attr-defined]

    before = imported(Op.SIGMOID)
    exported = definition_of(before.problem)
    assert own(exported) is not None
    after = imported(Op.TANH)
    assert after.problem != before.problem and own(exported) is None
    definition_of.cache_clear()  # as in another process
    assert own(exported) is None
    job = _Export(None, _Writer(tmp_path), host_target())  # type: ignore[arg-type]
    kernel = SimpleNamespace(
        state=KernelState.ACCEPTED, problem=before.problem, operator_version=get("mine").version, run="r"
    )
    trial = SimpleNamespace(
        run="r", workload=before, problem=before.problem, candidate_hash="c", seconds=1.0, failure=None
    )
    job.kernels([kernel])  # type: ignore[list-item]
    job.trials([trial])  # type: ignore[list-item]
    assert job.finish().left_out == (
        "1 kernels of an operator, or of a version of one, that this kforge does not have",
        "1 trials of an operator that this kforge does not have",
    )


# silu_mul, all of it forty times over; the barrier keeps the compiler from noticing.
SLOW = """#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *launch) {
    const kf_tensor &in = launch->tensors[0], &out = launch->tensors[1];
    for (int n = 0; n < 40; ++n) {
        for (int64_t t = launch->thread; t < launch->axes[0]; t += launch->threads) {
            const float *gate = static_cast<const float *>(in.data) + t * in.strides[0];
            float *to = static_cast<float *>(out.data) + t * out.strides[0];
            for (int64_t i = 0; i < 64; ++i) to[i] = kf::silu(gate[i]) * gate[64 + i];
        }
        asm volatile("" ::: "memory");
    }
}
"""


@pytest.mark.slow
def test_a_kernel_that_the_judge_accepted_goes_out_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pytest.importorskip("flashinfer_bench.data", reason="flashinfer-bench is not installed: make setup does it")
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    target, at = host_target(), Workload.of(SILU, T=4)
    save_target(target, tmp_path / "targets" / "host.toml")
    save_noise(Noise(1, (NoiseClass(math.inf, 0.1, 1.5, 2.0),), 60, "2026-01-01"), target)
    slow = Incumbent(from_text("slow.cc", SLOW, SILU, target, {}, NumericsClass.EXACT), None, "a slow one")
    with Registry.open() as registry:
        with Harness(target, 1) as harness:
            handed = submit(default_kernel(SILU, target), at, slow, harness, registry)
        assert handed.kernel is not None, handed.verdict
        export(registry, tmp_path / "out", target)
    loaded = data.TraceSet.from_path(str(tmp_path / "out"))
    best = loaded.get_best_trace(definition_of(SILU).name, axes={"T": 4})
    assert (
        best.evaluation.performance.speedup_factor == pytest.approx(1 + handed.verdict.gain) and handed.verdict.gain > 1
    )
