"""kforge beside llama.cpp and vLLM on the same weights: interleaved runs, ratios, and the goals beside them.

    make bench-peers            (or: python bench/peers.py --json peers.json)
    python bench/peers.py --only steps,moe --quick

  steps      decode steps at batch 1 to 32 and a prompt of 512, of the GGUF files in --models, beside llama.cpp
  depth      Llama-3.2-1B Q4_0, one sequence behind 8192 tokens, with caches of f16 and of 8 bits
  moe        GPT-OSS-20B cut to 4 layers, MXFP4: batch 1, 8, 32, and a prompt
  serving    Llama-3.2-1B Q4_0, continuous batching: 1 to 32 sequences at a time, and a mixed trace, beside llama.cpp
  vllm-bf16, vllm-w8a8   the same beside vLLM's CPU build with zentorch, on a folder of the same weights

llama.cpp is installed by name from its source package into environments of their own, once with each compiler that is
here (gcc, clang 19), GGML_NATIVE on; per row the better of the two is the peer. vLLM is installed into one more. For
continuous batching peers run with the fastest of the settings that they offer, tried on a short trace. All engines run
in processes of their own with the same threads; one works while the others sleep. They generate the same numbers of
tokens, greedily, from the same token ids; requests come at the same seconds for all. Weights are random except in
--models: speed does not depend on them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from measuring import write_json
from peers import models
from peers.environments import install_vllm, llama_cpp, vllm_variables
from peers.process import Process, Refused
from peers.serving import ServingResult, print_serving, serve
from peers.settings import Settled, settle
from peers.steps import Row, StepResult, compare, depth_rows, moe_rows, print_steps, rows_for
from peers.trace import Trace, full, mixed
from rich.console import Console

from kforge.core.defaults import DEFAULT_KV
from kforge.core.errors import KforgeError
from kforge.targets.files import load_target

GROUPS = ("steps", "depth", "moe", "serving", "vllm-bf16", "vllm-w8a8")
SHAPE = "llama-3.2-1b"
LLAMA_Q4_0, GPT_OSS = f"synth:{SHAPE}:q4_0", "synth:gpt-oss-20b:mxfp4_moe:4"
SLOTS = (1, 4, 8, 16, 32)
# What llama.cpp and vLLM offer; first what is usual. Builds are a choice, too.
LLAMA_CHOICES: dict[str, tuple[object, ...]] = {
    "chunk": (512, 128), "unified": (False, True), "kv": ("f16", "q8_0"), "flash": (True, False)
}
VLLM_CHOICES: dict[str, tuple[object, ...]] = {"zentorch": (True, False), "max_num_batched_tokens": (512, 2048)}


@dataclass
class Bench:
    """The options, and what came of the groups so far."""

    args: argparse.Namespace
    console: Console
    steps: list[StepResult] = field(default_factory=list)
    serving: list[ServingResult] = field(default_factory=list)
    peers: dict[str, object] = field(default_factory=dict)  # versions, by side
    tried: dict[str, object] = field(default_factory=dict)  # settings, by group
    skipped: dict[str, str] = field(default_factory=dict)  # reasons, by group
    running: list[Process] = field(default_factory=list)

    def kforge(self, path: Path, kv: str = DEFAULT_KV) -> Process:
        opening: dict[str, object] = {"open": str(path), "threads": self.args.threads, "kernels": self.args.kernels,
                                      "kv": kv}
        return self._opened(Process("kforge", Path(sys.executable), "kforge_driver.py", opening))

    def llama_cpp(self, name: str, python: Path, path: Path, settings: dict[str, object]) -> Process:
        opening = {"open": str(path), "threads": self.args.threads, "settings": settings}
        return self._opened(Process(name, python, "llama_cpp_driver.py", opening))

    def builds(self) -> dict[str, Path]:
        given = dict(item.split("=", 1) for item in self.args.peer_python)
        if not (found := {n: Path(p) for n, p in given.items() if n != "vllm"} or llama_cpp(self.console)):
            raise Refused("llama.cpp cannot be built: neither g++ nor clang++-19 is here")
        return found

    def _opened(self, process: Process) -> Process:
        self.peers[process.name] = process.opened
        self.running.append(process)
        return process

    # Groups

    def run(self, group: str) -> None:
        """One that cannot be run is skipped, with the reason."""
        self.console.rule(group)
        groups: dict[str, Callable[[], None]] = {
            "steps": self.of_models,
            "depth": self.depth,
            "moe": lambda: self.of_steps("moe", GPT_OSS, moe_rows(self.args.quick)),
            "serving": self.of_serving,
        }
        try:
            groups.get(group, lambda: self.of_vllm(group))()
        except (Refused, KforgeError) as reason:
            self.skipped[group] = str(reason)
            self.console.print(f"{group} is skipped: {reason}", markup=False)
        finally:
            for process in self.running:
                process.close()
            self.running.clear()

    def figures(self) -> dict[str, object]:
        return {
            "threads": self.args.threads,
            "peers": self.peers,
            "results": [asdict(r) for r in self.steps],
            "serving": [asdict(r) for r in self.serving],
            "settings": self.tried,
            "skipped": self.skipped,
        }

    def of_models(self) -> None:
        for name in self.args.models.split(","):
            self.of_steps("steps", name, rows_for(models.gguf(name), self.args.quick))

    def depth(self) -> None:
        """So far behind a prompt attention is most of the time: plain attention is tried, too, and a cache of 8 bits.

        llama.cpp may keep either kind of cache in the second row: what it is fastest with counts.
        """
        plain: dict[str, object] = {"flash": False}
        floats = {"": {}, ", plain attention": plain}
        self.of_steps("depth", LLAMA_Q4_0, depth_rows(self.args.quick), floats)
        self.of_steps("depth", LLAMA_Q4_0, depth_rows(self.args.quick, ", int8 cache"),
                      {**floats, ", q8_0 cache": {"kv": "q8_0"}}, "i8")

    def of_steps(
        self, group: str, name: str, rows: list[Row], settings: dict[str, dict[str, object]] | None = None,
        kv: str = DEFAULT_KV,
    ) -> None:
        """``settings`` of llama.cpp by what is added to the side's name; ``kv``: kforge's cache."""
        path = models.gguf(name)
        wanted = [r for r in rows if not self.args.rows or r.name in self.args.rows.split(",")]
        sides = [self.kforge(path, kv)]
        for added, chosen in (settings or {"": {}}).items():
            sides += [self.llama_cpp(f"{n}{added}", python, path, chosen) for n, python in self.builds().items()]
        rounds = self.args.rounds or (3 if self.args.quick else 9)
        self.steps += compare(group, path, wanted, sides, rounds, self.args.threads, self.console)
        for side in sides:
            side.close()  # the next model needs the memory

    def of_serving(self) -> None:
        path = models.gguf(LLAMA_Q4_0)
        builds = self.builds()

        def start(settings: dict[str, object]) -> Process:
            rest = {k: v for k, v in settings.items() if k != "build"}
            return self.llama_cpp("llama.cpp", builds[str(settings["build"])], path, rest)

        self.of_traces("serving", path, start, {"build": tuple(builds), **LLAMA_CHOICES})

    def of_vllm(self, group: str) -> None:
        fmt = group.removeprefix("vllm-")
        given = dict(item.split("=", 1) for item in self.args.folder)
        path = Path(given[fmt]) if fmt in given else models.folder(SHAPE, fmt)
        pythons = dict(item.split("=", 1) for item in self.args.peer_python)
        python = Path(pythons["vllm"]) if "vllm" in pythons else install_vllm(self.console)
        traces = self.traces(models.vocabulary(path))
        tokens = max(len(a.prompt) + a.output for t in traces for a in t.arrivals)
        slots = max(t.slots for t in traces)

        def start(settings: dict[str, object]) -> Process:
            opening = {"open": str(path), "threads": self.args.threads, "slots": slots, "tokens": tokens,
                       "settings": settings}
            variables = vllm_variables(python, self.args.threads)
            return self._opened(Process(f"vLLM {fmt}", python, "vllm_driver.py", opening, variables))

        self.of_traces(group, path, start, VLLM_CHOICES)

    def traces(self, vocab: int) -> list[Trace]:
        """The full ones, then the mixed one."""
        count = 8 if self.args.quick else 24
        return [*(full(vocab, slots) for slots in SLOTS), mixed(vocab, count=count)]

    def of_traces(
        self, group: str, path: Path, start: Callable[[dict[str, object]], Process], choices: dict[str, tuple]
    ) -> None:
        vocab = models.vocabulary(path)
        *traces, last = self.traces(vocab)
        wanted = [t for t in traces if not self.args.rows or t.name in self.args.rows.split(",")]
        trial = full(vocab, 12, 1.0)
        usual = {name: values[:1] for name, values in choices.items()}
        sides: list[Settled] = []
        try:
            sides.append(settle(lambda _: self.kforge(path), {}, trial, self.console))
        except Refused as reason:
            self.console.print(f"{group} has no row of kforge: {reason}", markup=False)
        sides.append(settle(start, usual if self.args.quick else choices, trial, self.console))
        self.tried[group] = sides[-1].tried
        rounds = self.args.rounds or (1 if self.args.quick else 3)
        self.serving += serve(group, path.name.removesuffix(".gguf"), wanted, last, sides, rounds, self.console)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(GROUPS), help="groups of rows, comma separated")
    parser.add_argument("--rows", default="", help="only rows with these names, comma separated; mixed rows always run")
    parser.add_argument("--models", default=f"smollm2-135m,{LLAMA_Q4_0}", help="of the group steps")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default: 9 of steps, 3 of continuous batching)")
    parser.add_argument("--quick", action="store_true", help="few rounds, short runs, peers with their usual settings")
    parser.add_argument("--threads", type=int, default=load_target("host").cores)
    parser.add_argument("--kernels", default="tuned", choices=("default", "tuned"))
    parser.add_argument("--folder", action="append", default=[], metavar="FORMAT=FOLDER",
                        help="a model in bf16 or w8a8 for vLLM and kforge instead of random weights")
    parser.add_argument("--peer-python", action="append", default=[], metavar="NAME=PYTHON",
                        help="use this environment instead of making one: vllm=... is vLLM's, others are llama.cpp's")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - set(GROUPS):
        parser.error(f"unknown group {', '.join(sorted(unknown))} (known: {', '.join(GROUPS)})")
    bench = Bench(args, Console())
    for group in GROUPS:
        if group in args.only.split(","):
            bench.run(group)
            write_json(args.json, "bench/peers.py", bench.figures())  # of hours of work nothing is lost
    if bench.steps:
        print_steps(bench.steps, bench.console)
    if bench.serving:
        print_serving(bench.serving, bench.console)


if __name__ == "__main__":
    main()
