"""``kforge serve``: a model behind OpenAI's HTTP interface."""

from __future__ import annotations

from typing import Annotated

import typer

from kforge.cli.generate import Act, Isolate, Kernels, Kv, KvTokens, ModelArgument, Threads
from kforge.core.defaults import DEFAULT_ACT, DEFAULT_KV, DEFAULT_KV_TOKENS, SERVING_PREFILL_TOKENS


def serve(
    model: ModelArgument,
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback are open to the network.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one, printed.")] = 8000,
    kernels: Kernels = "tuned",
    threads: Threads = None,
    kv_tokens: KvTokens = DEFAULT_KV_TOKENS,
    kv: Kv = DEFAULT_KV,
    act: Act = DEFAULT_ACT,
    max_sequences: Annotated[int, typer.Option(min=1, help="Answers that run at once.")] = 64,
    max_queue: Annotated[int, typer.Option(min=0, help="Answers that may wait beside them; more get a 429.")] = 256,
    speculate: Annotated[
        str | None,
        typer.Option(help="Guess tokens, where that pays. ngram: look them up in prompt and answer; draft: ask "
                          "--draft-model."),
    ] = None,
    draft_model: Annotated[
        str | None, typer.Option(help="A smaller model with the same vocabulary, for --speculate draft.")
    ] = None,
    relaxed_sampling: Annotated[
        bool,
        typer.Option("--relaxed-sampling", help="Accept more guesses for answers that sample: the same distribution, "
                                                "but not the same answer for the same seed."),
    ] = False,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that answers have to end when the server ends.")] = 30.0,
    isolate: Isolate = None,
) -> None:
    """Serve a model to OpenAI's clients, who must show the key in KFORGE_API_KEY if it is set; see docs/server.md."""
    from kforge.cli.generate import open_model, usable_kernels
    from kforge.engine.engine import Engine
    from kforge.server.serving import Options, served_name
    from kforge.server.serving import serve as run

    opened = open_model(model)
    draft = None if draft_model is None else open_model(draft_model)
    chosen = usable_kernels(kernels)

    def make_engine() -> Engine:
        return Engine(opened, chosen, threads=threads, kv=kv, act=act, kv_tokens=kv_tokens,
                      max_sequences=max_sequences, isolate=isolate,
                      max_prefill_tokens_per_step=SERVING_PREFILL_TOKENS, speculate=speculate,
                      draft_model=draft, relaxed_sampling=relaxed_sampling)

    run(served_name(model), opened, make_engine, Options(host, port, max_sequences + max_queue, grace))
