"""What ``--isolate`` costs: the engine with its kernels in a locked-down process beside the same engine without it.

    python bench/isolation.py [MODEL] [--threads 2] [--batch 1,8] [--prefill 512] [--rounds 3] [--json isolation.json]

Bursts of the two engines alternate (ABBA) on the same prompts; beside them a second engine of the ordinary kind shows
how far two equal engines can seem to be apart here and now. A cost is the robust location of isolated / own time,
minus one, with its 95 % interval; the best and the worst of several rounds are shown, not only one.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring import write_json
from rich.console import Console
from rich.table import Table

from kforge.engine.engine import Engine
from kforge.engine.kernel_set import named
from kforge.engine.weights import Weights
from kforge.models import load
from kforge.models.fetch import resolve
from kforge.models.workloads import Mode, modes
from kforge.targets.files import host
from kforge.tuner.engine_pairs import Pairs, interleave
from kforge.tuner.modes import ModeDriver


@dataclass(frozen=True)
class Cost:
    """One round in one mode; costs are ratios minus one, ``floor`` of an engine over its equal."""

    mode: str
    step_seconds: float  # in the engine's own process
    cost: float
    lower: float
    upper: float
    floor: float
    floor_lower: float
    floor_upper: float
    same_tokens: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--kernels", default="default")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    target = host()
    kernels, threads = named(given.kernels, target), given.threads or target.cores
    model = load(resolve(given.model))
    weights = Weights(model)
    found: list[Cost] = []
    starts: list[float] = []
    for mode in modes(tuple(int(n) for n in given.batch.split(",")), (given.context,), given.prefill):
        for _ in range(given.rounds):

            def driver(isolate: bool, mode: Mode = mode) -> ModeDriver:
                tokens = mode.sequences * (mode.context + 128)
                engine = Engine(model, kernels, threads=threads, kv_tokens=tokens, max_sequences=max(mode.sequences, 1),
                                weights=weights, isolate=isolate, text=False)
                return ModeDriver(engine, mode)

            with driver(False) as own, driver(False) as equal:
                began = time.perf_counter()
                with driver(True) as isolated:
                    starts.append(time.perf_counter() - began)
                    apart = interleave(own, isolated)
                even = interleave(own, equal)
                found.append(_cost(mode, own, apart, even))
    command = f"python bench/isolation.py {given.model} --kernels {given.kernels} --rounds {given.rounds}"
    write_json(given.json, command, {"costs": [asdict(c) for c in found], "starts": starts})
    _print(model.config.name, threads, found, starts)


def _cost(mode: Mode, own: ModeDriver, apart: Pairs, even: Pairs) -> Cost:
    burst = min((own.burst() for _ in range(5)), key=lambda b: b.seconds)
    steps = burst.tokens / max(mode.queries if mode.name.startswith("prefill") else mode.sequences, 1)
    return Cost(mode.name, burst.seconds / steps, apart.location.gain, apart.location.lower, apart.location.upper,
                even.location.gain, even.location.lower, even.location.upper, apart.same_tokens)


def _print(model: str, threads: int, found: list[Cost], starts: list[float]) -> None:
    table = Table(title=f"{model}, {threads} threads: kernels isolated over kernels in the engine's own process")
    for column in ("mode", "own ms/step", "isolated costs", "95 %", "two equal engines", "same tokens"):
        table.add_column(column, justify="left" if column == "mode" else "right")
    for c in found:
        table.add_row(c.mode, f"{1e3 * c.step_seconds:.2f}", f"{100 * c.cost:+.1f} %",
                      f"{100 * c.lower:+.1f} .. {100 * c.upper:+.1f}",
                      f"{100 * c.floor:+.1f} % ({100 * c.floor_lower:+.1f} .. {100 * c.floor_upper:+.1f})",
                      "yes" if c.same_tokens else "NO")
    Console().print(table)
    print(f"an isolated engine is ready {1e3 * min(starts):.0f} to {1e3 * max(starts):.0f} ms after it was asked for "
          "(the first one packs its weights into shared memory)")


if __name__ == "__main__":
    main()
