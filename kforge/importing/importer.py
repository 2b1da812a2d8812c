"""Making an operator of a file: a confined child reads it, what it answers is validated, tried and kept."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import stat
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import kforge
from kforge.core.drafts import draft_folder
from kforge.core.errors import KforgeError
from kforge.core.words import one_line
from kforge.core.workload import stable_hash
from kforge.harness.cases import REFERENCE_OPERATIONS
from kforge.harness.sandbox import Limits, Outcome, run
from kforge.importing.child import ANSWER, JOB, PROBLEM
from kforge.importing.loading import ExampleInput
from kforge.importing.scaling import Room
from kforge.importing.sensitivity import flags_of
from kforge.operators import import_file, names
from kforge.operators.import_record import (
    GraphRecord,
    ImportRecord,
    Original,
    Size,
    Sizes,
    Text,
    first_fault,
    is_name,
    write,
)
from kforge.operators.imported import Imported, operations, peak_bytes

SECONDS = 180.0
# References are made anew for every draw of inputs: a call that takes more than that is checked for minutes.
_ROOM = Room(128 << 20, 10_000_000_000)
_ROOM_SHARE = 64  # of memory, where that is less
_REFERENCE_SHARE = 4  # of memory, for the reference of one call, at most
_WIDER = 6  # a value's bytes in the reference: three float64 instead of one float32
_TRIES = 4  # with half the room each
_CHILD_MEMORY = 8 << 30  # of address space, of which torch takes gigabytes
_FILE_BYTES = 16 << 20
_SOURCE_BYTES = 1 << 20
_PACKAGE = Path(kforge.__file__).resolve().parent
_INPUT = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*([a-z0-9]+)\s*\[([0-9,\s]*)\]\s*")
# The package is found by its own path: the folder that it lies in is none that the child may list.
_CODE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("kforge", sys.argv[1] + "/__init__.py",
                                              submodule_search_locations=[sys.argv[1]])
sys.modules["kforge"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["kforge"])
from kforge.importing.child import main
main()
"""


@dataclass(frozen=True)
class Request:
    """``function``: of an arbitrary Python file; "" for one with a ``Model``. ``inputs``: such as
    ``x=f32[128,512],y=f32[512]``, "" where the file has ``get_inputs``. ``scale``: auto, none or a power of two."""

    file: Path
    function: str = ""
    name: str = ""
    inputs: str = ""
    scale: str = "auto"
    seconds: float = SECONDS
    replace: bool = False


class _Answer(BaseModel):
    """What the child may say."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    graph: GraphRecord
    batch: Size
    originals: Annotated[tuple[Original, ...], Field(max_length=64)]
    scaling: Text
    sizes: Sizes
    lead: Size


def import_operator(request: Request) -> Imported:
    """Reads, validates and keeps. Raises KforgeError that says why it cannot be imported."""
    text = _source(request.file)
    name = _name(request)
    answer = _fitting(request, text)
    graph = answer.graph.made()
    batch = answer.batch if graph.dynamic else 1
    record = ImportRecord(
        name=name, source=one_line(request.file.name + (f":{request.function}" if request.function else "")),
        source_hash=stable_hash(text), graph=answer.graph, batch=batch, originals=answer.originals,
        scaling=answer.scaling, sizes=answer.sizes, lead=answer.lead)
    if flags := flags_of(Imported(record)):
        record = record.model_copy(update={"flags": flags})
    file = import_file(name)
    if file.exists() and not request.replace and _kept(file) != record.model_dump_json():
        raise KforgeError(f"there is an operator {name} already: --replace it, or give another --name")
    write(record, file)
    return Imported(record)


def remove(name: str) -> None:
    """Raises KforgeError where there is none."""
    file = import_file(name)
    if not is_name(name) or name in names() or not file.is_file():
        raise KforgeError(f"there is no imported operator {name!r}; kforge operator list shows those that there are")
    file.unlink()


def example_inputs(text: str) -> tuple[ExampleInput, ...]:
    """``x=f32[128,512],y=f32[512]``. Raises KforgeError."""
    found, at = [], 0
    while at < len(text):
        match = _INPUT.match(text, at)
        if match is None or text[match.end():match.end() + 1] not in ("", ",") or text[match.end():] == ",":
            raise KforgeError(f"--inputs {text!r} is not like x=f32[128,512],y=f32[512]")
        if match[2] != "f32":
            raise KforgeError(f"--inputs: {match[1]} is {match[2]}; only f32 can be imported")
        extents = [extent.strip() for extent in match[3].split(",")] if match[3].strip() else []
        if not all(re.fullmatch("[0-9]{1,10}", extent) and 1 <= int(extent) <= 1 << 31 for extent in extents):
            raise KforgeError(f"--inputs: {match[1]} has an extent that no tensor has")
        found.append(ExampleInput(match[1], tuple(map(int, extents))))
        at = match.end() + 1
    return tuple(found)


def _source(file: Path) -> str:
    try:
        facts = file.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise KforgeError(f"cannot read {file}: it is no plain file")
        if facts.st_size > _SOURCE_BYTES:
            raise KforgeError(f"{file} is larger than {_SOURCE_BYTES} bytes: it is no problem file")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise KforgeError(f"{file} is not UTF-8 text") from None
    except OSError as error:
        raise KforgeError(f"cannot read {file}: {error.strerror}") from None


def _name(request: Request) -> str:
    """The one asked for, or the function's or the file's without what no name has."""
    if request.scale not in ("auto", "none") and not re.fullmatch("[1-9][0-9]{0,6}", request.scale):
        raise KforgeError(f"--scale {request.scale!r} is auto, none or a power of two such as 8")
    if request.scale.isdigit() and (factor := int(request.scale)) & (factor - 1):
        raise KforgeError(f"--scale {request.scale} is no power of two: sizes are halved")
    stem = re.sub("[^a-z0-9]+", "_", (request.function or request.file.stem).lower())
    name = request.name or stem.lstrip("_0123456789").rstrip("_")
    if not is_name(name):
        raise KforgeError(f"--name {name!r} must be small letters, digits and '_', for instance my_softmax")
    if name in names():
        raise KforgeError(f"{name} is a built-in operator: give another --name")
    return name


def _fitting(request: Request, text: str) -> _Answer:
    """What the child makes of it, with less room where what is made on the way is too much for a reference here.

    Raises KforgeError where nothing helps, or sizes are not to be scaled.
    """
    memory = psutil.virtual_memory().total
    for attempt in range(_TRIES if request.scale == "auto" else 1):
        room = Room(min(_ROOM.bytes, memory // _ROOM_SHARE) >> attempt, _ROOM.operations)
        answer = _asked(request, text, room)
        graph = answer.graph.made()
        batch = answer.batch if graph.dynamic else 1
        peak, count = peak_bytes(graph, batch), operations(graph, batch)
        if _WIDER * peak <= memory // _REFERENCE_SHARE and count <= 4 * REFERENCE_OPERATIONS:
            return answer
    scaled = int(request.scale) if request.scale.isdigit() else 1
    advice = "make its sizes smaller" if request.scale == "auto" else f"give --scale {2 * scaled} or more, or auto"
    raise KforgeError(f"{request.file} takes {peak / 2**20:.0f} MiB and {count / 1e9:.0f} G operations with all that "
                      f"it makes on its way, too much to check here: {advice}")


def _asked(request: Request, text: str, room: Room) -> _Answer:
    """What the child makes of it."""
    inputs = example_inputs(request.inputs)
    job = {"label": one_line(request.file.name), "function": request.function, "scale": request.scale,
           "inputs": [[item.name, list(item.shape)] for item in inputs],
           "room": {"bytes": room.bytes, "operations": room.operations}}
    with draft_folder() as work:
        (work / PROBLEM).write_text(text, encoding="utf-8")
        (work / JOB).write_text(json.dumps(job))
        command = [sys.executable, "-I", "-B", "-X", "utf8", "-c", _CODE, str(_PACKAGE)]
        limits = Limits(request.seconds, _CHILD_MEMORY, _FILE_BYTES)
        outcome = run(command, work, limits, readable())
        said = _said(work / ANSWER)
    if said is None:
        raise KforgeError(f"{request.file} cannot be imported: {_ended(outcome, request.seconds)}")
    return _validated(request.file, said)


def _validated(file: Path, said: bytes) -> _Answer:
    try:
        document = json.loads(said)
    except (ValueError, RecursionError):
        raise KforgeError(f"{file} cannot be imported: it left something other than an answer") from None
    if isinstance(document, dict) and isinstance(error := document.get("error"), str):
        raise KforgeError(f"{file} cannot be imported: {one_line(error) or 'it does not say why'}")
    try:
        return _Answer.model_validate_json(said)
    except ValidationError as error:
        raise KforgeError(f"{file} cannot be imported: its graph is none of ours ({first_fault(error)})") from None


def readable() -> tuple[str, ...]:
    """What the child may read: Python, its packages, kforge itself, and for torch random bytes and the processor's
    features."""
    found = ["/dev/urandom", "/proc/cpuinfo", "/sys/devices/system/cpu", sys.prefix, sys.base_prefix,
             sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(_PACKAGE)]
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin:
        found.append(str(Path(spec.origin).parents[1]))
    return tuple(dict.fromkeys(path for path in found if path and os.path.exists(path)))


def _said(file: Path) -> bytes | None:
    """The child's answer; None where there is no plain file of a plausible size."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(handle, "rb") as opened:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _FILE_BYTES:
            return None
        return opened.read(_FILE_BYTES)


def _ended(outcome: Outcome, seconds: float) -> str:
    """How a child without an answer ended."""
    if outcome.timed_out or -outcome.code in (signal.SIGXCPU, signal.SIGKILL):
        return f"it is not done after {seconds:g} s; --seconds allows more"
    last = next((line for line in reversed(outcome.text.splitlines()) if line.strip()), "")
    how = f"signal {-outcome.code}" if outcome.code < 0 else f"exit status {outcome.code}"
    return f"it ended with {how} and without an answer{f' ({one_line(last)[:200]})' if last else ''}"


def _kept(file: Path) -> str:
    try:
        return ImportRecord.model_validate_json(file.read_bytes()).model_dump_json()
    except (ValidationError, OSError):
        return ""
