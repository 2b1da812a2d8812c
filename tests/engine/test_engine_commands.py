"""``kforge generate``, ``chat`` and ``bench engine`` as a user calls them."""

import json
import subprocess
import sys

import pytest


def kforge(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kforge.cli.main", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("kv", ["f16", pytest.param("i8", marks=pytest.mark.slow)])
def test_generate_prints_json_with_the_kernels_that_ran(model, kv):
    done = kforge("generate", str(model.path), "-p", "The capital of France is", "--max-tokens", "6",
                  "--kernels", "default", "--kv", kv, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "Paris" in answer["text"] and len(answer["tokens"]) == 6
    assert {use["tier"] for use in answer["kernels"]} == {"default"}
    assert all(use["hash"] and use["calls"] > 0 for use in answer["kernels"])
    assert {f"kv={kv}" in use["problem"] for use in answer["kernels"] if "kv=" in use["problem"]} == {True}


def test_chat_answers_and_ends_at_the_end_of_input(model):
    done = kforge("chat", str(model.path), "--max-tokens", "8", "--kernels", "default", text="Hi there\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.replace("> ", "").strip()) > 3


@pytest.mark.parametrize(("arguments", "sentence"), [
    (("generate", "nowhere.gguf", "-p", "x"), "nowhere.gguf"),
    (("generate", "{model}", "-p", "x", "--kernels", "fast"), "Unknown kernels 'fast'"),
    (("generate", "{model}", "-p", "x", "--kernels", "default", "--max-tokens", "9000", "--kv-tokens", "512"),
     "the KV cache holds 512"),
    (("generate", "{model}", "-p", "x", "--top-p", "2"), "top_p must be"),
    (("bench", "engine", "{model}", "--batch", "one"), "not a list of numbers"),
    (("bench", "engine", "{model}", "--batch", "", "--prefill", ""), "Nothing to measure"),
])
def test_bad_input_is_one_sentence_and_exit_code_2(model, arguments, sentence):
    done = kforge(*(str(model.path) if a == "{model}" else a for a in arguments))
    assert done.returncode == 2
    assert sentence in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_bench_engine_writes_ratios_and_kernels_as_json(model, tmp_path):
    file = tmp_path / "bench.json"
    done = kforge("bench", "engine", str(model.path), "--batch", "1", "--prefill", "32", "--decode", "4",
                  "--repeats", "2", "--kernels", "none,default", "--json", str(file))
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert [(f["kernels"], f["setting"]) for f in document["figures"]] == [
        (kernels, setting) for setting in ("decode batch 1 context 16-20", "prefill 32")
        for kernels in ("none", "default")]
    assert document["figures"][1]["ratio_to_previous"]["median"] > 0
    assert document["bandwidth"]["median"] > 1e9
    assert all(use["calls"] for use in document["kernels"]["default"])
    assert document["machine"]["cpu"]
