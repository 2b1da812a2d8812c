"""Drives kforge's engine by the same requests as the peers' drivers, one JSON request a line on stdin.

{"open": path, "threads": n, "kernels": ..., "kv": type of the cache}, then {"mode": "prefill"|"decode", "batch": b,
"depth": d, "tokens": n}, {"mode": "trace", "requests": [...], "slots": n}, or {"used": true}. A trace is served with
what ``kforge serve`` has: few prompt tokens a step while answers are being computed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from importlib import metadata

from replay import Request, replay

from kforge.core.defaults import DEFAULT_KV, PAGE_TOKENS, SERVING_PREFILL_TOKENS
from kforge.core.errors import KforgeError
from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams
from kforge.engine.weights import Weights
from kforge.models import load


class KforgeBatcher:
    """See ``replay.Batcher``."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._index: dict[int, int] = {}

    def add(self, index: int, prompt: list[int], output: int) -> None:
        self._index[self.engine.add(prompt, SamplingParams(max_tokens=output, ignore_eos=True))] = index

    def step(self) -> Sequence[int]:
        return [self._index[output.sequence] for output in self.engine.step()]


class Driver:
    def __init__(self, path: str, threads: int, kernels: str, kv: str) -> None:
        self.model = load(path)
        self.weights = Weights(self.model)
        self.threads, self.kernels, self.kv = threads, kernels, kv
        self._engine: tuple[tuple[object, ...], Engine] | None = None
        self.vocab = self.model.config.vocab
        self.engine(32, 512)  # missing kernels, or memory that does not suffice, show at once

    def engine(self, sequences: int, tokens: int, **options: object) -> Engine:
        """An engine for this many sequences of this many tokens each, one at a time; it knows no prompt."""
        pages = -(-tokens // PAGE_TOKENS) + 1
        key = (sequences, pages, *sorted(options.items()))
        if self._engine is None or self._engine[0] != key:
            if self._engine is not None:
                self._engine[1].close()
                self._engine = None
            made = Engine(
                self.model,
                self.kernels,
                threads=self.threads,
                kv=self.kv,
                max_sequences=sequences,
                kv_tokens=max(512, sequences * pages * PAGE_TOKENS),
                weights=self.weights,
                text=False,  # the peers' drivers make no text either
                **options,  # type: ignore[arg-type]
            )
            self._engine = (key, made)
        return self._engine[1]

    def token(self, i: int) -> int:
        return 100 + (i * 7919) % (self.vocab - 200)

    def trace(self, requests: list[Request], slots: int) -> list[list[float]]:
        """When each request's tokens came."""
        tokens = max(len(r["prompt"]) + r["output"] for r in requests)
        engine = self.engine(slots, tokens, max_prefill_tokens_per_step=SERVING_PREFILL_TOKENS)
        engine.forget_prefixes()  # every run has the same prompts
        return replay(KforgeBatcher(engine), requests, slots)

    def prefill(self, depth: int, tokens: int) -> float:
        """Seconds for ``tokens`` prompt tokens of one sequence behind ``depth``, a multiple of a step's budget."""
        engine = self.engine(1, depth + tokens + 1)
        engine.forget_prefixes()
        engine.add([self.token(p) for p in range(depth + tokens)], SamplingParams(max_tokens=1, ignore_eos=True))
        computed = 0
        while computed < depth:
            before = engine.stats.computed_tokens
            engine.step()
            computed += engine.stats.computed_tokens - before
        began = time.perf_counter()
        while not engine.idle:
            engine.step()
        return time.perf_counter() - began

    def decode(self, batch: int, depth: int, tokens: int) -> float:
        """Seconds for ``tokens`` decode steps of ``batch`` sequences, all of which have their first token before.

        Prompts that an earlier run computed are found in the prefix cache: only the steps are timed.
        """
        engine = self.engine(batch, depth + tokens + 4 * batch)
        params = SamplingParams(max_tokens=tokens + 2 * batch + 8, ignore_eos=True)
        started = {engine.add([self.token(p + s) for p in range(depth)], params) for s in range(batch)}
        ids = set(started)
        while started:  # while prompts are computed those before them get tokens: at most one in each step
            started -= {output.sequence for output in engine.step()}
        began = time.perf_counter()
        for _ in range(tokens):
            if len(engine.step()) != batch:
                raise KforgeError(f"a step of {batch} sequences did not bring a token for each")
        seconds = time.perf_counter() - began
        for sequence in ids:
            engine.abort(sequence)
        return seconds

    def used(self) -> list[dict[str, object]]:
        """Kernels of the engine that ran last."""
        assert self._engine is not None
        return [
            {"label": k.label, "hash": k.hash, "calls": k.calls, "tier": k.tier}
            for k in self._engine[1].kernels_used()
        ]

    def answer(self, request: dict) -> dict[str, object]:
        if "used" in request:
            return {"kernels": self.used()}
        if request["mode"] == "trace":
            return {"times": self.trace(request["requests"], request["slots"])}
        if request["mode"] == "prefill":
            return {"seconds": self.prefill(request["depth"], request["tokens"])}
        return {"seconds": self.decode(request["batch"], request["depth"], request["tokens"])}


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr
    driver: Driver | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "open" in request:
            try:
                driver = Driver(request["open"], request["threads"], request["kernels"], request.get("kv", DEFAULT_KV))
                answer: dict[str, object] = {"version": metadata.version("kforge")}
            except KforgeError as error:
                answer = {"error": str(error)}
        else:
            assert driver is not None, "open a model first"
            answer = driver.answer(request)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
