"""``kforge bench``: benchmarks of the engine."""

from __future__ import annotations

import typer

from kforge.cli.bench_engine import engine

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Benchmarks of the engine."
)
app.command("engine")(engine)


@app.callback()
def group() -> None:
    """Keeps ``engine`` a command by name: typer would make a lone command the group itself."""
