"""Tuned fused-MoE parameters of vLLM and SGLang: names, files, seeds, and kforge's kernels as such tables.

File names are those of their repositories: vLLM 0.32, ``vllm/model_executor/layers/fused_moe/configs``; SGLang,
``python/sglang/srt/layers/moe/moe_runner/triton_utils/configs``.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from kforge.cli import bring_in, export
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord, KernelState
from kforge.core.layout import Layout
from kforge.core.trial import NumericsClass
from kforge.core.workload import Problem, attrs
from kforge.interchange import moe_names, moe_seeds, moe_tables
from kforge.interchange.moe_names import MoeName, Style
from kforge.registry.database import Registry
from kforge.registry.snapshot import Snapshot
from kforge.targets.files import load_target

VLLM = {
    "E=8,N=14336,device_name=NVIDIA_H200.json": MoeName(8, 14336, "NVIDIA_H200"),
    "E=1,N=14336,device_name=NVIDIA_A100-SXM4-80GB,dtype=int8_w8a16.json":
        MoeName(1, 14336, "NVIDIA_A100-SXM4-80GB", "int8_w8a16"),
    "E=128,N=1024,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8.json":
        MoeName(128, 1024, "AMD_Instinct_MI300X", "fp8_w8a8"),
    "E=256,N=256,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128,128].json":
        MoeName(256, 256, "NVIDIA_H20", "fp8_w8a8", (128, 128)),
    "E=128,N=1024,device_name=Intel(R)_Arc(TM)_Pro_B70_Graphics.json":
        MoeName(128, 1024, "Intel(R)_Arc(TM)_Pro_B70_Graphics"),
}
SGLANG = {
    "E=64,N=640,device_name=NVIDIA_H100_80GB_HBM3.json": MoeName(64, 640, "NVIDIA_H100_80GB_HBM3"),
    "E=257,N=256,device_name=NVIDIA_B200,dtype=fp8_w8a8,block_shape=[128, 128].json":
        MoeName(257, 256, "NVIDIA_B200", "fp8_w8a8", (128, 128)),
    "E=161,N=192,device_name=NVIDIA_H200,dtype=fp8_w8a8,per_channel_quant=True.json":
        MoeName(161, 192, "NVIDIA_H200", "fp8_w8a8", None, True),
    "E=128,N=1024,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8_down.json":
        MoeName(128, 1024, "NVIDIA_H100_80GB_HBM3", "fp8_w8a8", None, False, True),
}
LINE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 256, "GROUP_SIZE_M": 16, "num_warps": 4,
        "num_stages": 3}
OURS = {"block_m": 16, "block_n": 32, "block_k": 256, "group_m": 16, "num_warps": 4, "num_stages": 3}
H200 = "E=8,N=14336,device_name=NVIDIA_H200.json"


def written(folder: Path, name: str, document: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize("style", Style)
def test_names_are_read_and_written_as_they_write_them(style: Style) -> None:
    for text, name in (VLLM if style is Style.VLLM else SGLANG).items():
        assert moe_names.parse(text) == name and name.file_name(style) == text


@pytest.mark.parametrize(
    "name",
    [
        "E=384,N=256,device_name=AMD_Instinct_MI350X,dtype=int4_w4a16,backend=flydsl.json",  # vLLM's, another kernel's
        "E=384,N=128,device_name=,dtype=int4_w4a16.json",  # SGLang's, without a device
        "E=0,N=128,device_name=NVIDIA_H200.json",
        "N=128,E=8,device_name=NVIDIA_H200.json",
        "E=8,N=128,device_name=NVIDIA_H200,block_shape=[128].json",
        "E=8,N=128,device_name=NVIDIA_H200.json.bak",
        "causal_conv1d_fwd_sm_100.json",
    ],
)
def test_other_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(KforgeError, match=re.escape(str(tmp_path / name))):
        moe_tables.read(written(tmp_path, name, {"1": LINE}))


def test_what_vllm_has_no_word_for_is_no_file_of_its() -> None:
    with pytest.raises(ValueError, match="one table for both"):
        MoeName(8, 64, "NVIDIA_H200", down=True).file_name(Style.VLLM)


def test_devices_are_named_as_each_tool_names_them() -> None:
    """vLLM: get_device_name_as_file_name and its rule for H200; SGLang: blanks become underscores."""
    assert moe_names.device_word("NVIDIA H100 80GB HBM3", Style.VLLM) == "NVIDIA_H100_80GB_HBM3"
    assert moe_names.device_word("NVIDIA H200 NVL", Style.VLLM) == "NVIDIA_H200"
    assert moe_names.device_word("NVIDIA H200 NVL", Style.SGLANG) == "NVIDIA_H200_NVL"


def test_a_file_comes_back_as_it_was_whatever_else_its_lines_say(tmp_path: Path) -> None:
    document = {"triton_version": "3.5.1", "1": LINE, "4096": {**LINE, "waves_per_eu": 0, "kpack": 2, "SPLIT_K": 1}}
    table = moe_tables.read(written(tmp_path, H200, document))
    assert table.triton == "3.5.1" and json.loads(table.text(Style.VLLM)) == document
    assert table.lines[1].params == OURS and table.lines[4096].further == ("SPLIT_K", "kpack", "waves_per_eu")


def test_sglang_has_the_version_in_the_folder_and_no_key_that_is_no_number(tmp_path: Path) -> None:
    """Its reader takes every key for a number of tokens."""
    path = written(tmp_path / "triton_3_4_0", "E=8,N=14336,device_name=NVIDIA_H200_down.json", {"8": LINE})
    table = moe_tables.read(path)
    assert table.triton == "3.4.0" and {int(k) for k in json.loads(table.text(Style.SGLANG))} == {8}
    assert moe_tables.place(table, Style.SGLANG) == Path("triton_3_4_0") / path.name
    with pytest.raises(ValueError, match="version of Triton"):
        moe_tables.place(dataclasses.replace(table, triton=""), Style.SGLANG)


def test_a_line_is_for_its_own_number_of_tokens_and_no_other(tmp_path: Path) -> None:
    table = moe_tables.read(written(tmp_path, H200, {"1": LINE, "64": LINE}))
    assert table.at(64) is not None and table.at(63) is None and table.at(65) is None
    at = {dict(s.bucket)["T"] for s in moe_seeds.seeds_of(table, load_target("nvidia-h200"), Style.VLLM, "f").seeds}
    assert at == {1, 64}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"1": {**LINE, "BLOCK_SIZE_M": 48}}, "1: BLOCK_SIZE_M is 48; Triton takes powers of two"),
        ({"1": {**LINE, "BLOCK_SIZE_K": "64"}}, "1.BLOCK_SIZE_K: "),
        ({"16": {k: v for k, v in LINE.items() if k != "num_stages"}}, "16.num_stages: "),
        ({"1": {**LINE, "BLOCK_M": 16}}, "1.BLOCK_M: "),
        ({"1": {**LINE, "num_warps": -4}}, "1.num_warps: "),
        ({"1": 5}, "1: 5 is no JSON object"),
        ({"one": LINE}, "'one' is no number of tokens"),
        ({"0": LINE}, "'0' is no number of tokens"),
        ({"triton_version": "3.5.1"}, "no line"),
        ({"triton_version": 3, "1": LINE}, "triton_version: 3"),
        ([LINE], "no JSON object"),
        ("{", "no JSON"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_field(document: object, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, H200, document)
    with pytest.raises(KforgeError) as refused:
        moe_tables.read(path)
    assert str(refused.value).startswith(str(path)) and said in str(refused.value), refused.value


def test_a_table_seeds_both_projections_on_the_device_of_its_name_and_is_served_nowhere(tmp_path: Path) -> None:
    target = load_target("nvidia-h200")
    assert moe_seeds.target_of("NVIDIA_H200") == target
    drawn = moe_seeds.seeds_of(moe_tables.read(written(tmp_path, H200, {"16": LINE})), target, Style.VLLM, H200)
    assert not drawn.left_out and all(dict(s.params) == OURS and "vllm" in s.source for s in drawn.seeds)
    common = {"E": 8, "k": 2, "weight": "bf16", "act": "bf16", "bias": 0, "rows": 32}
    first = Problem.of("moe_linear", input="token", K=4096, N=2 * 14336, epilogue="silu_gate", **common)
    second = Problem.of("moe_linear", input="slot", K=14336, N=4096, epilogue="none", **common)
    other = Problem.of("moe_linear", input="slot", K=4096, N=14336, epilogue="none", **common)
    with Registry.open(tmp_path / "registry.db") as registry:
        registry.add_seeds(drawn.seeds)
        assert [len(registry.seeds(p, target.identity)) for p in (first, second, other)] == [1, 1, 0]
        assert not registry.seeds(first, load_target("nvidia-h100").identity)
        assert not registry.snapshot().kernels


def test_weights_that_kforge_has_not_give_no_seeds_and_say_so(tmp_path: Path) -> None:
    name = "E=128,N=1024,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8.json"
    table = moe_tables.read(written(tmp_path, name, {"1": LINE, "2": LINE}))
    drawn = moe_seeds.seeds_of(table, moe_seeds.target_of("AMD_Instinct_MI300X"), Style.VLLM, name)
    assert not drawn.seeds and "dtype=fp8_w8a8: 2 lines" in drawn.left_out[0]


def test_a_device_that_no_target_describes_is_never_guessed() -> None:
    """An H100 of another form is another device."""
    for device in ("NVIDIA_H100", "NVIDIA_H100_PCIe", "NVIDIA_A100-PCIE-40GB"):
        with pytest.raises(KforgeError, match=f"{device}.*--target"):
            moe_seeds.target_of(device)


def kernel(number: int, tokens: int, source: str = "token", block_m: int = 16, **changes: object) -> KernelRecord:
    first = source == "token"
    problem = Problem.of("moe_linear", E=8, k=2, input=source, K=4096 if first else 14336,
                         N=2 * 14336 if first else 4096, weight="bf16", act="bf16",
                         epilogue="silu_gate" if first else "none", bias=0, rows=32)
    base = KernelRecord(
        candidate_hash=f"c{number}", problem=problem, bucket=(("T", tokens),),
        target_identity=load_target("nvidia-h200").identity, target_name="nvidia-h200", operator_version=1,
        abi_version=1, numerics=NumericsClass.RELAXED, layouts=(("w", Layout.of("panel", rows=32, gate_up=0)),),
        backend="triton", template="triton/moe_linear/grouped.py.j2", template_hash="t",
        params=attrs({**OURS, "block_m": block_m}), source_hash="s", artifact_hash="a", compiler="triton 3.5.1",
        seconds=1e-5, default_seconds=2e-5, gain=1.0, gain_lower=0.9, run="r", state=KernelState.PROMOTED, id=number)
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def test_tuned_kernels_go_out_as_a_table_that_comes_back_the_same(tmp_path: Path) -> None:
    kernels = [kernel(1, 1), kernel(2, 64, block_m=64), kernel(3, 64, "slot"), kernel(4, 8, seconds=0.0),
               kernel(5, 16, state=KernelState.QUARANTINED)]
    exact = Problem(kernels[0].problem.operator, attrs({**dict(kernels[0].problem.static), "act": "f32"}))
    kernels.append(kernel(6, 32, problem=exact))  # those tools have no such activations
    found = moe_seeds.tables_of(Snapshot.of(kernels).kernels, Style.VLLM)
    (table,) = found.tables
    path = written(tmp_path, str(moe_tables.place(table, Style.VLLM)), table.text(Style.VLLM))
    assert path.name == H200 and moe_tables.read(path) == table
    assert json.loads(path.read_text()) == {
        "triton_version": "3.5.1", "1": LINE, "64": {**LINE, "BLOCK_SIZE_M": 64}}
    assert len(found.left_out) == 4 and any("nobody has timed" in said for said in found.left_out)


def test_sglang_gets_the_second_projection_where_both_have_one_block_m() -> None:
    kernels = [kernel(1, 1), kernel(2, 64), kernel(3, 1, "slot"), kernel(4, 64, "slot", block_m=128)]
    found = moe_seeds.tables_of(kernels, Style.SGLANG)
    assert [(t.name.down, sorted(t.lines)) for t in found.tables] == [(False, [1, 64]), (True, [1])]
    assert "1 kernels of second projections whose block_m" in found.left_out[0]


def test_the_commands_keep_seeds_and_refuse_where_there_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    good = written(tmp_path, H200, {"1": {**LINE, "waves_per_eu": 0}, "8": LINE})
    bring_in.vllm_moe([good])
    said = capsys.readouterr().out
    assert "2 lines for nvidia-h200, 16 seeds" in said and "waves_per_eu" in said and "16 new seeds" in said
    bad = written(tmp_path, "E=8,N=64,device_name=NVIDIA_H200.json", {"1": {}})
    with pytest.raises(KforgeError, match="BLOCK_SIZE_M"):
        bring_in.vllm_moe([good, bad])
    bring_in.sglang_moe([good], target="nvidia-h100", as_json=True)
    assert json.loads(capsys.readouterr().out)["new_seeds"] == 16  # of another target
    with pytest.raises(KforgeError, match="no tuned Triton kernel"):
        export.vllm_moe(tmp_path / "out")
