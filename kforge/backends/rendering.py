"""Jinja rendering inside bounds: a restricted loader, a sandboxed environment, limits of time, memory and output."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from jinja2 import BaseLoader, BytecodeCache, Environment, StrictUndefined, TemplateNotFound, TemplateSyntaxError, meta
from jinja2.bccache import Bucket
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.sandbox import SandboxedEnvironment

from kforge.backends.header import TemplateError

_MAX_FILE = 128 << 10  # parsing takes seconds a megabyte, and is done in this process


@dataclass(frozen=True)
class RenderLimits:
    """Bounds of one rendering; time and memory bind only in the child that renders untrusted templates."""

    seconds: int = 5
    memory_bytes: int = 1 << 30
    output_bytes: int = 4 << 20


class _Loader(BaseLoader):
    """Files below ``root`` only: no absolute paths, no '..', no links that lead out."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, None]:
        parts = template.split("/")
        path = (self.root / template).resolve()
        if template.startswith("/") or ".." in parts or "\\" in template or not path.is_relative_to(self.root):
            raise TemplateNotFound(template, f"'{template}' is outside the templates folder")
        try:
            if path.stat().st_size > _MAX_FILE:
                raise TemplateNotFound(template, f"'{template}' is larger than {_MAX_FILE} bytes")
            return path.read_text(encoding="utf-8"), template, None
        except (OSError, UnicodeDecodeError) as error:
            raise TemplateNotFound(template, f"cannot read '{template}': {error}") from None


class _Compiled(BytecodeCache):
    """Compiled templates in memory, found by name and the source's checksum: never stale."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._code[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _Compiled()


def environment(root: Path) -> SandboxedEnvironment:
    """The environment of template bodies. Without ``random``: rendering is a function of its arguments."""
    env = SandboxedEnvironment(loader=_Loader(root), undefined=StrictUndefined, autoescape=False,
                             bytecode_cache=_COMPILED)
    del env.filters["random"]
    del env.globals["lipsum"]
    return env


def sources(root: Path, name: str) -> dict[str, str]:
    """The template and everything that it includes, name -> text, in a fixed order. Raises TemplateError."""
    env = environment(root)
    found: dict[str, str] = {}
    waiting = [(name, name)]
    while waiting:
        current, origin = waiting.pop(0)
        if current in found:
            continue
        try:
            text, _, _ = env.loader.get_source(env, current)  # type: ignore[union-attr]
            found[current] = text
            for wanted in sorted(meta.find_referenced_templates(env.parse(text, current, current)),
                                 key=lambda item: item or ""):
                if wanted is None:
                    raise TemplateError(current, 0, "an include or import must name its file as a constant text")
                waiting.append((wanted, current))
        except TemplateSyntaxError as error:
            raise TemplateError(current, error.lineno, f"Jinja: {error.message}") from None
        except TemplateNotFound as error:
            raise TemplateError(origin, 0, str(error.message)) from None
        except RecursionError:
            raise TemplateError(current, 0, "nested too deeply") from None
    return found


class _TargetView:
    """What a body sees as ``target``."""

    def __init__(self, arch: str, features: tuple[str, ...], cores: int) -> None:
        self.arch = arch
        self.features = features
        self.cores = cores

    def has(self, *features: str) -> bool:
        return set(features) <= set(self.features)


def render(root: Path, name: str, values: Mapping[str, Any], target: Mapping[str, Any],
           limits: RenderLimits, *, trusted: bool) -> str:
    """Text of the template. ``values`` and ``target`` (arch, features, cores) are JSON values. Raises TemplateError."""
    if trusted:
        return _render_here(root, name, values, target, limits)
    job = {"root": str(root), "name": name, "values": values, "target": target, "limits": asdict(limits)}
    code = ("import json,sys; job=json.load(sys.stdin); sys.path[:]=job.pop('path');"
            "from kforge.backends.rendering import child; child(job)")
    try:
        done = subprocess.run([sys.executable, "-I", "-c", code], input=json.dumps({**job, "path": sys.path}).encode(),
                              capture_output=True, timeout=limits.seconds + 10, env={}, check=False)
    except subprocess.TimeoutExpired:
        raise TemplateError(name, 0, f"rendering took longer than {limits.seconds} s") from None
    if done.returncode == 0:
        answer = json.loads(done.stdout)
        if "text" in answer:
            return str(answer["text"])
        raise TemplateError(answer["path"], answer["line"], answer["what"])
    if done.returncode < 0:
        raise TemplateError(name, 0, f"rendering took longer than {limits.seconds} s of CPU time")
    raise TemplateError(name, 0, f"rendering failed: {done.stderr.decode(errors='replace')[-500:]}")


def child(job: dict[str, Any]) -> None:
    """Body of the child process: bounds itself, renders, prints one JSON object."""
    limits = RenderLimits(**job["limits"])
    resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        text = _render_here(Path(job["root"]), job["name"], job["values"], job["target"], limits)
        answer: dict[str, Any] = {"text": text}
    except TemplateError as error:
        answer = {"path": error.path, "line": error.line, "what": error.what}
    sys.stdout.write(json.dumps(answer))


def _render_here(root: Path, name: str, values: Mapping[str, Any], target: Mapping[str, Any],
                 limits: RenderLimits) -> str:
    env = environment(root)
    view = _TargetView(target["arch"], tuple(target["features"]), target["cores"])
    parts: list[str] = []
    size = 0
    try:
        for part in env.get_template(name).generate({**values, "target": view}):
            size += len(part)
            if size > limits.output_bytes:
                raise TemplateError(name, 0, f"the rendered text exceeds {limits.output_bytes} bytes")
            parts.append(part)
    except TemplateError:
        raise
    except TemplateSyntaxError as error:
        raise TemplateError(error.name or name, error.lineno, f"Jinja: {error.message}") from None
    except MemoryError:
        raise TemplateError(name, 0, f"rendering needs more than {limits.memory_bytes} bytes of memory") from None
    except (JinjaError, RuntimeError, SyntaxError, ArithmeticError, TypeError, ValueError, LookupError,
            AttributeError) as error:
        where, line = _place(error, name)
        raise TemplateError(where, line, f"{type(error).__name__}: {error}") from None
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TemplateError(name, 0, f"the rendered text is no Unicode: {error.reason}") from None
    return text


def _place(error: BaseException, name: str) -> tuple[str, int]:
    """File and line of the innermost template frame; Jinja rewrites tracebacks to template names and lines."""
    where, line = name, 0
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.endswith(".j2"):
            where, line = file, trace.tb_lineno
        trace = trace.tb_next
    return where, line
