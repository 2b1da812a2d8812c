"""The bench as an MCP server: tools, resources, prompts, and a bound on how much is asked at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.server.mcpserver.resources import FunctionResource
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from kforge.mcp.desk import Desk
from kforge.mcp.prompts import INSTRUCTIONS, PROMPTS
from kforge.mcp.references import REFERENCES, template_text
from kforge.mcp.tools import tools_of

MOST_AT_ONCE = 64  # requests that are being answered


def make_server(runs_dir: Path, models: Sequence[Path] = ()) -> MCPServer[None]:
    """A server that writes below ``runs_dir`` only and offers ``models`` beside those of the cache."""
    desk = Desk(runs_dir, models)

    @asynccontextmanager
    async def lifespan(server: MCPServer[None]) -> AsyncIterator[None]:
        async with desk.bench.open():
            yield

    server: MCPServer[None] = MCPServer(
        "kforge",
        title="kforge: a bench for kernels",
        instructions=INSTRUCTIONS,
        version=_version(),
        tools=tools_of(desk),
        lifespan=lifespan,
        log_level="ERROR",
        subscriptions=False,
        middleware=[_Bound()],
    )
    for reference in REFERENCES.values():
        server.add_resource(
            FunctionResource.from_function(
                reference.read,
                f"kforge://{reference.topic}",
                name=reference.topic,
                description=reference.what,
                mime_type=reference.mime,
            )
        )
    server.resource(
        "kforge://templates/{+path}",
        name="template",
        mime_type="text/x-c",
        description="A shipped template or part, by its path.",
    )(_template)
    for prompt in PROMPTS:
        server.add_prompt(prompt)
    return server


def _template(path: str) -> str:
    text = template_text(path)
    if text is None:
        raise ResourceNotFoundError(f"there is no template {path!r}; see list_templates")
    return text


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kforge")
    except PackageNotFoundError:
        return ""


class _Bound:
    """Whoever asks for too much at once is told so, and costs nothing."""

    def __init__(self) -> None:
        self._open = 0

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.request_id is None:
            return await call_next(ctx)
        if self._open >= MOST_AT_ONCE:
            raise MCPError(INTERNAL_ERROR, f"busy: {self._open} requests are being answered: try again later")
        self._open += 1
        try:
            return await call_next(ctx)
        finally:
            self._open -= 1
