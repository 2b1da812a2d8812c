"""``kforge mcp``: the bench for coding agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kforge.core.errors import KforgeError


def mcp(
    http: Annotated[
        bool, typer.Option("--http", help="Streamable HTTP on 127.0.0.1 instead of standard input and output.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --http; 0: any free one.")] = 8765,
    runs_dir: Annotated[Path, typer.Option("--runs-dir", help="Where runs are; clients write nowhere else.")] = Path(
        "runs"
    ),
    model: Annotated[
        list[Path] | None, typer.Option(help="A model file or folder whose workloads clients may list; repeatable.")
    ] = None,
) -> None:
    """Serve the bench to coding agents over the Model Context Protocol. docs/agents.md has the settings of clients."""
    from functools import partial

    import anyio

    from kforge.mcp.server import make_server

    for path in model or ():
        if not path.exists():
            raise KforgeError(f"--model {path}: there is no such file or folder")
    server = make_server(runs_dir.absolute(), [path.absolute() for path in model or ()])
    if http:
        from kforge.mcp.http import serve_http

        anyio.run(partial(serve_http, server, port))
    else:
        from kforge.mcp.stdio import serve_stdio

        if anyio.run(partial(serve_stdio, server)):
            raise KeyboardInterrupt
