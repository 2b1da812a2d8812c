"""``kforge runs``: tuning runs from their journals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kforge.core.errors import KforgeError

if TYPE_CHECKING:
    from kforge.tuner.run_view import RunView

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="List, show, report and replay tuning runs.",
)

Run = Annotated[str, typer.Argument(help="A run's folder, its id, or the beginning of its id; 'last' for the newest.")]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Where run folders are.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_runs(runs_dir: RunsDir = Path("runs"), as_json: Json = False) -> None:
    """Every run, oldest first."""
    from kforge.tuner.run_view import runs_in, view_of

    rows: list[dict[str, Any]] = []
    for path in runs_in(runs_dir):
        try:
            rows.append(_brief(view_of(path)))
        except KforgeError as error:
            rows.append({"run": path.name, "error": str(error)})
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    if not rows:
        print(f"no runs in {runs_dir}; kforge tune starts one")
        return
    from kforge.cli import tables

    table = tables.folding("run", "of", "came to", whole=("run",))
    for row in rows:
        table.add_row(row["run"], row.get("model", ""), row["error"] if "error" in row else _came_to(row))
    tables.show(table)


def _came_to(row: dict[str, Any]) -> str:
    """A run in a line."""
    from kforge.core.words import counted

    parts = [
        "finished" if row["finished"] else "unfinished",
        f"{counted(row['trials'], 'trial')} ({row['failed']} failed)",
        f"{row['checked']} built and checked, none timed" if row["offline"] else f"{row['accepted']} accepted",
    ]
    tuned = [f"{r['setting']} {r['ratio']:.2f}x" for r in row["rates"] if r["kernels"] == "tuned" and r["ratio"]]
    serving = row["serving"]
    if serving and not serving["engine"]:
        parts.append(f"{serving['promoted']} promoted")
    elif serving and serving["defaults_only"]:
        parts.append("tuned and default are the same kernels")
    elif tuned:
        parts.append(f"tuned over default: {', '.join(tuned)}")
    return ", ".join(parts)


@app.command()
def show(run: Run, runs_dir: RunsDir = Path("runs"), as_json: Json = False) -> None:
    """One run: state, tokens/s, each problem's gain, and the ideas of its models."""
    from kforge.agent.report.gathering import report_of
    from kforge.agent.report.summary import to_json
    from kforge.cli.run_document import buckets_of, stored_kernels
    from kforge.tuner.report import failure_rows, problem_rows
    from kforge.tuner.report_outcomes import engine_states
    from kforge.tuner.report_text import told
    from kforge.tuner.run_view import view_of

    view = view_of(find(run, runs_dir))
    ideas = report_of(view)
    if as_json:
        problems = [vars(p) for p in problem_rows(view)]
        more = {"failures": dict(view.failures), "problems": problems,
                "buckets": buckets_of(view, stored_kernels()), "engine": engine_states(view)}
        if ideas is not None:
            more["agent"] = to_json(ideas)
        print(json.dumps({**_brief(view), **more}, indent=1))
        return
    from rich.console import Console

    from kforge.cli.run_ideas import idea_lines, idea_trees
    from kforge.cli.run_tables import engine_lines, limit_lines, problem_table

    for line in told(view):
        print(line)
    if (table := problem_table(view)) is not None:
        Console().print(table)
    for line in (*engine_lines(view), *limit_lines(view)):
        print(f"  {line}")
    for row in failure_rows(view):
        print(f"  {row.count} failed ({row.kind}): {row.reasons[0]}")
    if ideas is not None:
        for line in idea_lines(ideas):
            print(f"  {line}")
        for tree in idea_trees(ideas):
            Console().print(tree)


@app.command()
def report(
    run: Run,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; report.html in the run's folder.")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML file: tokens/s, gains, roofline, convergence, verdicts, failures; of models the
    tree of ideas, what was said beside what was measured, what changed and what it cost."""
    from kforge.agent.report.gathering import report_of
    from kforge.agent.report.section import section
    from kforge.tuner.report import write_report
    from kforge.tuner.report_text import unmeasured
    from kforge.tuner.run_view import view_of

    path = find(run, runs_dir)
    view = view_of(path)
    ideas = report_of(view)
    file = write_report(view, out or path / "report.html", [section(ideas)] if ideas else [])
    if as_json:
        print(json.dumps({**_brief(view), "file": str(file)}, indent=1))
    else:
        print(file)
        if reason := unmeasured(view):
            print(f"kforge: {reason}", file=sys.stderr)


@app.command()
def replay(run: Run, runs_dir: RunsDir = Path("runs"), as_json: Json = False) -> None:
    """Think a run's ideas again from its record, without a model. Exit code 1 where a prompt or a template differs."""
    from kforge.agent.replaying import replay as again
    from kforge.agent.replaying import stale_systems
    from kforge.core.words import counted

    path = find(run, runs_dir)
    found = []
    for one in again(path):
        found.append(one)
        if not as_json:
            said = f"DIFFERS {one.difference}" if one.difference else f"the same: {one.came_to}"
            print(f"{one.idea.id}: {one.prompts} prompts; {said}", flush=True)
    stale = [str(system.role) for system in stale_systems(path)]
    different = [one for one in found if one.difference]
    if as_json:
        ideas = [{"idea": one.idea.id, "prompts": one.prompts, "came_to": one.came_to, "difference": one.difference}
                 for one in found]
        print(json.dumps({"ideas": ideas, "differing": len(different), "stale_system_texts": stale}, indent=1))
    else:
        prompts = counted(sum(one.prompts for one in found), "prompt")
        print(f"{counted(len(found), 'idea')}, {prompts}, {len(different)} differ")
        if stale:
            print(f"this version writes the system text of {', '.join(stale)} in another way; the run's own was used")
    if different:
        raise typer.Exit(1)


def find(run: str, runs_dir: Path) -> Path:
    """The run's folder. Raises KforgeError when there is none or several."""
    from kforge.cli.nearest import near
    from kforge.tuner.run_view import runs_in

    if (Path(run) / "journal.jsonl").is_file():
        return Path(run)
    known = runs_in(runs_dir)
    if run == "last" and known:
        return known[-1]
    found = [p for p in known if p.name == run] or [p for p in known if p.name.startswith(run)]
    if len(found) != 1:
        what = "no run" if not found else f"{len(found)} runs"
        meant = "" if found else near(run, [p.name for p in known])
        raise KforgeError(f"{run!r} names {what} in {runs_dir}{meant}; see: kforge runs list --runs-dir {runs_dir}")
    return found[0]


def _brief(view: RunView) -> dict[str, Any]:
    from kforge.tuner.report_text import unmeasured

    return {
        "run": view.id,
        "folder": str(view.path),
        "model": view.options.subject,
        "target": view.target,
        "finished": view.finished,
        "used_seconds": view.used_seconds,
        "budget_seconds": view.options.budget_seconds,
        "problems": len(view.tasks),
        "trials": len(view.tried),
        "failed": sum(view.failures.values()),
        "judged": len(view.judged),
        "accepted": view.accepted,
        "checked": view.checked,
        "offline": view.offline,
        "unmeasured": unmeasured(view) or None,
        "serving": None if view.serving is None else {
            **vars(view.serving), "defaults_only": view.serving.defaults_only, "text": view.serving.text
        },
        "rates": [
            {
                "setting": r.setting,
                "kernels": r.kernels,
                "tokens_per_second": r.median,
                "spread": r.spread,
                "ratio": r.ratio or None,
            }
            for r in view.rates
        ],
    }
