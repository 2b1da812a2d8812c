"""``kforge doctor``: what this machine has, and what to do about what it lacks."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check all that tuning and serving need. Exit code 1 when something that tuning needs is missing."""
    from kforge.cli.checks import State, examine

    findings = examine()
    problems = [f for f in findings if f.state is State.PROBLEM]
    if as_json:
        print(
            json.dumps(
                {
                    "ok": not problems,
                    "findings": [
                        {"check": f.check, "state": f.state.value, "text": f.text, "advice": f.advice} for f in findings
                    ],
                },
                indent=1,
            )
        )
    else:
        from rich.console import Console
        from rich.text import Text

        from kforge.core.words import counted

        console = Console()
        style = {State.OK: "green", State.WARNING: "yellow", State.PROBLEM: "bold red"}
        for f in findings:
            line = Text.assemble((f"{f.state.value:<8}", style[f.state]), f" {f.check:<10} {f.text}")
            console.print(line, soft_wrap=True)
            if f.advice:
                console.print(Text(f"{'':20}-> {f.advice}"), soft_wrap=True)
        warnings = sum(f.state is State.WARNING for f in findings)
        console.print(
            f"{counted(len(problems), 'problem')}, {counted(warnings, 'warning')}: "
            f"{'kforge tune cannot run here yet' if problems else 'ready to tune'}",
            highlight=False,
        )
    if problems:
        raise typer.Exit(1)
