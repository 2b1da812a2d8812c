"""``kforge bench engine``: torch, default and tuned kernels beside each other in one process."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kforge.cli.generate import Act, Isolate, Kv, KvTokens, ModelArgument, Threads, open_model, usable_kernels
from kforge.cli.numbers import numbers
from kforge.core.defaults import DEFAULT_ACT, DEFAULT_KV, DEFAULT_KV_TOKENS, STEP_TOKENS
from kforge.core.errors import KforgeError
from kforge.core.kernel import Tier

if TYPE_CHECKING:
    from kforge.core.summary import Summary
    from kforge.engine.engine import Engine
    from kforge.engine.measure import Comparison, Figure


def engine(
    model: ModelArgument,
    batch: Annotated[str, typer.Option(help="Sequences that decode together, comma-separated; empty: none.")] = "1,8",
    prefill: Annotated[str, typer.Option(help="Prompt lengths, comma-separated; empty: none.")] = "512",
    decode: Annotated[int, typer.Option(min=1, help="Tokens per sequence and run.")] = 48,
    context: Annotated[int, typer.Option(min=1, help="Prompt length of the decode runs, where they start.")] = 16,
    kernels: Annotated[str, typer.Option(help="What to compare, in order: each against the one before.")]
    = "none,default,tuned",
    torch_dtype: Annotated[str, typer.Option(help="Weights of 'none': f32 or bf16.")] = "f32",
    repeats: Annotated[int, typer.Option(min=1, help="Counted rounds.")] = 7,
    threads: Threads = None,
    kv_tokens: KvTokens = DEFAULT_KV_TOKENS,
    kv: Kv = DEFAULT_KV,
    act: Act = DEFAULT_ACT,
    isolate: Isolate = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Tokens/s at some batches and prompt lengths: interleaved runs, medians, spreads, ratios."""
    # Torch's idle threads would spin on the cores on which the next engine is timed.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from kforge.engine.engine import Engine
    from kforge.engine.measure import compare, decode_setting, prefill_setting
    from kforge.engine.weights import Weights
    from kforge.targets.facts import machine_facts
    from kforge.targets.files import load_target
    from kforge.targets.probe import BandwidthProbe

    opened = open_model(model)
    settings = [decode_setting(n, context, decode) for n in _some("--batch", batch)]
    settings += [prefill_setting(n) for n in _some("--prefill", prefill)]
    if any(setting.batch > STEP_TOKENS for setting in settings):
        raise KforgeError(f"--batch {batch!r} holds a number above {STEP_TOKENS}, the tokens of the largest step.")
    if not settings:
        raise KforgeError("Nothing to measure: give --batch or --prefill.")
    names = list(dict.fromkeys(usable_kernels(name.strip()) for name in kernels.split(",")))
    packed = Weights(opened) if set(names) != {"none"} else None
    engines = {name: Engine(opened, name, threads=threads, kv_tokens=kv_tokens, kv=kv, act=act, torch_dtype=torch_dtype,
                            text=False, weights=packed, isolate=isolate) for name in names}
    target = load_target("host")
    with BandwidthProbe(threads or target.cores) as probe:
        comparison = compare(engines, settings, repeats, lambda: probe.measure(0.1).value, _progress)
    document = _document(opened.config.name, engines, comparison, act, kv, torch_dtype)
    document["machine"] = {**dataclasses.asdict(machine_facts()), "threads": threads or target.cores}
    if json_file is not None:
        json_file.write_text(json.dumps(document, indent=1) + "\n")
    _print(opened.config.name, engines, comparison, act, torch_dtype)


def _some(option: str, text: str) -> tuple[int, ...]:
    return numbers(option, text) if text.strip() else ()


def _progress(what: str) -> None:
    import sys

    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


def _label(name: str, act: str, torch_dtype: str, isolated: bool) -> str:
    if name == "none":
        return f"none (torch {torch_dtype})"
    return f"{name} ({act}, isolated)" if isolated else f"{name} ({act})"


def _print(model: str, engines: dict[str, Engine], comparison: Comparison, act: str, torch_dtype: str) -> None:
    from rich.console import Console

    from kforge.cli.run_tables import rate_table
    from kforge.cli.tables import folding

    console = Console()
    _progress("")
    console.print(rate_table(comparison.figures, f"{model}, tokens/s",
                             lambda name: _label(name, act, torch_dtype, engines[name].isolated)))
    if "tuned" in engines and all(use.tier == Tier.DEFAULT for use in engines["tuned"].kernels_used()):
        print("no kernel of the registry serves these calls: 'tuned' runs the shipped defaults too")
    if comparison.bandwidth is not None:
        console.print(f"memory read bandwidth beside it: {comparison.bandwidth.median / 1e9:.1f} GB/s, "
                      f"spread {100 * comparison.bandwidth.spread:.0f} %")
    for name, one in engines.items():
        if name == "none":
            continue
        used = folding("first call", "kernel", "template", "tier", "calls", right=("calls",),
                       title=f"kernels of '{name}'")
        for use in one.kernels_used():
            used.add_row(use.label, use.hash, use.template, use.tier, str(use.calls))
        console.print(used)


def _document(model: str, engines: dict[str, Engine], comparison: Comparison, act: str, kv: str,
              torch_dtype: str) -> dict[str, Any]:
    return {
        "model": model, "act": act, "kv": kv, "torch_dtype": torch_dtype,
        "bandwidth": _summary(comparison.bandwidth), "figures": [_figure(figure) for figure in comparison.figures],
        "isolated": {name: one.isolated for name, one in engines.items()},
        "kernels": {name: [vars(use) for use in one.kernels_used()] for name, one in engines.items()},
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {"kernels": figure.kernels, "setting": figure.setting, "tokens_per_second": _summary(figure.rate),
            "ratio_to_previous": _summary(figure.ratio), "python_share": figure.python_share,
            "samples": [sample.rate for sample in figure.samples]}


def _summary(summary: Summary | None) -> dict[str, float] | None:
    return None if summary is None else {"median": summary.median, "spread": summary.spread}
