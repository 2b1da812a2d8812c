"""Is the engine right? Every operator of every layer, the logits, the divergence on a text, and the bits.

    python bench/accuracy.py [--json accuracy.json]          (all parts; about 20 minutes on two cores)
    python bench/accuracy.py --parts operators,bits

  operators  each operator call of each layer, fed transformers' float64 input, within its operator's bound
  logits     float variant: error against float64 at most twice that of transformers in float32, on 50 prompts
  text       a8: mean KL from float64 no larger than llama.cpp's, perplexity within 0.5 %, on 20,000 tokens
  bits       logits bit for bit the same for batch 1 and 8, any chunk size and any exact kernels

Exit code 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from accuracy import bits, divergence, reference, whole
from accuracy.check import Check
from accuracy.operators import OperatorCheck, OperatorResult
from accuracy.points import RandomPoints
from measuring import write_json
from peers.environments import COMPILERS, install
from peers.process import Process
from rich.console import Console
from rich.table import Table

from kforge.engine.engine import Engine
from kforge.engine.kernel_set import KernelSet, named
from kforge.engine.weights import Weights
from kforge.models import load
from kforge.models.fetch import resolve
from kforge.models.model import Model
from kforge.targets.files import load_target

WINDOW = 512
PARTS = ("operators", "logits", "text", "bits")
POINTS = ((0, 32), (1, 32), (2, 16), (3, 64))  # seeds of random kernel sets and the panel height of their weights


class Bench:
    """What the parts share: the model, its truth, packed weights and default kernels, made once."""

    def __init__(self, args: argparse.Namespace, console: Console) -> None:
        self.args, self.console = args, console
        self.model: Model = load(resolve(args.model))
        self.kernels: KernelSet = named("default")
        self.weights = Weights(self.model)
        self._truth: torch.nn.Module | None = None
        self.text = self.model.tokenizer.encode((whole.DATA / "persuasion.txt").read_text("ascii"))

    @property
    def truth(self) -> torch.nn.Module:
        if self._truth is None:
            self._truth = reference.truth(self.model)
        return self._truth

    def engine(self, kernels: KernelSet | None = None, **options: object) -> Engine:
        given = {"threads": self.args.threads, "kv_tokens": 4096, "text": False, **options}
        return Engine(self.model, kernels or self.kernels, weights=self.weights, **given)  # type: ignore[arg-type]

    # Parts

    def operators(self) -> list[Check]:
        tokens = self.text[: self.args.trace_tokens]
        trace = reference.trace(self.truth, tokens, self.model.config.rope.style)
        checks = []
        for act, kv in (("f32", "f32"), ("a8", "bf16"), ("a8", "i8")):
            tested = OperatorCheck(self.model, self.kernels, self.weights, tokens, act, kv, self.args.threads)
            results = [tested.run(call, trace) for call in tested.calls(range(self.model.config.layers))]
            tested.close()
            checks += _by_kind(results, f"{act}, kv {kv}")
            self.console.print(f"operators, {act}, kv {kv}: {len(results)} calls of {len(tokens)} tokens")
        return checks

    def logits(self) -> list[Check]:
        ours = self.engine(act="f32", kv="f32")
        theirs = reference.peer(self.model)
        texts = [self.model.tokenizer.encode(prompt) for prompt in whole.prompts()]
        results = whole.compare(texts, lambda t: reference.logits(self.truth, t), ours.logits,
                                lambda t: reference.logits(theirs, t))
        ours.close()
        ratios = [r.rms_ratio for r in results]
        largest = max(r.ours_max for r in results) / max(r.theirs_max for r in results)
        spread = f"single prompts: median {np.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
        pooled = whole.pooled_ratio(results)
        return [Check("logits", "root mean square error / transformers float32", pooled, 2, spread),
                Check("logits", "largest error / transformers float32", largest, 2)]

    def divergence(self) -> list[Check]:
        a = self.args
        windows = [self.text[s : s + WINDOW] for s in range(0, a.tokens, WINDOW)]
        engines = {f"kforge a8, kv {kv}": self.engine(act="a8", kv=kv, max_sequences=WINDOW, kv_tokens=WINDOW)
                   for kv in ("bf16", "f16", "f32", "i8")}
        python = a.peer_python or next(p for c in COMPILERS if (p := install(c, self.console)))
        with tempfile.NamedTemporaryFile() as file:
            def of_peer(side: Process, tokens: list[int]) -> np.ndarray:
                side.ask({"tokens": tokens, "into": file.name})
                return np.fromfile(file.name, np.float32).reshape(len(tokens), -1)

            peers = {f"llama.cpp, {name}": Process(name, python, "accuracy_llama_cpp.py",
                                                  {"open": str(self.model.path), "threads": a.threads, "flash": flash})
                     for name, flash in (("flash attention", True), ("plain attention", False))}
            models = {n: e.logits for n, e in engines.items()}
            models |= {n: (lambda t, side=side: of_peer(side, t)) for n, side in peers.items()}
            tallies = divergence.measure(windows, lambda t: reference.logits(self.truth, t), models,
                                         lambda n: self.console.print(f"text: {n} of {len(windows)} windows", end="\r"))
        for side in peers.values():
            side.close()
        self.print_tallies(tallies)
        best = min((tallies[n] for n in peers), key=lambda t: t.mean_kl)
        checks = []
        for name in (n for n in engines if not n.endswith("i8")):  # which is measured, and promises less
            ours = tallies[name]
            checks.append(Check("text", f"{name}: mean KL / llama.cpp's", ours.mean_kl / best.mean_kl, 1,
                                f"{ours.mean_kl:.4g} and {best.mean_kl:.4g} nats, difference {ours.gap(best)}"))
            for other, tally in (("llama.cpp", best), ("float64", tallies["float64"])):
                off = abs(ours.perplexity / tally.perplexity - 1)
                checks.append(Check("text", f"{name}: perplexity off {other}'s", off, 0.005,
                                    f"{ours.perplexity:.4f} and {tally.perplexity:.4f}"))
        return checks

    def bits(self) -> list[Check]:
        text = self.text[:300]
        prompts = [self.model.tokenizer.encode(p) for p in whole.prompts()[:8]]
        first = self.engine(max_sequences=512)
        wanted = bits.text_bits(first, text, 64)
        alone = [bits.generated_bits(first, [p], 12)[0] for p in prompts]
        checks = []
        sets = [self.kernels, named("tuned"), *(RandomPoints(self.kernels.target, *p) for p in POINTS)]
        for kernels in sets:
            engine = first if kernels is self.kernels else self.engine(kernels, max_sequences=512)
            off = sum(bits.differing(bits.text_bits(engine, text, chunk), wanted) for chunk in (1, 7, 64, 300))
            tiers = {k.hash for k in engine.kernels_used()} - {k.hash for k in first.kernels_used()}
            detail = f"{len(tiers)} kernels other than the defaults"
            checks.append(Check("bits", f"{kernels.name}: chunks of 1, 7, 64, 300 tokens", off, 0, detail))
            for budget in (512, 5):  # the second cuts every prompt and, at the end, every step
                batch = self.engine(kernels, max_sequences=8, max_tokens_per_step=budget)
                off = sum(bits.differing(a, b) for a, b in
                          zip(alone, bits.generated_bits(batch, prompts, 12), strict=True))
                batch.close()
                checks.append(Check("bits", f"{kernels.name}: batch 8 beside batch 1, {budget} tokens a step", off, 0))
            if engine is not first:
                engine.close()
            self.console.print(f"bits: {kernels.name} done")
        return checks

    def print_tallies(self, tallies: dict[str, divergence.Tally]) -> None:
        table = Table(title=f"{tallies['float64'].positions} tokens of persuasion.txt in windows of {WINDOW}")
        for column in ("model", "mean KL, nats", "± standard error", "perplexity", "same most probable token"):
            table.add_column(column, justify="left" if column == "model" else "right")
        for name, t in tallies.items():
            table.add_row(name, f"{t.mean_kl:.4g}", f"{t.kl_error:.2g}", f"{t.perplexity:.4f}",
                          f"{100 * t.top_agreement:.2f} %")
        self.console.print(table)


def _by_kind(results: list[OperatorResult], variant: str) -> list[Check]:
    checks = []
    for kind in dict.fromkeys(r.kind for r in results):
        of_kind = [r for r in results if r.kind is kind]
        worst = max(of_kind, key=lambda r: np.inf if np.isnan(r.kernel) else r.kernel)
        checks.append(Check("operators", f"{variant}: {kind.value}", worst.kernel, 1,
                            f"{len(of_kind)} calls, of the bound; worst {worst.label}"))
        if variant.startswith("f32"):
            off = max(np.inf if np.isnan(r.reference) else r.reference for r in of_kind)
            checks.append(Check("operators", f"{variant}: {kind.value}'s reference beside transformers", off, 1))
    return checks


def print_checks(checks: list[Check], console: Console) -> None:
    table = Table(title="accuracy")
    for column in ("part", "what", "measured", "at most", "", "detail"):
        table.add_column(column, justify="right" if column in ("measured", "at most") else "left")
    for c in checks:
        table.add_row(c.part, c.name, f"{c.measured:.4g}", f"{c.allowed:.4g}", "pass" if c.passed else "FAIL", c.detail)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of " + ", ".join(PARTS))
    parser.add_argument("--threads", type=int, default=load_target("host").cores)
    parser.add_argument("--tokens", type=int, default=20480, help="tokens of the text, in windows of 512")
    parser.add_argument("--trace-tokens", type=int, default=300, help="tokens that the operators see")
    parser.add_argument("--peer-python", type=Path, help="an environment with llama-cpp-python instead of building one")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    parts = args.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}")
    torch.set_num_threads(args.threads)
    console = Console()
    bench = Bench(args, console)
    run = {"operators": bench.operators, "logits": bench.logits, "text": bench.divergence, "bits": bench.bits}
    checks = [check for part in PARTS if part in parts for check in run[part]()]
    print_checks(checks, console)
    write_json(args.json, "bench/accuracy.py", {"checks": [{**asdict(c), "passed": c.passed} for c in checks]})
    sys.exit(not all(c.passed for c in checks))


if __name__ == "__main__":
    main()
