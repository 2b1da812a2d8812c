"""The ``kforge`` command: each verb lives in a module of its own, imported when it is called."""

from __future__ import annotations

import sys

import typer

from kforge.cli.lazy import LazyGroup

app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Finds the fastest correct kernels for a model on this machine, keeps them, and decodes with them.",
)


@app.callback()
def root() -> None:
    """Keeps the single-command short cut of typer off: verbs come from ``LazyGroup``."""


def main() -> None:
    """Entry of the console script."""
    from kforge.cli.ending import ended

    sys.exit(ended(app))


if __name__ == "__main__":
    main()
