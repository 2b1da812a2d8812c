"""What a client reads to write a correct kernel without the repository: headers, documents, worked examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kforge.agent.contracts import header
from kforge.core.paths import shipped

EXAMPLE_TEMPLATE = "cpp/silu_mul/portable.cc.j2"
_KERNELS = Path("kernels")


@dataclass(frozen=True)
class Reference:
    """``topic``: its name among tools and, after ``kforge://``, among resources."""

    topic: str
    what: str
    mime: str
    read: Callable[[], str]


def _document(name: str, heading: str = "") -> Callable[[], str]:
    """A page of docs/, or the section under one of its headings of the second level."""

    def read() -> str:
        try:
            text = (shipped("docs") / name).read_text(encoding="utf-8")
        except OSError:
            return f"docs/{name} was not installed with this kforge; see its repository."
        return _section(text, heading) if heading else text

    return read


def _section(text: str, heading: str) -> str:
    _, found, rest = f"\n{text}".partition(f"\n## {heading}\n")
    return f"## {heading}\n{rest.partition(chr(10) + '## ')[0]}" if found else text


def template_text(path: str) -> str | None:
    """Of a shipped template or part; None for any other name."""
    return template_files().get(path, lambda: None)()


@lru_cache(maxsize=1)
def template_files() -> dict[str, Callable[[], str]]:
    """Every file below templates/kernels, by its path there."""
    root = shipped("templates") / _KERNELS
    return {file.relative_to(root).as_posix(): _reader(file) for file in sorted(root.rglob("*.j2"))}


def _reader(file: Path) -> Callable[[], str]:
    return lambda: file.read_text(encoding="utf-8")


def _example() -> str:
    return template_text(EXAMPLE_TEMPLATE) or ""


_C = "text/x-c"
_MARKDOWN = "text/markdown"
REFERENCES = {
    reference.topic: reference
    for reference in (
        Reference(
            "abi.h", "The kernel ABI: two functions, their arguments, threads, scratch.", _C, lambda: header("abi.h")
        ),
        Reference(
            "math.h",
            "The numerics that exact kernels use: exp, silu, conversions, sums as trees.",
            _C,
            lambda: header("math.h"),
        ),
        Reference(
            "freestanding.h",
            "What stands in for a C library: memory functions, inlining, the team's barrier.",
            _C,
            lambda: header("freestanding.h"),
        ),
        Reference(
            "panel.h", "How packed weights lie in memory, with readers for each format.", _C, lambda: header("panel.h")
        ),
        Reference(
            "writing-kernels",
            "From contract to a kernel that serves, once through, with what each failure means.",
            _MARKDOWN,
            _document("kernels.md"),
        ),
        Reference(
            "template-header",
            "A template's header: parameters, constraints, requirements; what a body sees.",
            _MARKDOWN,
            _document("architecture.md", "Templates"),
        ),
        Reference(
            "operators",
            "Every operator's axes, tensors, order specification and layouts.",
            _MARKDOWN,
            _document("architecture.md", "Operators"),
        ),
        Reference("example-template", f"A worked template, {EXAMPLE_TEMPLATE}.", _C, _example),
        Reference(
            "lanes",
            "Sixteen floats in whatever registers the target has: a part to include.",
            _C,
            lambda: template_text("cpp/common/lanes.j2") or "",
        ),
        Reference("trust", "Who is trusted with what, and what holds each promise.", _MARKDOWN, _document("trust.md")),
        Reference("agents", "How coding agents use this server, tool by tool.", _MARKDOWN, _document("agents.md")),
    )
}
