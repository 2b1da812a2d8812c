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
    """Entry of the console script: bad input ends in one sentence and exit code 2."""
    from kforge.core.errors import KforgeError

    try:
        app()
    except KforgeError as error:
        print(f"kforge: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)


if __name__ == "__main__":
    main()
