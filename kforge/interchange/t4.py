"""Search results in the T4 format of the auto-tuning community, version 1.0.0, in and out.

T4: ``github.com/odgaard/TuningSchema``, branch T4, ``results-schema.json``; its package-side copy is Kernel Tuner's
``schema/T4/1.0.0``. Times are in milliseconds. A point that failed says how by ``invalidity``, coarser than kforge's
classes: the class stands beside it as the measurement ``kforge_failure``, so that nothing is lost on the way back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from kforge.core.errors import KforgeError
from kforge.core.recording import Origin, Recording, Result, Value
from kforge.core.trial import FailureClass
from kforge.interchange.files import checked, parse_json, read_text

VERSION = "1.0.0"
FAILURE = "kforge_failure"  # a measurement's name: the class of failure, as kforge has it
Invalidity = Literal["timeout", "compile", "runtime", "correctness", "constraints", "correct"]

# What of T4's words a class of failure is. The harness's own failures say nothing of a point and are not here.
INVALIDITY: dict[FailureClass, Invalidity] = {
    FailureClass.TEMPLATE: "compile",
    FailureClass.COMPILE: "compile",
    FailureClass.COMPILE_LIMIT: "compile",
    FailureClass.ADMISSION: "compile",  # what was compiled is refused before it runs
    FailureClass.LOAD: "runtime",
    FailureClass.CRASH: "runtime",
    FailureClass.TIMEOUT: "timeout",
    FailureClass.FORBIDDEN: "runtime",
    FailureClass.MEMORY: "runtime",
    FailureClass.BACKGROUND: "runtime",
    FailureClass.FENCE: "correctness",
    FailureClass.INPUT_MODIFIED: "correctness",
    FailureClass.INCORRECT: "correctness",
    FailureClass.INEXACT: "correctness",
    FailureClass.NONDETERMINISTIC: "correctness",
}
# Back, where a file says nothing finer.
CLASS: dict[str, FailureClass] = {
    "timeout": FailureClass.TIMEOUT,
    "compile": FailureClass.COMPILE,
    "runtime": FailureClass.CRASH,
    "correctness": FailureClass.INCORRECT,
}
# Kernel Tuner's words for a time that there is not (its ``util``), which T4 files have as the value of ``time``.
ERRORS: dict[Invalidity, str] = {
    "compile": "CompilationFailedConfig",
    "runtime": "RuntimeFailedConfig",
    "timeout": "RuntimeFailedConfig",
    "correctness": "RuntimeFailedConfig",
}
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_FILE_UNITS = {"seconds": "s", "milliseconds": "ms", "miliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}

Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Times(_Part):
    compilation: Finite = 0.0
    runtimes: tuple[Finite, ...] = ()


class Measurement(_Part):
    name: str
    value: JsonValue = None
    unit: str = ""


class Entry(_Part):
    configuration: Annotated[dict[Name, bool | int | Finite | str], Field(min_length=1)]
    times: Times
    invalidity: Invalidity
    correctness: float
    measurements: tuple[Measurement, ...] = ()
    objectives: tuple[str, ...] = ("time",)


class KforgeOrigin(_Part):
    """What kforge adds to a file's metadata."""

    kernel: str
    device: str
    size: tuple[int, ...]
    problem: str
    bucket: str
    target_identity: str
    target_name: str
    run: str


class File(_Part):
    schema_version: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
    metadata: dict[str, JsonValue] = {}
    results: Annotated[tuple[Entry, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _is_known(self) -> File:
        if self.schema_version.split(".")[0] != VERSION.split(".", maxsplit=1)[0]:
            raise ValueError(f"schema_version is {self.schema_version}; kforge reads {VERSION}")
        return self


def read(path: Path) -> Recording:
    """The space in a T4 results file, plain or packed with gzip. Raises KforgeError that names the file and the field.

    Points that the file lists as outside the space (``constraints``) are counted and left out; of a point that is there
    twice the first counts. A time is the measurement ``time``, or where there is none the mean of the runtimes.
    """
    file = checked(path, File, parse_json(path, read_text(path)))
    parameters = tuple(file.results[0].configuration)
    unit = _file_unit(path, file)
    results: dict[tuple[Value, ...], Result] = {}
    excluded = 0
    for i, entry in enumerate(file.results):
        if set(entry.configuration) != set(parameters):
            odd = ", ".join(sorted(set(entry.configuration) ^ set(parameters)))
            raise KforgeError(f"{path}: results.{i}.configuration: it has not the parameters of the first one ({odd})")
        if entry.invalidity == "constraints":
            excluded += 1
            continue
        values = tuple(entry.configuration[name] for name in parameters)
        if values not in results:
            results[values] = _result(path, i, entry, values, unit)
    if not results:
        raise KforgeError(f"{path}: results: every point is outside the space (constraints)")
    own = file.metadata.get("kforge")
    if own is None:
        return Recording(_plain_stem(path), "", (), parameters, tuple(results.values()), None, excluded)
    said = checked(path, KforgeOrigin, own, "metadata.kforge")
    origin = Origin(said.problem, said.bucket, said.target_identity, said.target_name, said.run)
    return Recording(said.kernel, said.device, said.size, parameters, tuple(results.values()), origin, excluded)


def document(recording: Recording) -> str:
    """A T4 results file with a line for every point."""
    head: dict[str, Any] = {"schema_version": VERSION, "metadata": {"timeunit": "milliseconds"}}
    if (origin := recording.origin) is not None:
        said = {"kernel": recording.kernel, "device": recording.device, "size": list(recording.size), **vars(origin)}
        head["metadata"]["kforge"] = said
    lines = ",\n".join(json.dumps(entry) for entry in _entries(recording))
    return f'{json.dumps(head, indent=1)[:-2]},\n "results": [\n{lines}\n]}}\n'


def invalidity(failure: FailureClass | None) -> Invalidity:
    """Raises KeyError for a failure of the harness."""
    return "correct" if failure is None else INVALIDITY[failure]


def failure_of(said: str, finer: object) -> FailureClass | None:
    """The class of an invalidity; ``finer``, a class by its name, where it is one of that invalidity's."""
    if said == "correct":
        return None
    return next((kind for kind, words in INVALIDITY.items() if kind.value == finer and words == said), CLASS[said])


def _entries(recording: Recording) -> Iterator[dict[str, Any]]:
    for result in recording.results:
        said = invalidity(result.failure)
        if result.failure is None and result.seconds is not None:
            measurements: list[dict[str, Any]] = [{"name": "time", "value": result.seconds * 1e3, "unit": "ms"}]
            if result.spread is not None:
                measurements.append({"name": "spread", "value": result.spread, "unit": ""})
        else:
            measurements = [{"name": "time", "value": ERRORS[said], "unit": ""},
                            {"name": FAILURE, "value": str(result.failure), "unit": ""}]
        yield {
            "configuration": dict(zip(recording.parameters, result.values, strict=True)),
            "times": {
                "compilation": result.build_seconds * 1e3,
                "benchmark": 0.0,
                "framework": 0.0,
                "search_algorithm": 0.0,
                "validation": 0.0,
                "runtimes": [t * 1e3 for t in result.runtimes],
            },
            "invalidity": said,
            "correctness": int(said == "correct"),
            "measurements": measurements,
            "objectives": ["time"],
        }


def _result(path: Path, i: int, entry: Entry, values: tuple[Value, ...], unit: str) -> Result:
    measured = {m.name: m for m in entry.measurements}
    failure = failure_of(entry.invalidity, measured[FAILURE].value if FAILURE in measured else None)
    build = entry.times.compilation * _UNITS[unit]
    runtimes = tuple(t * _UNITS[unit] for t in entry.times.runtimes)
    if failure is not None:
        return Result(values, None, failure, entry.invalidity, (), build)
    if "time" in measured:
        given = measured["time"]
        if isinstance(given.value, bool) or not isinstance(given.value, int | float):
            raise KforgeError(f"{path}: results.{i}.measurements.time: a point that is correct took {given.value!r}")
        if (own := given.unit or unit) not in _UNITS:
            raise KforgeError(f"{path}: results.{i}.measurements.time.unit: {own!r} is none of {', '.join(_UNITS)}")
        seconds = given.value * _UNITS[own]
    elif runtimes:
        seconds = sum(runtimes) / len(runtimes)
    else:
        raise KforgeError(f"{path}: results.{i}: it has neither a measurement named time nor times.runtimes")
    if not 0 < seconds < float("inf"):
        raise KforgeError(f"{path}: results.{i}: a call cannot take {seconds} s")
    spread = measured["spread"].value if "spread" in measured else None
    said = float(spread) if isinstance(spread, int | float) and not isinstance(spread, bool) else None
    return Result(values, seconds, None, "", runtimes, build, said)


def _file_unit(path: Path, file: File) -> str:
    said = file.metadata.get("timeunit", "milliseconds")
    if not isinstance(said, str) or said not in _FILE_UNITS:
        raise KforgeError(f"{path}: metadata.timeunit: {said!r} is none of {', '.join(_FILE_UNITS)}")
    return _FILE_UNITS[said]


def _plain_stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")
