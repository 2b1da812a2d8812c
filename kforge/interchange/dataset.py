"""A FlashInfer-Bench dataset on disk, read; or one file of it.

definitions/OP_TYPE/DEFINITION.json          workloads/OP_TYPE/DEFINITION.jsonl
solutions/AUTHOR/OP_TYPE/DEFINITION/SOLUTION.json          traces/AUTHOR/OP_TYPE/DEFINITION.jsonl
blob/workloads/...                           safetensors that workloads name
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from kforge.core.errors import KforgeError
from kforge.core.words import one_line
from kforge.interchange.schema import Definition, Solution, Source, Trace

if TYPE_CHECKING:
    import numpy as np

MOST_BYTES = 64 << 20  # of a JSON file
MOST_BLOB = 64 << 20  # of one index tensor in safetensors
_PARTS = ("definitions", "workloads", "solutions", "traces")

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Broken:
    """A file that is not what its place or its fields say."""

    path: str
    reason: str


@dataclass(frozen=True)
class Dataset:
    """What was read. ``root``: the folder that paths of safetensors start from."""

    root: Path
    definitions: tuple[Definition, ...] = ()
    workloads: tuple[Trace, ...] = ()
    solutions: tuple[Solution, ...] = ()
    traces: tuple[Trace, ...] = ()
    broken: tuple[Broken, ...] = ()

    def workloads_of(self, definition: str) -> tuple[Trace, ...]:
        return tuple(t for t in self.workloads if t.definition == definition)

    def solutions_of(self, definition: str) -> tuple[Solution, ...]:
        return tuple(s for s in self.solutions if s.definition == definition)

    def traces_of(self, definition: str) -> tuple[Trace, ...]:
        return tuple(t for t in self.traces if t.definition == definition)

    def tensor(self, source: Source) -> np.ndarray | None:
        """The values of an input that lies in safetensors; None where the file is not there, is another, or is larger
        than index tensors are."""
        from safetensors import SafetensorError, safe_open

        if source.path is None or source.tensor_key is None:
            return None
        path = (self.root / source.path).resolve()
        if not path.is_relative_to(self.root.resolve()) or not path.is_file():
            return None
        try:
            with safe_open(str(path), "numpy") as file:
                part = file.get_slice(source.tensor_key)
                extent = 8
                for n in part.get_shape():
                    extent *= n
                return file.get_tensor(source.tensor_key) if extent <= MOST_BLOB else None
        except (SafetensorError, OSError, TypeError, ValueError):
            return None


@dataclass
class _Found:
    """What has been read so far."""

    definitions: dict[str, Definition] = field(default_factory=dict)
    workloads: list[Trace] = field(default_factory=list)
    solutions: dict[str, Solution] = field(default_factory=dict)
    traces: list[Trace] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)

    def add(self, item: Definition | Solution | Trace) -> None:
        """Raises ValueError for a name that is there already."""
        if isinstance(item, Trace):
            (self.workloads if item.is_workload else self.traces).append(item)
            return
        there: dict = self.definitions if isinstance(item, Definition) else self.solutions
        if item.name in there:
            raise ValueError(f"{item.name} is there twice")
        there[item.name] = item

    def dataset(self, root: Path) -> Dataset:
        return Dataset(
            root,
            tuple(self.definitions.values()),
            tuple(self.workloads),
            tuple(self.solutions.values()),
            tuple(self.traces),
            tuple(self.broken),
        )


def read(path: Path) -> Dataset:
    """A dataset's folder, any folder of definitions (or of solutions), or one file: a definition, a solution, or lines
    of workloads and traces.

    A broken file among others is in ``broken``. Raises KforgeError where nothing can be read at all.
    """
    if not path.exists():
        raise KforgeError(f"there is no {path}: give a FlashInfer-Bench definition (JSON) or the folder of a dataset")
    found = _Found()
    if path.is_file():
        root = next((p.parent for p in path.resolve().parents if p.name in _PARTS), path.resolve().parent)
        _read_file(path, found)
        if found.broken:
            raise KforgeError(f"{path}: {found.broken[0].reason}")
        return found.dataset(root)
    whole = any((path / part).is_dir() for part in _PARTS)
    folders = [path / part for part in _PARTS] if whole else [path]
    for file in (f for folder in folders for f in sorted(folder.rglob("*.json*"))):
        if file.suffix in (".json", ".jsonl") and file.is_file():
            _read_file(file, found)
    made = found.dataset(path)
    if not (made.definitions or made.solutions or made.workloads or made.traces):
        why = f": {one_line(made.broken[0].path)}: {made.broken[0].reason}" if made.broken else ""
        raise KforgeError(f"{path} holds no FlashInfer-Bench definition, solution, workload or trace{why}")
    return made


def _read_file(file: Path, found: _Found) -> None:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
        for item in _items(file.read_text(encoding="utf-8"), file.suffix == ".jsonl"):
            found.add(item)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        found.broken.append(Broken(str(file), one_line(f"{where}: {first['msg']}" if where else first["msg"])))
    except OSError as error:
        found.broken.append(Broken(str(file), error.strerror or "it cannot be read"))
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, nested without end
        found.broken.append(Broken(str(file), one_line(str(error)) or "it is no JSON"))


def _items(text: str, lines: bool) -> Iterator[Definition | Solution | Trace]:
    if lines:
        for line in filter(None, map(str.strip, text.splitlines())):
            yield Trace.model_validate_json(line)
        return
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    yield (Solution if "spec" in document or "sources" in document else Definition).model_validate(document)
