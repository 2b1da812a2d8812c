"""Drives kforge's engine by the same requests as ``llama_cpp_driver``: {"open": path, "threads": n, "kernels": ...}."""

from __future__ import annotations

import json
import sys
import time
from importlib import metadata

from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams
from kforge.models import load


class Driver:
    def __init__(self, path: str, threads: int, kernels: str, sequences: int = 32):
        self.model = load(path)
        self.engine = Engine(self.model, kernels, threads=threads, kv_tokens=max(16384, 512 * sequences))
        self.vocab = self.model.config.vocab

    def token(self, i: int) -> int:
        return 100 + (i * 7919) % (self.vocab - 200)

    def run(self, mode: str, batch: int, depth: int, tokens: int) -> float:
        """Seconds for ``tokens`` prompt tokens of one sequence, or for ``tokens`` decode steps of ``batch`` sequences.

        A decode run times the steps after every sequence has its first token, so all of them are full decode steps.
        """
        self.engine.forget_prefixes()  # every run has the same prompts
        if mode == "prefill":
            self.engine.add(
                [self.token(p) for p in range(depth + tokens)], SamplingParams(max_tokens=1, ignore_eos=True)
            )
            computed = 0
            while computed < depth:  # a chunk is at most a step's budget, so depth must be a multiple of it
                before = self.engine.stats.computed_tokens
                self.engine.step()
                computed += self.engine.stats.computed_tokens - before
            began = time.perf_counter()
            while not self.engine.idle:
                self.engine.step()
            return time.perf_counter() - began
        for s in range(batch):
            prompt = [self.token(p + s) for p in range(depth)]
            self.engine.add(prompt, SamplingParams(max_tokens=tokens + 2, ignore_eos=True))
        started = 0
        while started < batch:
            started += len(self.engine.step())
        while len(self.engine.step()) < batch:
            pass
        began = time.perf_counter()
        done = 0
        while done < tokens - 1:
            self.engine.step()
            done += 1
        seconds = (time.perf_counter() - began) * tokens / max(done, 1)
        while not self.engine.idle:
            self.engine.step()
        return seconds


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr
    driver: Driver | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "open" in request:
            driver = Driver(request["open"], request["threads"], request["kernels"])
            answer: dict[str, object] = {"version": metadata.version("kforge")}
        elif "used" in request:
            assert driver is not None
            answer = {
                "kernels": [
                    {"label": k.label, "hash": k.hash, "calls": k.calls, "tier": k.tier}
                    for k in driver.engine.kernels_used()
                ]
            }
        else:
            assert driver is not None, "open a model first"
            answer = {"seconds": driver.run(**request)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
