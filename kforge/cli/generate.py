"""``kforge generate`` and ``kforge chat``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kforge.core.defaults import DEFAULT_ACT, DEFAULT_KV, DEFAULT_KV_TOKENS
from kforge.core.errors import KforgeError

if TYPE_CHECKING:
    from kforge.engine.engine import Engine
    from kforge.engine.kernel_set import KernelSet
    from kforge.engine.request import SamplingParams
    from kforge.models.model import Model

ModelArgument = Annotated[str, typer.Argument(help="Model file or folder, or a name that 'kforge model get' knows.")]
Kernels = Annotated[str, typer.Option(help="none (torch), default (shipped templates) or tuned (registry).")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads; one per core by default.")]
MaxTokens = Annotated[int, typer.Option(help="Tokens to generate at most.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k most probable tokens; 0: all.")]
TopP = Annotated[float, typer.Option(help="Keep the fewest tokens whose mass reaches this; 1: all.")]
MinP = Annotated[float, typer.Option(help="Keep tokens at least this probable relative to the best; 0: all.")]
Seed = Annotated[int, typer.Option(help="Noise of this request; the same seed gives the same text in any batch.")]
KvTokens = Annotated[int, typer.Option(min=1, help="Positions that the KV cache holds; windowed layers need fewer.")]
Kv = Annotated[str, typer.Option(help="Element type of the KV cache: f16, bf16, f32 or i8 (half the memory of f16).")]
Act = Annotated[str, typer.Option(help="Activations: a8 (int8 for integer weights), bf16 (and bf16 for bf16), f32.")]
Target = Annotated[
    str, typer.Option(help="Whose kernels run: host, or opencl (this machine's OpenCL device, with the processor's "
                      "kernels where there is no template in its language).")
]
Isolate = Annotated[
    bool | None,
    typer.Option("--isolate/--no-isolate", help="Kernels in a locked-down process; by default those from elsewhere."),
]


def generate(
    model: ModelArgument,
    prompt: Annotated[str, typer.Option("-p", "--prompt", help="Text to continue; - reads standard input.")],
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    seed: Seed = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be repeated.")] = None,
    chat_template: Annotated[bool, typer.Option("--chat", help="Put the prompt into the chat template.")] = False,
    kernels: Kernels = "tuned",
    threads: Threads = None,
    kv_tokens: KvTokens = DEFAULT_KV_TOKENS,
    kv: Kv = DEFAULT_KV,
    act: Act = DEFAULT_ACT,
    isolate: Isolate = None,
    target: Target = "host",
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Print as tokens come.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document: ids, text, kernels.")] = False,
) -> None:
    """Continue a prompt."""
    from kforge.models.chat import Message

    text = sys.stdin.read() if prompt == "-" else prompt
    params = _params(max_tokens, temperature, top_k, top_p, min_p, seed, tuple(stop or ()))
    engine = open_engine(model, kernels, threads, kv_tokens, kv, act, isolate, target)
    tokenizer = engine.model.tokenizer
    ids = tokenizer.encode_chat([Message("user", text)]) if chat_template else tokenizer.encode(text)
    if as_json:
        done = engine.generate([ids], params)[0]
        stats = engine.stats
        print(json.dumps({
            "prompt_tokens": ids, "tokens": done.tokens, "text": done.text, "finish": done.finish,
            "kernels": [vars(use) for use in engine.kernels_used()], "isolated": engine.isolated,
            "stats": {"steps": stats.steps, "seconds": stats.seconds, "python_share": stats.python_share},
        }, indent=1))
        return
    if stream:
        _print_stream(engine, ids, params)
    else:
        print(engine.generate([ids], params)[0].text)
    print(_speed(engine), file=sys.stderr)


def chat(
    model: ModelArgument,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    seed: Seed = 0,
    kernels: Kernels = "tuned",
    threads: Threads = None,
    kv_tokens: KvTokens = DEFAULT_KV_TOKENS,
    kv: Kv = DEFAULT_KV,
    act: Act = DEFAULT_ACT,
    isolate: Isolate = None,
) -> None:
    """Talk with a model; an empty line or Ctrl-D ends."""
    from kforge.models.chat import Message

    params = _params(max_tokens, temperature, top_k, top_p, min_p, seed, ())
    engine = open_engine(model, kernels, threads, kv_tokens, kv, act, isolate)
    messages = [Message("system", system)] if system else []
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            break
        if not line.strip():
            break
        messages.append(Message("user", line))
        try:
            answer = _print_stream(engine, engine.model.tokenizer.encode_chat(messages), params)
        except KeyboardInterrupt:  # ends the answer, not the conversation
            print()
            messages.pop()
            continue
        messages.append(Message("assistant", answer))
    print(_speed(engine), file=sys.stderr)


def open_engine(model: str, kernels: str, threads: int | None, kv_tokens: int, kv: str, act: str,
                isolate: bool | None, target: str = "host") -> Engine:
    """The engine for a model named on the command line. Without a compiler it says so once and runs on torch."""
    from kforge.engine.engine import Engine

    usable: str | KernelSet = usable_kernels(kernels)
    if target != "host" and usable != "none":
        usable = _kernels_on(kernels, target)
    return Engine(open_model(model), usable, threads=threads, kv_tokens=kv_tokens, kv=kv, act=act, isolate=isolate)


def _kernels_on(kernels: str, target: str) -> KernelSet:
    """The set of this name on another target of this machine. Raises KforgeError for one that is not at hand."""
    from kforge.backends.targets import target_called, why_not_here
    from kforge.engine.kernel_set import named

    found = target_called(target)
    if why := why_not_here(found):
        raise KforgeError(f"target {target}: kernels can only be run where they were built for, and {why}")
    return named(kernels, found)


def open_model(name: str) -> Model:
    """A file or folder by path, or a model by the name that ``kforge model get`` knows."""
    from kforge.models import load

    return load(name)


def usable_kernels(kernels: str) -> str:
    """``kernels``, or "none" with one sentence on standard error where no C++ compiler is installed."""
    from kforge.native import find_compilers

    if kernels not in ("none", "default", "tuned"):
        raise KforgeError(f"Unknown kernels '{kernels}': use none, default or tuned.")
    if kernels != "none" and not find_compilers():
        print("kforge: no C++ compiler found, so the engine runs on torch; install g++ or clang for kernels.",
              file=sys.stderr)
        return "none"
    return kernels


def _params(max_tokens: int, temperature: float, top_k: int, top_p: float, min_p: float, seed: int,
            stop: tuple[str, ...]) -> SamplingParams:
    from kforge.engine.request import SamplingParams

    return SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, stop=stop,
                          max_tokens=max_tokens)


def _print_stream(engine: Engine, ids: list[int], params: SamplingParams) -> str:
    pieces = []
    for output in engine.stream(ids, params):
        pieces.append(output.text)
        print(output.text, end="", flush=True)
    print()
    return "".join(pieces)


def _speed(engine: Engine) -> str:
    stats = engine.stats
    if not stats.seconds:
        return "nothing was generated"
    return (f"{stats.generated_tokens} tokens, {stats.generated_tokens / stats.seconds:.1f} tokens/s with the prompt, "
            f"Python {100 * stats.python_share:.1f} % of the time"
            f"{', kernels in a locked-down process' if engine.isolated else ''}")
