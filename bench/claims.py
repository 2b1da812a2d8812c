"""What the field says of serving engines, tried on this one: claim, who claims it, claimed, measured, why they differ.

    python bench/claims.py [--only paging,guessing] [--model smollm2-135m] [--rounds 5] [--json claims.json]

  paging     pages beside one reserved range per request: requests served at once in the same memory
  batching   continuous batching beside batches that begin and end together
  prefixes   the prefix cache on conversations behind one long system prompt
  sharing    decoding behind a common prompt: its pages in common beside pages of one's own
  stalls     chunks of a long prompt: the longest gap between others' tokens
  guessing   prompt look-up on real text, or --draft-model: tokens per full pass, and the speed that comes of it
  waiting    the part of a decode step of one sequence that is spent waiting for memory

Sides are interleaved, forwards and backwards in turn, behind an uncounted round; figures are medians over rounds, and
[±] is half the interquartile range over the median. The model is the real SmolLM2-135M; where it is not to be had, one
with random weights, whose texts repeat themselves: what it says of guessing is then of synthetic acceptance, and
labelled so. ``--scale`` below 1 cuts the traces, for a look; do not keep figures of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path

from engine_claims import batching, guessing, paging, prefixes, sharing, stalls, waiting
from engine_claims.finding import Finding
from engine_claims.setting import Setting
from measuring import write_json
from peers.models import gguf
from rich.console import Console
from rich.table import Table

from kforge.core.errors import KforgeError
from kforge.engine.kernel_set import named
from kforge.engine.weights import Weights
from kforge.models import load
from kforge.targets.files import load_target

Measure = Callable[[Setting], tuple[list[Finding], dict[str, object]]]
PARTS: dict[str, Measure] = {part.PART: part.measure
                             for part in (paging, batching, prefixes, sharing, stalls, guessing, waiting)}
REAL, STAND_IN = "smollm2-135m", "synth:qwen3-0.6b:q4_0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="some of " + ", ".join(PARTS))
    parser.add_argument("--model", help=f"a name, a path, or synth:SHAPE:FORMAT[:LAYERS]; {REAL}, else {STAND_IN}")
    parser.add_argument("--draft-model", help="guesses in place of prompt look-up; the same forms")
    parser.add_argument("--kernels", default="default", choices=("default", "tuned"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=load_target("host").cores)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of requests")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}: one of {', '.join(PARTS)}")
    if args.rounds < 1 or args.threads < 1 or not 0 < args.scale <= 1:
        parser.error("--rounds and --threads must be at least 1, --scale above 0 and at most 1")
    console = Console(width=None if sys.stdout.isatty() else 180)
    path = path_of(args.model, console)
    draft = gguf(args.draft_model) if args.draft_model else None
    synthetic = any("synth" in each.stem for each in (path, draft) if each is not None)
    model = load(path)
    say = teller(console)
    setting = Setting(model, named(args.kernels, load_target("host")), Weights(model), args.threads, args.rounds,
                      args.scale, say, load(draft) if draft else None)
    findings: list[Finding] = []
    raw: dict[str, object] = {}
    for part in (name for name in PARTS if name in chosen):
        began = time.monotonic()
        found, raw[part] = PARTS[part](setting)
        findings += [labelled(finding) if synthetic else finding for finding in found]
        say("")
        told = [f"{part}: {time.monotonic() - began:.0f} s", *(f"  {f.claim}: {f.told}" for f in found)]
        console.print("\n".join(told), markup=False)
        console.file.flush()
    print_table(findings, f"{model.config.name}, {args.kernels} kernels, {args.threads} threads, {args.rounds} rounds"
                + (f", traces at {args.scale:g} of their size" if args.scale < 1 else ""), console)
    write_json(args.json, " ".join(["python", "bench/claims.py", *sys.argv[1:]]), {
        "model": path.stem, "kernels": args.kernels, "threads": args.threads, "rounds": args.rounds,
        "scale": args.scale, "findings": [dataclasses.asdict(finding) for finding in findings], "runs": raw})


def path_of(name: str | None, console: Console) -> Path:
    """The model's file: what was asked for, else the real one, else one with random weights."""
    if name is not None:
        return gguf(name)
    try:
        return gguf(REAL)
    except KforgeError as error:
        console.print(f"{error}\nRandom weights take its place: {STAND_IN}.")
        return gguf(STAND_IN)


def labelled(finding: Finding) -> Finding:
    """What a model with random weights says of guesses is no figure of any real text."""
    if finding.part != guessing.PART:
        return finding
    return dataclasses.replace(finding, claim=f"{finding.claim} (synthetic acceptance: random weights)")


def teller(console: Console) -> Callable[[str], None]:
    """Shows one line that the next one replaces; nothing where nobody watches."""
    def say(what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)
    return say


def print_table(findings: list[Finding], title: str, console: Console) -> None:
    table = Table(title=title, show_lines=True)
    for column in ("claim", "who claims it", "claimed", "measured", "of", "why they differ"):
        table.add_column(column, overflow="fold")
    for f in findings:
        table.add_row(f"{f.part}: {f.claim}", f.who, f.claimed, f.told, f.beside, f.why)
    console.print(table)


if __name__ == "__main__":
    main()
