"""What of FlashInfer-Bench comes in: by signature and by what the reference computes, asked in the sandbox."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import fib_definitions as fib
import numpy as np
import pytest
from safetensors.numpy import save_file

from kforge.core.errors import KforgeError
from kforge.core.workload import Problem
from kforge.harness.sandbox import Outcome
from kforge.interchange import adopting, agreement
from kforge.interchange.dataset import Dataset, read
from kforge.interchange.definitions import RULES, Adopted, Imported, Kind, Placed, bring_in
from kforge.interchange.dense import ArgmaxTranslation
from kforge.interchange.schema import Definition
from kforge.operators import import_file

LINEAR = {"K": 512, "N": 640, "act": "f32", "epilogue": "none", "rows": 32}
HEADS = {"Hq": 4, "Hkv": 2, "D": 32, "kv": "bf16"}
MAPS = {
    "norm": Problem.of("rms_norm", H=2048, residual=0),
    "norm_eps": Problem.of("rms_norm", H=2048, residual=0),
    "add_norm": Problem.of("rms_norm", H=2048, residual=1),
    "add_norm_both": Problem.of("rms_norm", H=2048, residual=1),
    "gemm": Problem.of("linear", weight="f16", bias=0, **LINEAR),
    "gemm_bias": Problem.of("linear", weight="f32", bias=1, **LINEAR),
    "swiglu": Problem.of("silu_mul", I=96),
    "embed": Problem.of("embedding", V=500, H=128, weight="bf16", rows=32),
    "gather": Problem.of("gather_rows", H=128),
    "argmax": Problem.of("argmax", V=1000),
    "decode_ps1": Problem.of("paged_attention", P=16, **HEADS),
    "decode_ps64": Problem.of("paged_attention", P=64, **HEADS),
    "prefill_ps16": Problem.of("paged_attention", P=16, **HEADS),
    "ragged": Problem.of("paged_attention", P=16, **HEADS),
}
# Each one is a process that imports torch.
SLOW = {"norm_eps", "add_norm_both", "gemm_bias", "embed", "decode_ps64", "prefill_ps16", "swiglu_up_first"}
WORKLOADS = {
    "norm": [fib.workload("a", {"tokens": 1}), fib.workload("b", {"tokens": 7}), fib.workload("c", {})],
    "gather": [fib.workload("a", {"n": 3, "v": 20})],
    "decode_ps1": [
        fib.workload("even", {"total_q": 2, "len_indptr": 3, "pages": 90, "num_kv_indices": 80}),
        fib.workload(
            "stored",
            {"total_q": 2, "len_indptr": 3, "pages": 90, "num_kv_indices": 80},
            kv_indptr={"type": "safetensors", "path": "blob/t.safetensors", "tensor_key": "kv_indptr"},
        ),
        fib.workload(
            "outside",
            {"total_q": 2, "len_indptr": 3, "pages": 90, "num_kv_indices": 80},
            kv_indptr={"type": "safetensors", "path": "../t.safetensors", "tensor_key": "kv_indptr"},
        ),
    ],
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    documents = [
        fib.norm("norm"),
        fib.norm("norm_eps", dtype="float32", eps_input=True),
        fib.norm("add_norm", dtype="float16", residual=True, eps="3e-5"),
        fib.norm("add_norm_both", residual=True, both=True),
        fib.norm("norm_one_more", scale="1 + w"),
        fib.gemm("gemm"),
        fib.gemm("gemm_bias", dtype="float32", bias=True),
        fib.gemm("gemm_not_transposed", b="K N"),
        fib.gemm("gemm_fp8", dtype="float8_e4m3fn"),
        fib.swiglu("swiglu"),
        fib.swiglu("swiglu_up_first", gate_first=False),
        fib.rows("embed", 500),
        fib.rows("gather", None, "int32"),
        fib.argmax("argmax"),
        fib.attention("decode_ps1", 1),
        fib.attention("decode_ps64", 64, last=True, lse=False),
        fib.attention("prefill_ps16", 16, prefill=True),
        fib.attention("prefill_all", 16, prefill=True, causal=False),
        fib.attention("ragged", 0, prefill=True),
        fib.definition("moe", "moe", {"n": None}, {"x": ("n", "float32")}, {"y": ("n", "float32")}, "    return x"),
        fib.definition(
            "norm_fails",
            "rmsnorm",
            {"n": None, "h": 64},
            {"x": ("n h", "float32"), "w": ("h", "float32")},
            {"y": ("n h", "float32")},
            "    raise ValueError('no such thing')",
        ),
    ]
    folder = fib.write(tmp_path_factory.mktemp("dataset"), documents, WORKLOADS)
    (folder / "blob").mkdir()
    save_file({"kv_indptr": np.array([0, 50, 80], np.int32)}, folder / "blob" / "t.safetensors")
    (folder / "definitions" / "gemm" / "torn.json").write_text('{"name": "torn", ')
    return folder


@pytest.fixture(scope="module")
def found(dataset: Path) -> Imported:
    return bring_in(_only(read(dataset), slow=False))


def _only(whole: Dataset, slow: bool) -> Dataset:
    return dataclasses.replace(whole, definitions=tuple(d for d in whole.definitions if (d.name in SLOW) is slow))


def placed(found: Imported, name: str) -> Placed:
    return next(p for p in found.placed if p.definition.name == name)


@pytest.mark.parametrize("name", [name for name in MAPS if name not in SLOW])
def test_a_definition_whose_reference_agrees_maps_onto_an_operator(found: Imported, name: str) -> None:
    assert (placed(found, name).kind, placed(found, name).problem) == (Kind.MAPS, MAPS[name]), placed(found, name).notes


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("norm_one_more", "computes another normed than rms_norm"),
        ("prefill_all", "computes another output than paged_attention"),
        ("gemm_not_transposed", "transpose of B"),
        ("gemm_fp8", "floats of 16 or 32 bits"),
        ("moe", "no operator of the type moe"),
    ],
)
def test_what_does_not_agree_does_not_map_and_says_why(found: Imported, name: str, reason: str) -> None:
    here = placed(found, name)
    assert (here.kind, here.problem) == (Kind.NOT, None)
    assert reason in here.notes[0]


def test_a_reference_that_fails_leaves_the_signature_alone_and_says_so(found: Imported) -> None:
    here = placed(found, "norm_fails")
    assert here.kind is Kind.SIGNATURE
    assert "not compared: its reference fails: ValueError: no such thing" in here.notes


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("norm", "eps 1e-06 is given at each call"),
        ("add_norm", "eps 3e-05 is given at each call"),
        ("add_norm", "residual becomes hidden + residual, which the definition does not return"),
        ("norm", "hidden, w widened to float32, which is exact"),
        ("gemm", "B packed in panels by kforge"),
        ("decode_ps1", "pages of 1 regrouped into pages of 16 tokens"),
        ("decode_ps1", "lse is not computed"),
        ("ragged", "k and v moved into pages of 16 tokens"),
    ],
)
def test_conversions_and_omissions_are_told(found: Imported, name: str, note: str) -> None:
    assert note in placed(found, name).notes


@pytest.mark.slow
def test_more_of_what_maps_and_what_does_not(dataset: Path) -> None:
    found = bring_in(_only(read(dataset), slow=True))
    other = "its reference computes another y than silu_mul"
    assert {p.definition.name: p.problem for p in found.placed} == {name: MAPS.get(name) for name in SLOW}
    assert placed(found, "swiglu_up_first").notes[0].startswith(other)
    assert not any("eps" in note for note in placed(found, "norm_eps").notes)


def test_workloads_come_in_at_the_operators_axes(found: Imported) -> None:
    assert [w.axes for w in placed(found, "norm").workloads] == [{"T": 1}, {"T": 7}]
    assert placed(found, "norm").refused == ("workload c gives no tokens",)
    assert [w.axes for w in placed(found, "gather").workloads] == [{"R": 3, "T": 20}]


def test_contexts_are_the_stored_ones_or_even_and_never_from_outside_the_dataset(found: Imported) -> None:
    even = {"T": 2, "S": 2, "B": 3, "pages": 6, "max_context": 40}
    stored = {"T": 2, "S": 2, "B": 4, "pages": 6, "max_context": 50}
    assert [w.axes for w in placed(found, "decode_ps1").workloads] == [even, stored]


def test_a_broken_file_is_told_and_the_others_come_in(found: Imported) -> None:
    assert [Path(b.path).name for b in found.broken] == ["torn.json"]


def test_what_maps_onto_nothing_may_become_an_operator(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "check", agreement.Found)
    other = Problem.of("mine", X=1)
    took = bring_in(read(dataset / "definitions" / "moe"), lambda d, w: Adopted(other, "n"))
    assert (took.placed[0].kind, took.placed[0].problem) == (Kind.IMPORTED, other)
    refused = bring_in(read(dataset / "definitions" / "moe"), lambda d, w: "it loops")
    assert refused.placed[0].notes[1] == "its reference is no operator either: it loops"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Path, list[str]]]]:
    """Folders of sandboxed runs with what stood in them. Nothing runs; every reference fails with an odd error."""
    runs: list[tuple[Path, list[str]]] = []

    def run(command: list[str], work: Path, *_: object) -> Outcome:
        runs.append((work, sorted(p.name for p in work.iterdir())))
        (work / "answer.json").write_text(json.dumps({"error": "\x1b[31mno"}))
        return Outcome(0, "", False)

    monkeypatch.setattr(agreement, "run", run)
    yield runs


def test_each_reference_runs_in_a_folder_of_its_own(tmp_path: Path, asked: list[tuple[Path, list[str]]]) -> None:
    said: list[str] = []
    folder = fib.write(tmp_path, [fib.attention("a", 1), fib.attention("b", 1)])
    found = bring_in(read(folder), say=said.append)
    assert len({work for work, _ in asked}) == len(asked) == 2
    assert {tuple(files) for _, files in asked} == {(*(f"{i}.npy" for i in range(5)), "job.json", "reference_side.py")}
    assert said == ["definition 1 of 2: a", "definition 2 of 2: b"]
    assert {p.notes[-1] for p in found.placed} == {"not compared: its reference fails: [31mno"}


def _with(document: dict, part: str, **changed: dict) -> dict:
    return document | {part: document[part] | changed}


def test_a_definition_that_cannot_be_read_does_not_keep_the_others_out(
    tmp_path: Path, asked: list[tuple[Path, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(definition: Definition) -> str:
        raise MemoryError

    broken = type("Broken", (ArgmaxTranslation,), {"match": staticmethod(fails)})
    monkeypatch.setitem(RULES, "breaks", broken)
    decode = fib.attention("scalar", 1)
    axes = {"total_q": 2, "len_indptr": 1 << 40, "pages": 90, "num_kv_indices": 80}
    documents = [
        _with(fib.gemm("empty"), "axes", K={"type": "const", "value": 0}),
        _with(decode, "inputs", kv_indptr={"shape": None, "dtype": "int32"}),
        _with(decode | {"name": "floats"}, "inputs", kv_indices={"shape": ["pages"], "dtype": "float32"}),
        _with(decode | {"name": "wide"}, "axes", D={"type": "const", "value": 1 << 24}),
        fib.argmax("breaks") | {"op_type": "breaks"},
        fib.attention("long", 1),
        fib.swiglu("good"),
    ]
    found = bring_in(read(fib.write(tmp_path, documents, {"long": [fib.workload("w", axes)]})))
    assert [b.reason.partition(":")[0] for b in found.broken] == ["axes.K.value"]
    assert {p.definition.name: p.kind.value for p in found.placed} == {
        **dict.fromkeys(("scalar", "floats", "breaks"), "not"),
        **dict.fromkeys(("wide", "long", "good"), "signature"),
    }
    assert "kv_indptr is a vector" in placed(found, "scalar").notes[0]
    assert placed(found, "breaks").notes == ("it takes more memory than there is",)
    assert "too large to be checked" in placed(found, "wide").notes[-1]
    assert placed(found, "long").refused == ("workload w has more than 1048576 sequences",)


@pytest.mark.parametrize(("name", "made"), [("Softmax", "fib_softmax"), ("my.op", "fib_my_op"), ("9", "fib_9")])
def test_an_adopted_operator_has_a_name_of_this_benchmarks(name: str, made: str) -> None:
    assert adopting._name(Definition.model_validate(fib.gemm(name))) == made


@pytest.mark.parametrize("there", [True, False])
def test_an_operator_that_was_there_is_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    file = import_file("fib_gemm")
    file.parent.mkdir()
    if there:
        file.write_text("{}")
    graph = SimpleNamespace(dynamic=True, given=[SimpleNamespace(name="other", shape=("B", 4))])

    def made(request: object) -> SimpleNamespace:
        file.write_text("{}")
        return SimpleNamespace(graph=graph, problem=None)

    monkeypatch.setattr(adopting, "import_operator", made)
    assert "another extent open" in str(adopting.adopt(Definition.model_validate(fib.gemm("gemm")), ()))
    assert file.exists() is there


def test_a_hostile_reference_reaches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_SECONDS", 2)
    secret = tmp_path / "secret"
    secret.write_text("2" * 5 * 64 * 8)  # as long as the values of y
    mark = tmp_path / "mark"
    shapes = ({"n": None, "h": 64}, {"x": ("n h", "float32"), "w": ("h", "float32")}, {"y": ("n h", "float32")})
    bodies = {
        "reads": f"    return torch.tensor(float(open({str(secret)!r}).read())) * x",
        "writes": f"    open({str(mark)!r}, 'w').write('x')\n    return x",
        "loops": "    while True: pass",
        "links": "    import os\n"
        f"    os.symlink({str(secret)!r}, '0.out')\n    open('answer.json', 'w').write('{{}}')\n    os._exit(0)",
        "short": "    return x[:1]",
        "text": "    return 'no tensor'",
    }
    documents = [fib.definition(name, "rmsnorm", *shapes, body) for name, body in bodies.items()]
    found = bring_in(read(fib.write(tmp_path / "d", documents)))
    notes = {p.definition.name: p.notes[-1] for p in found.placed}
    assert all(p.kind is Kind.SIGNATURE for p in found.placed), notes
    assert "PermissionError" in notes["reads"] and "PermissionError" in notes["writes"] and not mark.exists()
    assert "did not come to an end" in notes["loops"]
    assert "another shape of y" in notes["short"] and "another shape of y" in notes["links"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"axes": {"M": {"type": "var"}}}, "axis K, which is not defined"),
        ({"reference": "def go(): pass"}, "defines no function run"),
        ({"reference": "def run(:"}, "no Python"),
        ({"reference": "x = " + "(" * 5000}, "reference"),
        ({"outputs": {"A": {"shape": ["M"], "dtype": "float32"}}}, "A is an input and an output"),
        ({"inputs": {"A": {"shape": ["M"], "dtype": "float31"}}}, "inputs.A.dtype"),
        ({"name": ""}, "name"),
    ],
)
def test_a_definition_that_breaks_the_schema_is_refused_in_a_sentence(
    tmp_path: Path, change: dict, reason: str
) -> None:
    file = tmp_path / "d.json"
    file.write_text(json.dumps({**fib.gemm("gemm"), **change}))
    with pytest.raises(KforgeError, match=reason):
        read(file)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[1, 2]", b"[" * 100_000, b"", b'"text"'])
def test_what_is_no_definition_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "d.json"
    file.write_bytes(content)
    with pytest.raises(KforgeError, match=r"d\.json"):
        read(file)


def test_a_folder_without_anything_and_no_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KforgeError, match="holds no FlashInfer-Bench"):
        read(tmp_path)
    with pytest.raises(KforgeError, match="there is no"):
        read(tmp_path / "nowhere")
