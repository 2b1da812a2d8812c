"""``kforge export``: results and kernels in other tools' formats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kforge.core.errors import KforgeError

if TYPE_CHECKING:
    from kforge.interchange.moe_names import Style
    from kforge.interchange.recordings import Recorded
    from kforge.tuner.run_view import RunView

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Search results as T4 and Kernel Tuner files, parameters for vLLM and SGLang, kernels for Hugging Face.",
)

Run = Annotated[str, typer.Argument(help="A run's folder, its id, or the beginning of its id; 'last' for the newest.")]
Folder = Annotated[Path, typer.Argument(help="A folder that does not exist, or is empty.")]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Where run folders are.")]
Operator = Annotated[str, typer.Option(help="Only this operator.")]
Bucket = Annotated[str, typer.Option(help="Only this point of the dynamic axes, such as M=8.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def t4(
    run: Run, folder: Folder, operator: Operator = "", bucket: Bucket = "", runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """A run's trials as T4 results, a file for each problem and bucket; failures with their class."""
    from kforge.interchange.recordings import file_names
    from kforge.interchange.t4 import document

    found = _recorded(run, runs_dir, operator, bucket)
    names = [f"{name}.json" for name in file_names(found.spaces)]
    _write(folder, dict(zip(names, map(document, found.spaces), strict=True)), found.left_out, as_json)


@app.command("kernel-tuner")
def kernel_tuner(
    run: Run, folder: Folder, operator: Operator = "", bucket: Bucket = "", runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """A run's trials as Kernel Tuner's cache files, for its simulation mode: a file for each problem, bucket and
    template, because there every point has a value of every parameter."""
    from kforge.interchange.kernel_tuner import document
    from kforge.interchange.recordings import by_template, file_names

    found = _recorded(run, runs_dir, operator, bucket)
    spaces = [part for space in found.spaces for part in by_template(space)]
    names = [f"{name}.json" for name in file_names(spaces)]
    _write(folder, dict(zip(names, map(document, spaces), strict=True)), found.left_out, as_json)


@app.command("vllm-moe")
def vllm_moe(folder: Folder, as_json: Json = False) -> None:
    """Tuned Triton kernels for layers of experts as vLLM's tables (VLLM_TUNED_CONFIG_FOLDER)."""
    from kforge.interchange.moe_names import Style

    _moe(folder, Style.VLLM, as_json)


@app.command("sglang-moe")
def sglang_moe(folder: Folder, as_json: Json = False) -> None:
    """Tuned Triton kernels for layers of experts as SGLang's tables (SGLANG_MOE_CONFIG_DIR, below configs/)."""
    from kforge.interchange.moe_names import Style

    _moe(folder, Style.SGLANG, as_json)


@app.command("hf-kernels")
def hf_kernels(
    folder: Folder,
    wanted: Annotated[
        list[str], typer.Argument(help="Operators, or problems such as 'silu_mul(I=1536)', for their default kernel.")
    ],
    name: Annotated[str, typer.Option(help="The package's name: lower-case letters, digits and dashes.")] = "kforge",
    version: Annotated[int, typer.Option(min=1, help="The package's version.")] = 1,
    repository: Annotated[str, typer.Option(help="Write kernels.lock for this repository of the Hub.")] = "",
    commit: Annotated[str, typer.Option(help="At this commit, which the Hub says after an upload.")] = "",
    as_json: Json = False,
) -> None:
    """Promoted kernels as a build folder of Hugging Face's kernels, which loads it without kforge."""
    from kforge.core.paths import store_path
    from kforge.core.words import counted
    from kforge.interchange.hf_kernels import Lock, export, problems
    from kforge.registry.ask import open_snapshot
    from kforge.registry.store import Store
    from kforge.targets.files import load_target

    if bool(repository) != bool(commit):
        raise KforgeError("a lock names a repository and a commit: give both --repository and --commit, or none")
    target, snapshot = load_target("host"), open_snapshot()
    lock = Lock(repository, commit) if repository else None
    found = problems(wanted, snapshot, target)
    done = export(folder, found, name, version, target, snapshot, Store(store_path()), lock)
    if as_json:
        told = {"folder": str(folder), "variant": done.variant, "functions": list(done.functions),
                "kernels": done.kernels, "left_out": list(done.left_out)}
        print(json.dumps(told, indent=1))
        return
    print(f"{folder}: {counted(len(done.functions), 'function')}, {counted(done.kernels, 'kernel')}, {done.variant}")
    for function in done.functions:
        print(f"  {function}")
    for sentence in done.left_out:
        print(f"  left out: {sentence}")


def _moe(folder: Path, style: Style, as_json: bool) -> None:
    from kforge.interchange.moe_seeds import tables_of
    from kforge.interchange.moe_tables import place
    from kforge.registry.ask import open_snapshot

    found = tables_of(open_snapshot().kernels, style)
    if not found.tables:
        why = f": {'; '.join(found.left_out)}" if found.left_out else ""
        raise KforgeError(f"the registry has no tuned Triton kernel for moe_linear that {style} could use{why}")
    try:
        files = {str(place(table, style)): table.text(style) for table in found.tables}
    except ValueError as error:
        raise KforgeError(f"cannot write a table for {style}: {error}") from None
    _write(folder, files, found.left_out, as_json)


def _recorded(run: str, runs_dir: Path, operator: str, bucket: str) -> Recorded:
    from kforge.cli.runs import find
    from kforge.interchange.recordings import of_run
    from kforge.tuner.run_view import view_of

    view = view_of(find(run, runs_dir))
    found = of_run(view, operator, bucket, _device(view))
    if not found.spaces:
        points = ", ".join(sorted({t.bucket for t in view.tried})[:8])
        what = f"nothing there; it tried {points}" if points else "no trial at all"
        raise KforgeError(f"{view.path} holds {what}")
    return found


def _device(view: RunView) -> str:
    """The model of the run's target, where that is still the same; "" otherwise."""
    from kforge.targets.files import list_targets, load_target

    target = load_target(view.target) if view.target in list_targets() else None
    return target.model if target is not None and target.identity == view.identity else ""


def _write(folder: Path, files: dict[str, str], left_out: Sequence[str], as_json: bool) -> None:
    from kforge.core.words import counted
    from kforge.interchange.folders import write

    write(folder, {Path(name): text.encode() for name, text in files.items()})
    if as_json:
        print(json.dumps({"folder": str(folder), "files": list(files), "left_out": list(left_out)}, indent=1))
        return
    print(f"{folder}: {counted(len(files), 'file')}")
    for name in files:
        print(f"  {name}")
    for sentence in left_out:
        print(f"  left out: {sentence}")
