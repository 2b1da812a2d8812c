"""``kforge model``: get, synth, show."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kforge.models.model import Model

app = typer.Typer(no_args_is_help=True, help="Fetch, synthesise and show models.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def get(name: Annotated[str, typer.Argument(help="Name of a known model.")] = "smollm2-135m") -> None:
    """Fetch a known model into the cache, check it, and print its path."""
    from kforge.models import fetch

    print(fetch.get(name))


@app.command()
def synth(
    name: Annotated[
        str,
        typer.Argument(help="Shape: llama-3.2-1b, llama-3.2-3b, llama-3.1-8b, qwen2.5-0.5b, qwen3-0.6b, "
                            "qwen3-30b-a3b or gpt-oss-20b."),
    ],
    file_format: Annotated[
        str, typer.Option("--format", help="q4_0, q4_1, q8_0, q4_k_m, mxfp4_moe, bf16, f16, or w8a8 (a folder).")
    ] = "q4_0",
    layers: Annotated[int | None, typer.Option(help="Write only this many layers.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The file or folder to write; the cache by default.")] = None,
) -> None:
    """Write a GGUF file with random weights, typed as llama.cpp's quantiser would, or a W8A8 folder; print its path."""
    from kforge.core.paths import cache_dir
    from kforge.models.synth import synth as write
    from kforge.models.synth_plan import plan

    what = plan(name, file_format, layers)
    cut = f"-{layers}l" if layers is not None else ""
    path = out or cache_dir() / "models" / f"{what.config.name}{cut}-{what.file_format}{what.file_format.suffix}"
    if out is None and path.is_dir():
        shutil.rmtree(path)  # the cache's own, written anew as a file would be
    write(name, file_format, path, layers, seed)
    print(path)


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="A file, a folder, or the name of a known model.")],
    as_json: AsJson = False,
) -> None:
    """What a model file holds: shape, rotary embedding, formats, tokenizer."""
    from kforge.models import load

    facts = _facts(load(model))
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        print(f"{key:<{width}}  {value}")


def _facts(model: Model) -> dict[str, str | int | float]:
    from kforge.models.roles import Matrix, roles_of, shape_of

    c = model.config
    formats: Counter[str] = Counter()
    weights, bits = 0, 0.0
    for ref in roles_of(c):
        if isinstance(ref.role, Matrix):
            format, size = model.format(ref.role, ref.layer), math.prod(shape_of(c, ref.role))
            formats[format.value] += 1
            weights += size
            bits += size * format.traits.bits_per_weight
    windows = " and ".join(str(w) if w else "all" for w in c.windows)
    scaling = "factors from the file" if c.rope.divisors else c.rope.scaling.value
    return {
        "path": str(model.path), "name": c.name, "family": c.family.value, "layers": c.layers, "hidden": c.hidden,
        **({"experts": f"{c.experts.count}, {c.experts.per_token} a token"} if c.experts else {}),
        "heads": c.heads, "kv heads": c.kv_heads, "head dim": c.head_dim, "intermediate": c.intermediate,
        "vocabulary": c.vocab, "context length": c.context_length, "rms eps": c.rms_eps,
        "rope": f"theta {c.rope.theta:g}, style {c.rope.style}, scaling {scaling}",
        "head": "tied to the embedding" if c.tied_head else "a matrix of its own",
        **({"attention": f"{windows} positions in turn{', sinks' * c.sinks}"} if windows else {}),
        "weights": weights, "weight bytes": int(bits / 8),
        "formats": ", ".join(f"{n} x {name}" for name, n in formats.most_common()),
        "kv bytes per token (16 bits)": c.kv_bytes_per_token("f16"),
        "bos, stop ids": f"{c.bos_id}, {list(c.stop_ids)}",
        "chat template": "yes" if c.chat_template else "no",
    }
