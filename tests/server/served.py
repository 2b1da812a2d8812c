"""A real server in a process of its own, and the same model alone in this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
from prometheus_client.parser import text_string_to_metric_families

from kforge.engine.engine import Engine
from kforge.engine.request import Completion, Output, SamplingParams

ROOT = Path(__file__).resolve().parents[2]
NAME = "tiny"
KV_TOKENS, SEQUENCES, QUEUE = 4096, 4, 3


@dataclass(frozen=True)
class Served:
    """Where a server listens, its process, and the file of its standard error."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=120)

    def post(self, path: str, body: Any, **settings: Any) -> httpx2.Response:
        return httpx2.post(f"{self.url}{path}", json=body, timeout=120, **settings)

    def metrics(self) -> dict[str, float]:
        """Every sample by its name, with its labels where it has any: ``kforge_answers_total{end="stop"}``."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(httpx2.get(f"{self.url}/metrics", timeout=60).text):
            for sample in family.samples:
                labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def wait_for(self, holds: Callable[[dict[str, float]], bool], seconds: float = 60.0) -> dict[str, float]:
        """The metrics once they are so."""
        deadline = time.monotonic() + seconds
        while not holds(seen := self.metrics()):
            assert time.monotonic() < deadline, seen
            time.sleep(0.05)
        return seen


@contextmanager
def server(model: Path, home: Path, *more: str, **env: str) -> Iterator[Served]:
    """A server of the model, which if nobody else does ends it by SIGTERM, with exit code 0 and without a traceback."""
    command = [sys.executable, "-m", "kforge.cli.main", "serve", str(model), "--port", "0", "--kernels", "default",
               "--kv-tokens", str(KV_TOKENS), "--max-sequences", str(SEQUENCES), "--max-queue", str(QUEUE),
               "--speculate", "ngram", *more]
    log = home / "stderr.txt"
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                                   env={**os.environ, "KFORGE_HOME": str(home), "PYTHONPATH": str(ROOT), **env})
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"kforge serves (\S+) on (http://127\.0\.0\.1:\d+)\n", line)
        assert found and found[1] == NAME, line + log.read_text()
        yield Served(found[2], process, log)
        if process.poll() is None:
            process.terminate()
            assert process.wait(60) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Alone:
    """The served model in an engine that has nothing else to do: what every answer must be equal to."""

    engine: Engine

    def answer(self, prompt: list[int], **params: Any) -> Completion:
        return self.engine.generate([prompt], SamplingParams(**params))[0]

    def outputs(self, prompt: list[int], **params: Any) -> list[Output]:
        return list(self.engine.stream(prompt, SamplingParams(**params)))

    def text(self, prompt: str) -> list[int]:
        return self.engine.model.tokenizer.encode(prompt)

    def user(self, text: str) -> list[int]:
        from kforge.models.chat import Message

        return self.engine.model.tokenizer.encode_chat([Message("user", text)])


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
