"""Functions become tools: arguments that nobody declared are refused, failures are told in one form."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, TextContent, ToolAnnotations

from kforge.backends.templates import TemplateError
from kforge.core.errors import KforgeError, sentence_of
from kforge.core.trial import FailureClass
from kforge.mcp.desk import Desk
from kforge.mcp.failures import CallFailed, Refusal
from kforge.mcp.making import Making
from kforge.mcp.reading import Reading

_MOST_DETAIL = 20_000  # characters
_READS = ("show_run", "read_source", "render_template")  # beside those of Reading


def tools_of(desk: Desk) -> list[Tool]:
    """Every tool, in the order in which an agent meets them."""
    reading, making = Reading(desk), Making(desk)
    return [
        _tool(fn, reads=hasattr(Reading, fn.__name__) or fn.__name__ in _READS)
        for fn in (
            reading.list_operators,
            reading.describe_operator,
            reading.read_reference,
            reading.list_targets,
            reading.describe_target,
            reading.list_models,
            reading.list_workloads,
            reading.list_templates,
            reading.get_template,
            making.open_run,
            making.show_run,
            making.write_source,
            making.read_source,
            making.render_template,
            making.build,
            making.disassemble,
            making.check,
            making.measure,
            making.compare,
            making.tune,
            making.submit,
            making.promote,
            reading.lookup,
            reading.list_kernels,
            reading.show_kernel,
            reading.list_lessons,
            reading.list_tuning_runs,
            reading.read_report,
        )
    ]


def _tool(fn: Callable[..., Awaitable[Any]], *, reads: bool) -> Tool:
    name = fn.__name__
    told = " ".join((fn.__doc__ or "").split())
    notes = ToolAnnotations(read_only_hint=reads, destructive_hint=False, open_world_hint=False)
    tool = Tool.from_function(_telling(fn), name=name, description=told, annotations=notes, structured_output=True)
    model = tool.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"  # a misspelt argument is no argument left out
    model.model_rebuild(force=True)
    tool.parameters = model.model_json_schema(by_alias=True)
    return tool


def _telling(fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """``fn`` with its failures as results that say so: the class and the reason as text and as data."""

    @functools.wraps(fn)
    async def told(*positional: Any, **named: Any) -> Any:
        try:
            return await fn(*positional, **named)
        except CallFailed as error:
            return _failed(error.kind, error.reason, error.detail)
        except TemplateError as error:
            return _failed(FailureClass.TEMPLATE, str(error), "")
        except KforgeError as error:
            return _failed(Refusal.BAD_INPUT, str(error), "")
        except OSError as error:
            return _failed(FailureClass.HARNESS, sentence_of(error), "")

    return told


def _failed(kind: FailureClass | Refusal, reason: str, detail: str) -> CallToolResult:
    detail = detail[:_MOST_DETAIL]
    failure = {"class": kind.value, "reason": reason, "detail": detail}
    text = "\n".join(filter(None, [f"{kind.value}: {reason}", detail]))
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content={"failure": failure}, is_error=True
    )


def documented(tools: list[Tool]) -> str:
    """The tools as a table for docs/agents.md."""
    rows = ["| tool | arguments | what it does |", "|---|---|---|"]
    for tool in tools:
        wanted = tool.parameters.get("required", [])
        names = [f"`{n}`" if n in wanted else f"`{n}`?" for n in tool.parameters.get("properties", {})]
        rows.append(f"| `{tool.name}` | {', '.join(names)} | {tool.description.replace('|', '/')} |")
    return "\n".join(rows)
