"""``kforge lookup``: standard library and the registry's fast path only, no torch, no numpy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from kforge.core.errors import KforgeError
from kforge.core.kernel import Answer, Tier

if TYPE_CHECKING:
    from kforge.core.workload import Workload


def lookup(
    operator: Annotated[str, typer.Argument(help="Operator, for instance linear.")],
    axes: Annotated[
        list[str] | None,
        typer.Argument(help="NAME=VALUE: static attributes and dynamic axes; those of an imported operator's example "
                       "may be left out."),
    ] = None,
    target: Annotated[
        str, typer.Option(help="Target name, opencl (this machine's OpenCL device), or a TOML file.")
    ] = "host",
    explain: Annotated[bool, typer.Option("--explain", help="Print why each entry was taken or refused.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Which kernel serves this operator at these axes, and why."""
    from kforge.backends.targets import target_called
    from kforge.cli.nearest import require_operator
    from kforge.operators.axes import USUAL, workload_of
    from kforge.registry.ask import ask, open_snapshot

    given = _parse(axes or [])
    require_operator(operator)
    snapshot, hardware = open_snapshot(), target_called(target)
    wanted = {**USUAL.get(operator, {}), **given}
    answer = ask(snapshot, operator, wanted, hardware)
    workload = workload_of(operator, wanted, lambda weight: snapshot.rows(weight, hardware.identity))
    tuned = [k.bucket_key for k in snapshot.served(workload.problem) if k.target_identity == hardware.identity]
    if as_json:
        print(json.dumps({**_document(answer), "tuned": tuned}, indent=1))
        return
    if answer.kernel is None:
        print(f"{operator}: no tuned kernel; the default serves")
    else:
        kernel = answer.kernel
        promise = "promised" if answer.promised else "an estimate"
        print(f"{operator}: kernel {kernel.candidate_hash} ({answer.tier}, {promise})")
        print(
            f"  judged at {kernel.bucket_key} on {kernel.target_name}: {100 * kernel.gain:+.1f} % over the default "
            f"(at least {100 * kernel.gain_lower:+.1f} %); the search timed {kernel.seconds * 1e6:.2f} us a call"
        )
        print(f"  {kernel.template} {' '.join(f'{k}={v}' for k, v in kernel.params)}")
        for reason in answer.stale:
            print(f"  stale: {reason}")
    if answer.tier is not Tier.EXACT:
        for line in _elsewhere(workload, tuned):
            print(f"  {line}")
    if explain:
        for step in answer.trace:
            print(f"  {'took   ' if step.taken else 'refused'} [{step.tier}] {step.entry}: {step.reason}")


def _elsewhere(workload: Workload, tuned: list[str]) -> list[str]:
    """Where kernels of this problem were tuned, and for an imported operator how to have one here."""
    from kforge.operators import get
    from kforge.operators.imported import Imported

    lines = [f"tuned on this target at {', '.join(tuned)}, not at {workload.point}"] if tuned else []
    operator = get(workload.problem.operator)
    if isinstance(operator, Imported):
        batch = f" --batch {workload.axes['B']}" if operator.graph.dynamic else ""
        lines.append(f"kforge tune {operator.name}{batch} tunes it here")
    return lines


def _parse(axes: list[str]) -> dict[str, int | str]:
    from kforge.core.workload import attribute

    given: dict[str, int | str] = {}
    for axis in axes:
        name, separator, value = axis.partition("=")
        if not separator or not name or not value:
            raise KforgeError(f"{axis!r} is not NAME=VALUE, for instance K=576")
        if name in given:
            raise KforgeError(f"{name} is given twice")
        given[name] = attribute(value)
    return given


def _document(answer: Answer) -> dict[str, object]:
    kernel = answer.kernel
    return {
        "tier": answer.tier,
        "promised": answer.promised,
        "stale": list(answer.stale),
        "kernel": None
        if kernel is None
        else {
            "hash": kernel.candidate_hash,
            "artifact": kernel.artifact_hash,
            "problem": kernel.problem.key,
            "bucket": dict(kernel.bucket),
            "target": kernel.target_name,
            "search_seconds": kernel.seconds,
            "gain": kernel.gain,
            "gain_lower": kernel.gain_lower,
            "template": kernel.template,
            "params": dict(kernel.params),
            "run": kernel.run,
        },
        "trace": [{"tier": s.tier, "entry": s.entry, "taken": s.taken, "reason": s.reason} for s in answer.trace],
    }
