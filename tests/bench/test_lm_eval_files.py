"""``bench/lm_eval_files.py``: tasks that can be answered, and a tokenizer that transformers reads as kforge does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from lm_eval_files import TEXT, write_tasks, write_tokenizer  # noqa: E402

from kforge.models import load  # noqa: E402
from kforge.models.synth import synth  # noqa: E402


def test_each_question_has_one_right_answer_which_the_text_has_behind_what_is_shown(tmp_path: Path):
    write_tasks(TEXT.read_text("ascii"), tmp_path)
    text = " ".join(TEXT.read_text("ascii").split())
    questions = [json.loads(line) for line in (tmp_path / "next.jsonl").read_text().splitlines()]
    assert len(questions) > 50
    for question in questions:
        follows = [f"{question['before']} {choice}" in text for choice in question["choices"]]
        assert follows.count(True) == 1 and follows[question["right"]]
    assert len({question["right"] for question in questions}) == 4
    for name in ("next", "perplexity"):
        assert str(tmp_path / f"{name}.jsonl") in (tmp_path / f"persuasion_{name}.yaml").read_text()
    assert '"{{before}}"' in (tmp_path / "persuasion_next.yaml").read_text()


@pytest.mark.slow
def test_the_tokenizer_that_is_written_gives_kforges_ids(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    synth("tiny-qwen3-test", "q4_0", tmp_path / "tiny.gguf")
    model = load(tmp_path / "tiny.gguf")
    write_tokenizer(model, tmp_path / "tokenizer")  # which holds it against kforge's on a few texts
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "tokenizer"))
    text = "What is asked here, <b>and why</b>?\n\n  " + TEXT.read_text("ascii")[30_000:32_000]
    assert theirs(text, add_special_tokens=False).input_ids == model.tokenizer.encode(text, add_bos=False)
    assert theirs.eos_token_id == model.config.eos_id
