"""``kforge operator``: operators made of functions from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kforge.core.errors import KforgeError

if TYPE_CHECKING:
    from kforge.operators.graph import Shape, Step
    from kforge.operators.imported import Imported

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Operators made of functions from outside: import, list, show, rm.",
)

_MOST_SECONDS = 86_400

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(help="An imported operator's name.")]


@app.command("import")
def import_(
    source: Annotated[str, typer.Argument(metavar="FILE[:FUNCTION]", help="A problem file (Model, get_inputs, "
                                          "get_init_inputs), or a function of a Python file.")],
    name: Annotated[str, typer.Option(help="The operator's name; by default the file's or the function's.")] = "",
    inputs: Annotated[str, typer.Option(help="Example inputs, such as x=f32[128,512],y=f32[512], where the file has no "
                                        "get_inputs().")] = "",
    scale: Annotated[str, typer.Option(help="Sizes: auto halves them until they fit this machine, none keeps them, a "
                                       "power of two divides by it.")] = "auto",
    seconds: Annotated[float, typer.Option(help="How long it may take.")] = 180.0,
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of an operator of this name.")] = False,
    as_json: Json = False,
) -> None:
    """Make an operator of a function; the file runs confined, without network and files."""
    from kforge.importing.importer import Request, import_operator

    path, colon, function = source.rpartition(":")
    if not colon:
        path, function = source, ""
    if not 0 < seconds <= _MOST_SECONDS:
        raise KforgeError(f"--seconds {seconds:g}: an import takes more than 0 and at most {_MOST_SECONDS} s")
    made = import_operator(Request(Path(path), function, name, inputs, scale, seconds, replace))
    if as_json:
        print(json.dumps(_document(made), indent=1))
        return
    _print_head(made)
    print(f"kforge operator show {made.name} prints what it computes")
    if not made.unfit:
        print(f"kforge tune {made.name} finds the fastest kernel for it")


@app.command("list")
def list_imported(as_json: Json = False) -> None:
    """Every imported operator."""
    from kforge.operators import imported_names

    rows: list[dict[str, Any]] = []
    for name in imported_names():
        try:
            rows.append(_brief(_imported(name)))
        except KforgeError as error:
            rows.append({"name": name, "error": str(error)})
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    from kforge.cli import tables
    from kforge.core.words import counted

    table = tables.folding("name", "from", "batch", "a call", "said of it", whole=("name",), right=("batch",),
                           title=counted(len(rows), "imported operator"))
    for row in rows:
        if "error" in row:
            table.add_row(row["name"], "unreadable", "", "", row["error"])
        else:
            remarks = "; ".join(filter(None, [row["scaling"] and f"scaled: {row['scaling']}", *row["flags"]]))
            table.add_row(row["name"], row["source"], str(row["batch"] or "fixed"),
                          f"{counted(row['tensors'], 'tensor')}, {row['operations'] / 1e6:.1f} M operations", remarks)
    tables.show(table)


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """One imported operator: its tensors, the steps of its graph, its bound, how it was scaled."""
    made = _imported(name)
    if as_json:
        print(json.dumps(_document(made), indent=1))
        return
    _print_head(made)
    from rich.console import Console

    from kforge.cli.tables import folding
    from kforge.core.words import counted

    tensors = folding("tensor", "role", "shape", title="tensors, float32, in launch order")
    graph = made.graph
    for given in graph.given:
        tensors.add_row(given.name, given.kind.value, _shape(given.shape))
    for tensor, value in zip(_outputs(made), graph.outputs, strict=True):
        tensors.add_row(tensor, f"returned: {value}", _shape(graph.shapes[value]))
    steps = folding("value", "operation", "of", "shape", title=counted(len(graph.steps), "step"))
    for step in graph.steps:
        steps.add_row(step.name, _operation(step), ", ".join(step.inputs), _shape(step.shape))
    console = Console()
    console.print(tensors)
    console.print(steps)
    print(f"bound: {BOUND}")


@app.command()
def rm(name: Name, as_json: Json = False) -> None:
    """Forget an imported operator; kernels that were made for it stay in the database."""
    from kforge.importing.importer import remove

    _require(name)
    remove(name)
    print(json.dumps({"removed": name}) if as_json else f"{name} is forgotten")


BOUND = ("4 times a running error analysis in float64 along these steps, element by element; elements that float32 "
         "does not decide (overflow on the way, roots of what may be negative, quotients by what may be 0) are free")


def _require(name: str) -> None:
    """Raises KforgeError for what is no imported operator's name."""
    from kforge.cli.nearest import near
    from kforge.operators import imported_names

    if name not in imported_names():
        known = ", ".join(imported_names()) or "none yet: kforge operator import makes one"
        raise KforgeError(f"there is no imported operator {name!r}{near(name, imported_names())}; there is {known}")


def _imported(name: str) -> Imported:
    from kforge.operators import get
    from kforge.operators.imported import Imported

    _require(name)
    made = get(name)
    assert isinstance(made, Imported)
    return made


def _outputs(made: Imported) -> tuple[str, ...]:
    from kforge.operators.imported import output_names

    return output_names(made.graph)


def _brief(made: Imported) -> dict[str, Any]:
    cost = made.cost(made.workload)
    return {
        "name": made.name, "source": made.record.source, "problem": made.problem.key, "workload": made.workload.key,
        "batch": made.batch if made.graph.dynamic else None, "tensors": len(made.tensors(made.workload)),
        "bytes": cost.streamed_bytes + cost.hot_bytes,
        "operations": sum(count for _, count in cost.operations), "scaling": made.record.scaling,
        "flags": list(made.record.flags),
    }


def _document(made: Imported) -> dict[str, Any]:
    tensors = [{"name": spec.name, "role": spec.role.value, "shape": list(spec.shape)}
               for spec in made.tensors(made.workload)]
    return {**_brief(made), "tensors": tensors, "bound": BOUND, "record": made.record.model_dump(mode="json")}


def _print_head(made: Imported) -> None:
    record, brief = made.record, _brief(made)
    print(f"{made.name}: {brief['workload']}, from {record.source}")
    print(f"  a call moves {brief['bytes'] / 2**20:.1f} MiB and takes {brief['operations'] / 1e6:.1f} M operations")
    batch = "any number of rows B" if made.graph.dynamic else "one shape only"
    print(f"  defined for {batch}; its kernels are relaxed: within a bound, not to the bit")
    if record.scaling:
        before = ", ".join(f"{o.name}[{','.join(map(str, o.shape))}]" for o in record.originals)
        print(f"  scaled to fit this machine: {record.scaling}; the file has {before}")
    for flag in record.flags:
        print(f"  flagged: {flag}")


def _shape(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _operation(step: Step) -> str:
    from kforge.operators.graph import Op

    match step.op:
        case Op.SCALAR:
            return f"{step.value:g}"
        case Op.SLICE:
            return f"slice {step.dims[0]}: {step.bounds[0]}..{step.bounds[1]}"
        case Op.SUM | Op.MAX | Op.MIN | Op.PERMUTE | Op.CONCAT:
            return f"{step.op} {','.join(map(str, step.dims))}"
    return step.op.value
