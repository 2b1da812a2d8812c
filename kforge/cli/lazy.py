"""Commands by name, imported only when called, so that ``kforge lookup`` and ``--help`` start at once."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Verb:
    """Where a command lives. ``attribute`` is a function, or a typer app for a group of commands."""

    module: str
    attribute: str
    help: str


VERBS = {
    "doctor": Verb("kforge.cli.doctor", "doctor", "What this machine has: compiler, sandbox, target, registry."),
    "target": Verb("kforge.cli.target", "app", "Probe, list and show targets."),
    "model": Verb("kforge.cli.model", "app", "Fetch, synthesise and show models."),
    "workloads": Verb("kforge.cli.workloads", "workloads", "Every operator call of a step, with its cost and limit."),
    "tune": Verb("kforge.cli.tune", "tune", "Tune a model's kernels on this machine."),
    "runs": Verb("kforge.cli.runs", "app", "List, show and report tuning runs."),
    "lookup": Verb("kforge.cli.lookup", "lookup", "Which kernel serves an operator at given axes, and why."),
    "kernels": Verb("kforge.cli.kernels", "app", "The kernel database: list, show, promote, verify, rm, gc."),
    "lessons": Verb("kforge.cli.lessons", "app", "What models' ideas came to, over runs: list, show, rm, export."),
    "operator": Verb("kforge.cli.operator", "app", "Operators made of functions from outside: import, list, show, rm."),
    "try": Verb("kforge.cli.try_kernel", "try_kernel", "Build, check, time and compare a kernel of your own."),
    "flashinfer-bench": Verb("kforge.cli.flashinfer_bench", "app", "FlashInfer-Bench: definitions in, kernels out."),
    "export": Verb("kforge.cli.export", "app", "Results and kernels for other tools: T4, Kernel Tuner, vLLM, SGLang."),
    "import": Verb("kforge.cli.bring_in", "app", "What others measured, as where searches begin: T4, vLLM, SGLang."),
    "zoo": Verb("kforge.cli.zoo", "zoo", "Every known cheat against this machine's gates."),
    "judge": Verb("kforge.cli.judge", "app", "Measure the judge: how often it errs on this machine."),
    "generate": Verb("kforge.cli.generate", "generate", "Continue a prompt."),
    "chat": Verb("kforge.cli.generate", "chat", "Talk with a model."),
    "serve": Verb("kforge.cli.serve", "serve", "Serve a model to OpenAI's clients over HTTP."),
    "mcp": Verb("kforge.cli.mcp", "mcp", "Serve the bench to coding agents (MCP)."),
    "bench": Verb("kforge.cli.bench", "app", "Benchmarks of the engine."),
}


class LazyGroup(TyperGroup):
    """A group that knows its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        if ctx.resilient_parsing or _only_listing():
            return TyperCommand(cmd_name, help=verb.help)
        target = getattr(importlib.import_module(verb.module), verb.attribute)
        if isinstance(target, typer.Typer):
            group = typer.main.get_command(target)
            group.name = cmd_name
            return group
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(cmd_name)(target)
        return typer.main.get_command(single)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from kforge.cli.nearest import near

            ctx.fail(f"No such command {args[0]!r}{near(args[0], VERBS)}.")
        return super().resolve_command(ctx, args)


def _only_listing() -> bool:
    """Whether the command line asks for nothing but the list of commands."""
    import sys

    return len(sys.argv) <= 1 or sys.argv[1] in ("--help", "-h")
