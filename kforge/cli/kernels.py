"""``kforge kernels``: the kernel database."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from kforge.cli.generate import Act, Kv
from kforge.core.defaults import DEFAULT_ACT, DEFAULT_KV, STEP_TOKENS
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord, KernelState

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="The kernel database.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_FIGURES = ("search_seconds", "search_default_seconds", "gain", "gain_lower")
Name = Annotated[str, typer.Argument(help="Number, or the beginning of a candidate's or artifact's hash.")]


@app.command("list")
def list_kernels(
    operator: Annotated[str, typer.Option(help="Only this operator.")] = "",
    state: Annotated[
        str, typer.Option(help="Only this state: checked, accepted, promoted, retired or quarantined.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Every kernel with its state and gain."""
    from kforge.cli.nearest import require_operator
    from kforge.core.words import counted

    if state and state not in {s.value for s in KernelState}:
        raise KforgeError(f"--state {state!r} is none of {', '.join(s.value for s in KernelState)}")
    known = _kernels()
    if operator:
        require_operator(operator, also=[k.problem.operator for k in known])
    found = [k for k in known if operator in ("", k.problem.operator) and state in ("", k.state)]
    if as_json:
        print(json.dumps([_document(k) for k in found], indent=1))
        return
    from kforge.cli import tables

    table = tables.folding("no", "state", "problem", "at", "target", "gain", "hash", whole=("no", "hash"),
                           title=counted(len(found), "kernel"))
    table.caption = "gain: over the default kernel, as judged"
    for k in found:
        gain = "not timed" if k.state is KernelState.CHECKED else f"{100 * k.gain:+.1f} %"
        table.add_row(str(k.id), k.state, k.problem.key, k.bucket_key, k.target_name, gain, k.candidate_hash)
    tables.show(table)


@app.command()
def show(
    name: Name,
    source: Annotated[bool, typer.Option("--source", help="Print its source too.")] = False,
    as_json: Json = False,
) -> None:
    """One kernel: provenance, history, and its source."""
    from kforge.registry.database import Registry

    kernel = _one(name)
    with Registry.open() as registry:
        events = registry.events(kernel.id)
        history = [{"state": e.state, "reason": e.reason, "at": e.created, "evidence": e.evidence} for e in events]
        text = registry.store.get(kernel.source_hash).decode() if source else ""
    if as_json:
        print(json.dumps({**_document(kernel), "history": history, **({"source": text} if source else {})}, indent=1))
        return
    for field, value in _told(kernel).items():
        print(f"{field:>14}: {value}")
    for event in events:
        print(f"{event.created}: {event.state}: {event.reason}{_trusted(event.evidence)}")
    if source:
        print(text)


@app.command()
def verify(as_json: Json = False) -> None:
    """Hash the files of all kernels in use; a damaged one is quarantined, the default serves. Exit code 1 if any is."""
    from kforge.core.words import counted
    from kforge.registry.ask import open_snapshot
    from kforge.registry.database import Registry
    from kforge.registry.maintenance import verify as run_verify

    with Registry.open() as registry:
        result = run_verify(registry, open_snapshot())
    if as_json:
        print(
            json.dumps(
                {
                    "kernels": result.kernels,
                    "files": result.files,
                    "unreferenced": result.unreferenced,
                    "damaged": [{"kernel": d.kernel_id, "hash": d.digest, "reason": d.reason} for d in result.damaged],
                },
                indent=1,
            )
        )
    else:
        for damage in result.damaged:
            print(f"kernel {damage.kernel_id}: {damage.digest[:16]}: {damage.reason}; quarantined")
        print(
            f"{counted(result.kernels, 'kernel')} in use, {counted(result.files, 'file')}: "
            f"{'sound' if result.sound else 'damaged'}; "
            f"{counted(result.unreferenced, 'file')} that nothing refers to (kforge kernels gc)"
        )
    if not result.sound:
        raise typer.Exit(1)


@app.command()
def rm(name: Name, reason: Annotated[str, typer.Option(help="Why; kept in its history.")] = "removed by hand") -> None:
    """Stop serving a kernel. Its history stays."""
    from kforge.registry.database import Registry

    kernel = _one(name)
    with Registry.open() as registry:
        registry.set_state(kernel.id, KernelState.RETIRED, reason)
    print(f"kernel {kernel.id} ({kernel.candidate_hash}) is retired; kforge kernels gc frees its files")


@app.command()
def promote(
    name: Name,
    model: Annotated[str, typer.Option(help="A model whose steps call it: its name, a GGUF file or a folder.")],
    batch: Annotated[str, typer.Option(help="Decode batches to run.")] = "1,8",
    context: Annotated[int, typer.Option(help="Context length of the decode batches.")] = 512,
    prefill: Annotated[int, typer.Option(help="Tokens of a prefill chunk; 0: none.")] = 512,
    threads: Annotated[int, typer.Option(help="Threads; 0: all cores.")] = 0,
    act: Act = DEFAULT_ACT,
    kv: Kv = DEFAULT_KV,
    runs_dir: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Run a model's engine with and without an accepted kernel; it serves when the engine is not slower and says the
    same. Exit code 1 when it is not promoted."""
    from kforge.cli.numbers import numbers
    from kforge.cli.watching import watcher
    from kforge.models import load
    from kforge.registry.database import Registry
    from kforge.targets.files import load_target
    from kforge.tuner.journal import RunFolder
    from kforge.tuner.options import TuneOptions
    from kforge.tuner.promoting import promote as run_promote
    from kforge.tuner.promoting import refusal

    kernel, target = _one(name), load_target("host")
    if why := refusal(kernel, target):
        raise KforgeError(f"kernel {kernel.id}: {why}")
    options = TuneOptions(model=model, batches=numbers("--batch", batch, STEP_TOKENS), context=context, prefill=prefill,
                          threads=threads or target.cores, kv=kv, act=act)
    opened = load(model)
    with (Registry.open() as registry, RunFolder.create(runs_dir, f"{Path(model).stem}-promote") as folder,
          watcher(quiet=as_json) as watching):
        done = run_promote(kernel, opened, options, folder, registry, target, watching)
    if as_json:
        verdicts = [{**dataclasses.asdict(v), "promotes": v.promotes} for v in done.verdicts]
        print(json.dumps({"kernel": done.kernel, "state": done.state.value, "reason": done.reason, "run": folder.id,
                          "engine": verdicts}, indent=1))
    else:
        print(f"kernel {done.kernel} is {done.state}: {done.reason}")
    if done.state is not KernelState.PROMOTED:
        raise typer.Exit(1)


@app.command()
def gc(dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False) -> None:
    """Remove files that no checked, accepted or promoted kernel names."""
    from kforge.core.words import counted
    from kforge.registry.database import Registry
    from kforge.registry.maintenance import collect

    with Registry.open() as registry:
        result = collect(registry, dry_run=dry_run)
    print(f"{counted(result.files, 'file')}, {result.bytes} bytes {'would be ' if dry_run else ''}removed")


def _kernels() -> tuple[KernelRecord, ...]:
    from kforge.registry.ask import open_snapshot

    return open_snapshot().kernels


def _one(name: str) -> KernelRecord:
    from kforge.registry.naming import kernel_named

    return kernel_named(name, _kernels())


def _trusted(evidence: dict) -> str:
    """A remark where the kernel was accepted by the user's word instead of a whole sandbox."""
    sandbox = evidence.get("sandbox", {})
    if not sandbox.get("trusted"):
        return ""
    return f" (its candidate was trusted: {', '.join(sandbox['missing'])} did not hold in the sandbox)"


def _told(k: KernelRecord) -> dict[str, str]:
    """Its facts for a reader. What was judged stands before what the search timed, which only ranked."""
    document = {name: value for name, value in _document(k).items() if name not in _FIGURES}
    facts = {name: _words(value) for name, value in document.items()}
    if k.state is KernelState.CHECKED:
        return {**facts, "figures": "none: built and checked without its device, so nothing was timed"}
    facts["gain"] = (
        f"{100 * k.gain:+.1f} % over the default, at least {100 * k.gain_lower:+.1f} %: judged in interleaved pairs, "
        "the figure that counts"
    )
    facts["search"] = (
        f"{1e6 * k.seconds:.1f} us a call, the default {1e6 * k.default_seconds:.1f} us: each timed at its own moment, "
        "which only ranks candidates"
    )
    return facts


def _words(value: object) -> str:
    return " ".join(f"{name}={each}" for name, each in value.items()) if isinstance(value, dict) else str(value)


def _document(k: KernelRecord) -> dict[str, object]:
    return {
        "number": k.id,
        "state": k.state.value,
        "problem": k.problem.key,
        "bucket": dict(k.bucket),
        "target": k.target_name,
        "candidate": k.candidate_hash,
        "artifact": k.artifact_hash,
        "source": k.source_hash,
        "template": k.template,
        "params": dict(k.params),
        "numerics": k.numerics.value,
        "layouts": {n: layout.key for n, layout in k.layouts},
        "compiler": k.compiler,
        "search_seconds": k.seconds,
        "search_default_seconds": k.default_seconds,
        "gain": k.gain,
        "gain_lower": k.gain_lower,
        "proposer": k.proposer,
        "run": k.run,
        "created": k.created,
    }
