"""Registry kernels as operators of torch: right to the bit, traceable, and refused what a kernel must not be given."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kforge.torch as kft
from kforge.backends import templates
from kforge.backends.cpp.build import build
from kforge.backends.defaults import default_kernel
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelState, Tier
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Decision, Verdict
from kforge.core.workload import Problem, Workload
from kforge.native import find_compilers
from kforge.operators import Distribution, get
from kforge.operators.base import Role
from kforge.registry.database import Registry
from kforge.registry.snapshot import EMPTY, Snapshot
from kforge.registry.store import Store
from kforge.targets.files import save_target
from kforge.torch import operator as operators
from kforge.torch.calling import Caller
from kforge.torch.serving import Chooser
from kforge.torch.signature import described
from kforge.torch.tensors import DTYPES
from kforge.tuner.winners import Seconds, record_of
from tests.cli.cli_host import host_target
from tests.operators import operator_problems as some

NORM = Workload.of(Problem.of("rms_norm", H=64, residual=1), T=3)
LINEAR = some.linear("q4_0", "a8", "none", 0, 32, k=64, n=48, m=3)
SEVERAL = [
    NORM, LINEAR, some.linear("bf16", "f32", "residual", 1, 16, k=67), some.linear("q8_0", "a8", "silu_gate", 1, 64),
    some.embedding(), some.attention("bf16", window=100, sinks=1), some.attention("i8"), some.rope("f32", "neox"),
    some.rope("i8", "norm", "qk_norm_rope_kv_write"), some.moe_route(), some.moe_linear(), some.moe_combine(),
    Workload.of(Problem.of("silu_mul", I=333), T=5), Workload.of(Problem.of("gather_rows", H=65), R=3, T=5),
    Workload.of(Problem.of("argmax", V=1001), R=4),
]
_counter = iter(range(1_000_000))


@pytest.fixture(scope="module")
def target() -> Target:
    return host_target()


@pytest.fixture
def make(target: Target, tmp_path: Path) -> Callable[..., kft.Op]:
    """Operators of their own names: torch takes a name once."""

    def made(problem: Problem, snapshot: Snapshot = EMPTY, store: Store | None = None) -> kft.Op:
        chooser = Chooser(target, snapshot, store or Store(tmp_path / "store"), tuned=True)
        return kft.Op(problem, chooser, 2, f"test {next(_counter)}")

    return made


def as_tensor(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    plain = torch.from_numpy(np.array(values))
    return plain.view(torch.bfloat16) if dtype is torch.bfloat16 else plain.to(dtype)


def arguments(workload: Workload, seed: int = 0) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A case's arguments by name, and as the operator has them."""
    operator = get(workload.problem.operator)
    inputs = operator.inputs(workload, seed, Distribution.NORMAL)
    given: dict[str, Any] = {}
    for spec in operator.tensors(workload):
        if spec.role is not Role.OUT:
            given[spec.name] = as_tensor(inputs[spec.name], DTYPES[spec.dtype])
    for axis in described(workload.problem, "x")["explicit"]:
        given[axis] = workload.axes[axis]
    return given, inputs


def outputs(workload: Workload, op: kft.Op, given: dict[str, Any]) -> dict[str, np.ndarray]:
    returned = op.overload(**given)
    results = () if returned is None else returned if isinstance(returned, tuple | list) else (returned,)
    made = iter(results)
    specs = get(workload.problem.operator).tensors(workload)
    found = {s.name: next(made) if s.role is Role.OUT else given[s.name] for s in specs if s.role is not Role.IN}
    return {name: (t.view(torch.int16) if t.dtype is torch.bfloat16 else t).numpy() for name, t in found.items()}


def assert_equal(workload: Workload, found: dict[str, np.ndarray], inputs: dict[str, np.ndarray]) -> None:
    wanted = get(workload.problem.operator).spec(workload, inputs)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].tobytes() == value.tobytes(), name


def test_a_call_gives_the_order_specification_and_changes_in_place_what_it_says(make: Callable[..., kft.Op]) -> None:
    op = make(NORM.problem)
    given, inputs = arguments(NORM)
    assert re.fullmatch(r"kforge::rms_norm_\w+\(Tensor x, Tensor weight, Tensor\(a!\) residual, float eps=1e-05\) -> "
                        "Tensor", op.schema)
    assert_equal(NORM, outputs(NORM, op, given), inputs)
    for eps in (1e-3, 1e-6):
        given, inputs = arguments(NORM)
        assert_equal(NORM, outputs(NORM, op, {**given, "eps": eps}), {**inputs, "eps": np.array(eps)})


@pytest.mark.parametrize("workload", [NORM, LINEAR], ids=lambda w: w.problem.operator)
def test_torch_own_checks_pass(workload: Workload, make: Callable[..., kft.Op]) -> None:
    """torch.library.opcheck: the schema, fake tensors, autograd's registration, and tracing with dynamic shapes."""
    given, _ = arguments(workload)
    assert set(torch.library.opcheck(make(workload.problem).overload, (), given).values()) == {"SUCCESS"}


@pytest.mark.slow
@pytest.mark.parametrize("workload", SEVERAL, ids=lambda w: w.problem.key)
def test_every_operator_is_right_and_passes_torch_own_checks(workload: Workload, make: Callable[..., kft.Op]) -> None:
    op = make(workload.problem)
    for seed in range(2):
        given, inputs = arguments(workload, seed)
        assert_equal(workload, outputs(workload, op, given), inputs)
    assert set(torch.library.opcheck(op.overload, (), arguments(workload)[0]).values()) == {"SUCCESS"}


def test_shapes_are_known_without_a_kernel_for_every_operator() -> None:
    """Fake tensors, whose kernels could not run: what comes out is what the operator says."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    for workload in SEVERAL:
        said = described(workload.problem, f"fake_{next(_counter)}")
        op = Caller("kforge", said, lambda _: pytest.fail("a kernel was called")).op
        given, _ = arguments(workload)
        with FakeTensorMode() as mode:
            fake = {n: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for n, v in given.items()}
            returned = op(**fake)
        results = () if returned is None else returned if isinstance(returned, tuple | list) else (returned,)
        wanted = [s for s in get(workload.problem.operator).tensors(workload) if s.role is Role.OUT]
        assert [(tuple(r.shape), r.dtype) for r in results] == [(s.shape, DTYPES[s.dtype]) for s in wanted]


def _layer(make: Callable[..., kft.Op]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    norm = make(Problem.of("rms_norm", H=64, residual=0))
    linear = make(LINEAR.problem)
    weight = linear.pack(torch.linspace(-1, 1, 48 * 64).reshape(48, 64))

    def layer(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.relu(linear(norm(2 * x, scale), weight)) + 1

    return layer


@pytest.mark.slow
def test_a_traced_graph_calls_the_operators_at_other_sizes_too(make: Callable[..., kft.Op]) -> None:
    layer = _layer(make)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (5, 3, 17):
        x, scale = torch.randn(tokens, 64), torch.rand(64)
        assert torch.equal(compiled(x, scale), layer(x, scale))


@pytest.mark.slow
@pytest.mark.skipif(not find_compilers(), reason="inductor needs a C++ compiler")
def test_inductor_compiles_around_the_operators(make: Callable[..., kft.Op]) -> None:
    layer = _layer(make)
    compiled = torch.compile(layer, backend="inductor", fullgraph=True, dynamic=True)
    for tokens in (5, 3):
        x, scale = torch.randn(tokens, 64), torch.rand(64)
        assert torch.equal(compiled(x, scale), layer(x, scale))


def test_tensors_that_the_abi_does_not_allow_are_copied_and_results_are_put_back(make: Callable[..., kft.Op]) -> None:
    """Strided inside, off by some bytes, and a residual that is a slice of something larger."""
    op = make(NORM.problem)
    given, inputs = arguments(NORM)
    wide = torch.zeros(3, 128)
    wide[:, ::2] = given["x"]
    odd = torch.zeros(3 * 64 + 1)[1:].reshape(3, 64)
    odd.copy_(given["residual"])
    beside = torch.full((3, 65), 7.0)
    beside[:, 1:] = given["residual"]
    for residual in (odd, beside[:, 1:]):
        out = op(wide[:, ::2], given["weight"], residual)
        found = {"out": out.numpy(), "residual": residual.contiguous().numpy()}
        assert_equal(NORM, found, inputs)
    assert (beside[:, 0] == 7).all()


def test_no_tokens_are_no_call(make: Callable[..., kft.Op]) -> None:
    op = make(Problem.of("silu_mul", I=8))
    assert op(torch.empty(0, 16)).shape == (0, 8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": torch.zeros(3, 63)}, "x has the shape [3, 63]; wanted is [3, 64]"),
        ({"residual": torch.zeros(2, 64)}, "residual has the shape [2, 64]; wanted is [3, 64]"),
        ({"weight": torch.zeros(64, dtype=torch.float64)}, "weight is torch.float64"),
        ({"x": torch.zeros(3 * 64)}, "x is torch.float32 of 1 axes; wanted is torch.float32 of 2"),
    ],
)
def test_other_tensors_are_refused_before_a_kernel_sees_them(
    changes: dict[str, Any], said: str, make: Callable[..., kft.Op]
) -> None:
    given, _ = arguments(NORM)
    with pytest.raises(ValueError, match=re.escape(said)):
        make(NORM.problem).overload(**{**given, **changes})


HEADS = some.attention("f32")
WRONG_INDICES: list[tuple[Workload, str, Callable[[np.ndarray], object], str]] = [
    (some.embedding(), "ids", lambda v: v.__setitem__(0, 101), "ids"),
    (some.embedding(), "ids", lambda v: v.__setitem__(-1, -1), "ids"),
    (Workload.of(Problem.of("gather_rows", H=65), R=3, T=5), "index", lambda v: v.__setitem__(0, 5), "index"),
    (some.rope(), "position", lambda v: v.__setitem__(0, 50), "position"),
    (some.rope(), "slot", lambda v: v.__setitem__(0, 48), "slot"),
    (HEADS, "block_table", lambda v: v.__setitem__((0, 0), 40), "block_table"),
    (HEADS, "query_start", lambda v: v.__setitem__(-1, 21), "query_start"),
    (HEADS, "context", lambda v: v.__setitem__(0, 10_000), "context"),
    (some.moe_linear(), "order", lambda v: v.__setitem__(0, v[1]), "order"),
    (some.moe_linear(), "expert_start", lambda v: v.__setitem__(1, 99), "expert_start"),
]


@pytest.mark.parametrize(("workload", "tensor", "spoil", "said"), WRONG_INDICES)
def test_an_index_out_of_range_is_refused_before_a_kernel_follows_it(
    workload: Workload, tensor: str, spoil: Callable[[np.ndarray], object], said: str
) -> None:
    described_call = described(workload.problem, f"index_{next(_counter)}")
    called: list[object] = []
    op = Caller("kforge", described_call, called.append).op
    given, _ = arguments(workload)
    op(**given)
    assert len(called) == 1  # as it stands it is let through
    spoil(given[tensor].numpy())
    with pytest.raises(ValueError, match=f"^{said}: "):
        op(**given)
    assert len(called) == 1


def test_weights_are_packed_for_one_layout_and_read_in_no_other(make: Callable[..., kft.Op]) -> None:
    narrow, wide = make(LINEAR.problem.with_rows(16)), make(LINEAR.problem.with_rows(32))
    weight = torch.randn(48, 64)
    packed = narrow.pack(weight)
    assert packed.data.numel() < wide.pack(weight).data.numel() or packed.weight != wide.pack(weight).weight
    x = torch.randn(3, 64)
    assert torch.equal(narrow(x, packed), wide(x, wide.pack(weight)))  # class exact: the layout changes no bit
    with pytest.raises(KforgeError, match="was packed as q4_0 1 x 48 x 64"):
        wide(x, packed)
    with pytest.raises(KforgeError, match="must be packed first"):
        wide(x, weight)
    with pytest.raises(KforgeError, match=r"wanted are floats \[48, 64\]"):
        wide.pack(torch.randn(48, 63))


def test_floats_are_kept_as_they_are_and_product_is_torchs(make: Callable[..., kft.Op]) -> None:
    """Within the operator's own bound of the float64 product."""
    workload = some.linear("f32", "f32", "none", 0, 16, k=67, n=33, m=4)
    op = make(workload.problem)
    x, w = torch.randn(4, 67), torch.randn(33, 67)
    packed = op.pack(w)
    bound = get("linear").reference(workload, {"x": x.numpy(), "w": packed.data.numpy()})["out"]
    assert np.allclose(bound.reference, x.double() @ w.double().T, rtol=1e-12)
    assert (np.abs(op(x, packed).numpy() - bound.reference) <= bound.bound).all()


def _accepted(registry: Registry, target: Target, workload: Workload, proposer: str) -> Candidate:
    """Another point than the default's, accepted and promoted."""
    default = default_kernel(workload.problem, target)
    template = next(t for t in templates.load(workload.problem.operator) if t.path == default.template)
    points = [p for p in template.space(workload.problem, target) if p != dict(default.params)]
    candidate = template.render(workload.problem, target, points[0], proposer=proposer)
    artifact = build(candidate, target)
    assert isinstance(artifact, Artifact)
    verdict = Verdict(Decision.ACCEPTED, candidate.hash, default.hash, 0.2, 0.1, 0.3, 40, 5, 0.01, text="it wins")
    record = record_of(candidate, artifact, verdict, None, workload, target, "r1", Seconds(1e-5, 1.2e-5))
    number = registry.accept(record, artifact.data, candidate.source, {"verdict": dataclasses.asdict(verdict)})
    registry.set_state(number, KernelState.PROMOTED, "for the test")
    return candidate


@pytest.mark.parametrize("proposer", ["builtin", "anthropic:some-model"])
def test_the_answer_says_which_kernel_serves_and_why(
    proposer: str, target: Target, make: Callable[..., kft.Op], tmp_path: Path
) -> None:
    at = Workload.of(LINEAR.problem, M=8)
    with Registry.open(tmp_path / "registry.db") as registry:
        registry.begin_run("r1", "toy", target.identity, tmp_path)
        tuned = _accepted(registry, target, at, proposer)
        op = make(LINEAR.problem, registry.snapshot(), registry.store)
        exact, far = op.serving(M=7), op.serving(M=512)
        assert far.tier is Tier.DEFAULT and not far.promised and far.kernel != tuned.hash
        assert "nothing measured is near enough" in far.text
        if proposer == "builtin":
            assert (exact.kernel, exact.tier, exact.promised) == (tuned.hash, Tier.EXACT, True)
            assert exact.numerics is tuned.numerics
        else:
            assert exact.kernel == far.kernel and "comes from elsewhere" in exact.text
        workload = Workload.of(LINEAR.problem, M=7)
        given, inputs = arguments(workload)
        assert_equal(workload, outputs(workload, op, given), inputs)
    with pytest.raises(KforgeError, match="lacks M="):
        op.serving()
    with pytest.raises(KforgeError, match="no dynamic axis N"):
        op.serving(M=1, N=2)


def test_an_operator_is_asked_for_by_its_name_and_attributes(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    save_target(target, tmp_path / "targets" / "host.toml")
    for cached in (operators._made, operators._registered, operators._chooser):
        cached.cache_clear()
    op = kft.op("linear", K=64, N=48, weight="q4_0")
    assert op is kft.op("linear", K=64, N=48, weight="q4_0", act="a8") and "rows=" in op.problem.key
    for words, said in (
        ({"operator": "lineer"}, "no operator 'lineer' for torch"),
        ({"operator": "linear", "K": 64}, "lacks N="),
        ({"operator": "linear", "K": 64, "N": 48, "weight": "q4_0", "M": 3}, "M is a dynamic axis"),
        ({"operator": "linear", "K": 64, "N": 48, "weight": "q9"}, "q9"),
        ({"operator": "argmax", "V": 9, "kernels": "best"}, "there are tuned and default"),
    ):
        name = words.pop("operator")
        with pytest.raises(KforgeError, match=said):
            kft.op(name, **words)  # type: ignore[arg-type]


def test_importing_kforge_does_not_import_torch() -> None:
    import subprocess

    code = "import sys, kforge; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
