"""A server that guesses by a draft model: the same answers, and options that do not fit are told in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from served import NAME, ROOT, Alone, server

from kforge.models.synth import synth


@pytest.mark.slow
def test_answers_are_those_without_guesses(tiny: Path, home: Path, alone: Alone, tmp_path: Path):
    draft = tmp_path / "draft.gguf"
    synth("tiny-llama-test", "q4_0", draft, layers=1)
    asked = {"model": NAME, "prompt": ["once upon a time", "in a small village"], "max_tokens": 100}
    with server(tiny, home, "--speculate", "draft", "--draft-model", str(draft)) as guessing:
        for params in ({"temperature": 0}, {"temperature": 0.8, "seed": 3}):
            said = guessing.client().completions.create(**asked, **params)
            expected = [alone.answer(alone.text(prompt), max_tokens=100, **params).text for prompt in asked["prompt"]]
            assert [choice.text for choice in said.choices] == expected
        assert guessing.metrics()["kforge_draft_seconds_total"] > 0


@pytest.mark.parametrize("options, sentence", [
    (("--speculate", "draft"), "--draft-model"),
    (("--draft-model", "{model}"), "--speculate draft"),
    (("--relaxed-sampling",), "--speculate"),
])
def test_options_that_do_not_fit_are_one_sentence_and_exit_code_2(tiny: Path, home: Path, options, sentence):
    command = [sys.executable, "-m", "kforge.cli.main", "serve", str(tiny), "--port", "0", "--kernels", "default",
               *(str(tiny) if option == "{model}" else option for option in options)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False,
                          env={**os.environ, "KFORGE_HOME": str(home), "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr and len(done.stderr.strip().splitlines()) == 1
