"""A server whose engine says the same long word for ever, at no cost: python endless_server.py MODEL GRACE"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence

import typer

from kforge.cli.ending import ended
from kforge.engine.request import Output, SamplingParams
from kforge.engine.stats import EngineStats
from kforge.engine.steps import StepLimits

WORD = "on" * 1000


class EndlessEngine:
    limits = StepLimits(64, 4, 64, 64, 2048)
    waiting = pages_in_use = pages_kept = 0

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._ids = itertools.count()
        self._said = 0

    @property
    def idle(self) -> bool:
        return not self._open

    @property
    def running(self) -> int:
        return len(self._open)

    @property
    def stats(self) -> EngineStats:
        return EngineStats(generated_tokens=self._said)

    def add(self, prompt: Sequence[int], params: SamplingParams) -> int:
        self._open.add(sequence := next(self._ids))
        return sequence

    def abort(self, sequence: int) -> None:
        self._open.discard(sequence)

    def step(self) -> list[Output]:
        time.sleep(0.001)
        self._said += len(self._open)
        return [Output(sequence, 65, WORD) for sequence in sorted(self._open)]

    def close(self) -> None:
        pass


def main(model: str, grace: float) -> None:
    from kforge.models import load
    from kforge.server.serving import Options, serve

    serve("tiny", load(model), EndlessEngine, Options("127.0.0.1", 0, 7, grace))  # type: ignore[arg-type]


if __name__ == "__main__":
    app = typer.Typer()
    app.command()(main)
    sys.exit(ended(app))
