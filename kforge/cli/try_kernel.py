"""``kforge try``: a kernel of your own, from source to a ratio against what serves now."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kforge.core.errors import KforgeError

if TYPE_CHECKING:
    from kforge.core.workload import Attr
    from kforge.tuner.attempt import Attempt, Submission
    from kforge.tuner.contenders import Incumbent


def try_kernel(
    file: Annotated[Path, typer.Argument(help="C++ source against kforge/abi.h, or a template (.j2) with a header.")],
    op: Annotated[str, typer.Option("--op", help="Operator, for instance linear.")],
    axes: Annotated[
        str,
        typer.Option(help="Static and dynamic axes: K=576,N=960,weight=q4_1,M=1; those of an imported operator's "
                     "example may be left out."),
    ] = "",
    against: Annotated[str, typer.Option(help="default, tuned, or a kernel's hash.")] = "tuned",
    threads: Annotated[int, typer.Option(min=0, help="Threads; 0: all cores.")] = 0,
    params: Annotated[str, typer.Option(help="Parameters of a template, the rest at its defaults: m_tile=4,...")] = "",
    relaxed: Annotated[
        bool,
        typer.Option("--relaxed", help="Check against the error bound, not bit for bit (plain C++ only); so are all "
                     "kernels of imported operators."),
    ] = False,
    submit: Annotated[
        bool,
        typer.Option("--submit", help="Have it judged at its bucket; an accepted kernel goes into the registry, one of "
                     "an imported operator serves at once."),
    ] = False,
    trust_candidates: Annotated[
        bool, typer.Option("--trust-candidates", help="Run candidates where the sandbox lacks its minimum, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build, check, time and compare one kernel of your own. Exit code 1 when it fails, 2 for bad input."""
    from kforge.backends.handwritten import from_file
    from kforge.cli.nearest import require_operator
    from kforge.core.paths import store_path
    from kforge.core.trial import NumericsClass
    from kforge.harness import Harness
    from kforge.operators.axes import USUAL
    from kforge.registry.ask import open_snapshot
    from kforge.registry.database import Registry
    from kforge.registry.store import Store
    from kforge.targets.files import load_target
    from kforge.tuner import attempt as trying
    from kforge.tuner.contenders import incumbent, workload_of
    from kforge.tuner.tune_operator import hand_in, imported

    given = pairs_of("--axes", axes)
    require_operator(op)
    alone = imported(op) is not None
    target = load_target("host")
    snapshot, store = open_snapshot(), Store(store_path())
    workload = workload_of(op, {**USUAL.get(op, {}), **given}, snapshot, target)
    numerics = NumericsClass.RELAXED if relaxed or alone else NumericsClass.EXACT
    candidate = from_file(file, workload.problem, target, pairs_of("--params", params), numerics)
    rival = incumbent(against, workload, snapshot, store, target)
    with Harness(target, threads or target.cores, trust_candidates=trust_candidates) as harness:
        done = trying.attempt(candidate, workload, rival, harness)
        handed: Submission | None = None
        if submit and done.failure is None:
            serving = incumbent("tuned", trying.bucket_workload(workload), snapshot, store, target)
            with Registry.open() as registry:
                handed = (hand_in if alone else trying.submit)(candidate, workload, serving, harness, registry)
    if as_json:
        print(json.dumps({**_document(done, rival), "submission": _handed(handed, alone)}, indent=1))
    else:
        _print(done, rival)
        for line in _handed_lines(handed, op, alone) if handed else ():
            print(line)
    if done.failure is not None or (handed is not None and handed.kernel is None):
        raise typer.Exit(1)


def pairs_of(option: str, text: str) -> dict[str, Attr]:
    """NAME=VALUE pairs with commas between; whole numbers become ints."""
    from kforge.core.workload import attribute

    found: dict[str, Attr] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, separator, value = part.partition("=")
        if not separator or not name or not value:
            raise KforgeError(f"{option} {part!r} is not NAME=VALUE, for instance K=576")
        if name in found:
            raise KforgeError(f"{option} gives {name} twice")
        found[name] = attribute(value)
    return found


def _print(done: Attempt, rival: Incumbent) -> None:
    candidate = done.candidate
    print(f"{candidate.template} as candidate {candidate.hash}, {candidate.numerics}, for {done.workload.key}")
    if done.report is not None:
        built = done.report
        mix = ", ".join(f"{n} {name}" for name, n in built.instruction_mix)
        print(
            f"  build:   {built.compiler}, {built.seconds:.2f} s, {built.text_bytes} bytes of code, "
            f"{built.spills} vector spills"
        )
        print(f"           {mix}")
        for line in built.warnings.splitlines():
            print(f"           {line}")
    if done.failure is not None:
        print(f"  FAILED ({done.failure.kind}): {done.failure.reason}")
        for line in done.failure.detail.splitlines():
            print(f"           {line}")
        return
    assert done.trial is not None and done.trial.timing is not None  # it has not failed
    worst = (
        "bit for bit the order specification"
        if done.candidate.numerics == "exact"
        else (f"worst error {done.trial.max_error_ratio:.3f} of its bound")
    )
    print(f"  correct: {worst}, at every checked shape")
    timing = done.trial.timing
    print(
        f"  time:    {1e6 * timing.seconds:.2f} us per call, spread {100 * timing.spread:.1f} %, "
        f"{timing.batches} batches of {timing.calls_per_batch} calls"
    )
    if done.limit is not None and done.bandwidth is not None:
        share = done.share or 0.0
        memory = f"memory {done.bandwidth.value / 1e9:.1f} GB/s, measured beside it"
        print(
            f"  limit:   {1e6 * done.limit.seconds:.2f} us ({done.limit.bound_by}; {memory}), "
            f"so {100 * share:.0f} % of the roofline"
        )
        if not timing.seconds:
            print("           less than can be told beside a command's own cost: try again when the machine is idle")
        if share > 1:
            print(f"           above the limit: {_disturbed(done.limit.bound_by)}")
    if done.ratio is not None:
        ratio = done.ratio
        print(
            f"  against {rival.label}: {ratio.value:.3f}x [{ratio.lower:.3f}, {ratio.upper:.3f}], {ratio.told} "
            f"({ratio.pairs} interleaved pairs)"
        )
    else:
        print(f"  against {rival.label}: not compared, {done.unmeasured}")


def _disturbed(bound_by: str) -> str:
    """How a kernel may be faster than its limit."""
    from kforge.targets.roofline import MEMORY

    if bound_by == MEMORY:  # which was measured beside it
        return "the machine changed while it was measured; try again when it is idle"
    return f"{bound_by} was measured too low; kforge target probe measures it again, when the machine is idle"


def _handed_lines(handed: Submission, operator: str, alone: bool) -> list[str]:
    """``alone``: an imported operator, which no engine calls."""
    at = ",".join(f"{k}={v}" for k, v in handed.bucket)
    lines = [f"  judge:   {handed.verdict.decision} at {at} against {handed.incumbent}: {handed.verdict.text}"]
    if handed.kernel is not None and alone:
        lines.append(f"  kernel {handed.kernel} is in the registry and promoted on the judge's word, since no engine "
                     f"calls an imported operator: kforge lookup {operator} {at.replace(',', ' ')}")
    elif handed.kernel is not None:
        lines.append(f"  kernel {handed.kernel} is in the registry as accepted; the next kforge tune of a model that "
                     "calls it runs the engine with and without it, and promotes it if the engine does not lose")
    return lines


def _handed(handed: Submission | None, alone: bool) -> dict[str, Any] | None:
    if handed is None:
        return None
    state = "promoted" if alone else "accepted"
    return {
        "decision": handed.verdict.decision.value,
        "text": handed.verdict.text,
        "bucket": dict(handed.bucket),
        "gain": handed.verdict.gain,
        "lower": handed.verdict.lower,
        "incumbent": handed.incumbent,
        "kernel": handed.kernel,
        "state": state if handed.kernel is not None else None,
    }


def _document(done: Attempt, rival: Incumbent) -> dict[str, Any]:
    timing = done.trial.timing if done.trial else None
    return {
        "ok": done.failure is None,
        "candidate": done.candidate.hash,
        "template": done.candidate.template,
        "params": dict(done.candidate.params),
        "numerics": done.candidate.numerics.value,
        "workload": done.workload.key,
        "compiler": dataclasses.asdict(done.report) | {"instruction_mix": dict(done.report.instruction_mix)}
        if done.report
        else None,
        "failure": {"class": done.failure.kind.value, "reason": done.failure.reason, "detail": done.failure.detail}
        if done.failure
        else None,
        "max_error_ratio": done.trial.max_error_ratio if done.trial and not done.failure else None,
        "timing": dataclasses.asdict(timing) if timing else None,
        "roofline": {
            "seconds": done.limit.seconds,
            "bound_by": done.limit.bound_by,
            "share": done.share,
            "bandwidth": done.limit.bandwidth,
        }
        if done.limit
        else None,
        "against": {
            "label": rival.label,
            "candidate": rival.candidate.hash,
            "kernel": rival.kernel.id if rival.kernel else None,
        },
        "ratio": {**dataclasses.asdict(done.ratio), "told": done.ratio.told} if done.ratio else None,
        "not_compared": done.unmeasured,
    }
