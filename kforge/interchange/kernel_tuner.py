"""Search results as Kernel Tuner's cache files, in and out.

The format is that of ``kernel_tuner.util`` (1.5.0): a header and, by the point's values joined with commas, what each
point took in milliseconds, or the name of its error. A file that was not closed, because its tuning was interrupted,
is read as far as it goes, as Kernel Tuner does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kforge.core.errors import KforgeError
from kforge.core.recording import Recording, Result, Value
from kforge.interchange import t4
from kforge.interchange.files import checked, parse_json, read_text

# Its errors, as T4 words them. ErrorConfig is the class that the others derive from.
_INVALIDITY = {
    "CompilationFailedConfig": "compile",
    "RuntimeFailedConfig": "runtime",
    "ErrorConfig": "runtime",
    "InvalidConfig": "constraints",
}
_FINER = "invalidity"  # what kforge adds to a point that failed
_TIMES = ("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time")
_MS = 1e-3

Count = Annotated[int, Field(ge=0)]


class Cache(BaseModel):
    model_config = ConfigDict(frozen=True)

    device_name: str
    kernel_name: str
    problem_size: int | str | tuple[int | str, ...] = ()
    tune_params_keys: Annotated[tuple[str, ...], Field(min_length=1)]
    tune_params: dict[str, tuple[bool | int | float | str, ...]]
    objective: str = "time"
    cache: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]

    @model_validator(mode="after")
    def _has_its_parameters(self) -> Cache:
        if len(set(self.tune_params_keys)) != len(self.tune_params_keys):
            raise ValueError("tune_params_keys: a parameter is there twice")
        if set(self.tune_params_keys) != set(self.tune_params):
            raise ValueError("tune_params has not the parameters of tune_params_keys")
        return self


def read(path: Path) -> Recording:
    """The space in a cache file. Raises KforgeError that names the file and the field.

    Only points that were measured are in it: Kernel Tuner's own restrictions are code, which no file holds.
    """
    file = checked(path, Cache, parse_json(path, _closed(read_text(path).strip())))
    parameters = file.tune_params_keys
    results: dict[tuple[Value, ...], Result] = {}
    excluded = 0
    for key, entry in file.cache.items():
        where = f"{path}: cache.{key}"
        missing = [name for name in parameters if name not in entry]
        if missing:
            raise KforgeError(f"{where}: it has no value of {', '.join(missing)}")
        values = tuple(entry[name] for name in parameters)
        for name, value in zip(parameters, values, strict=True):
            if not isinstance(value, bool | int | float | str):
                raise KforgeError(f"{where}.{name}: {value!r} is no number and no text")
        made = _result(where, entry, values, file.objective)
        if made is None:
            excluded += 1
        else:
            results.setdefault(values, made)
    if not results:
        raise KforgeError(f"{path}: cache: every point is outside the space (InvalidConfig)")
    size = file.problem_size if isinstance(file.problem_size, tuple) else (file.problem_size,)
    numbers = tuple(int(n) for n in size if isinstance(n, int) or n.isdecimal())
    return Recording(file.kernel_name, file.device_name, numbers, parameters, tuple(results.values()), None, excluded)


def document(recording: Recording) -> str:
    """A cache file that is closed. Raises KforgeError for values that its keys could not tell apart."""
    for name, values in recording.choices.items():
        if odd := [v for v in values if isinstance(v, str) and "," in v]:
            raise KforgeError(f"{recording.kernel}: {name}={odd[0]!r} has a comma, which keys of a cache are split at")
    head = {
        "device_name": recording.device,
        "kernel_name": recording.kernel,
        "problem_size": list(recording.size),
        "tune_params_keys": list(recording.parameters),
        "tune_params": {name: list(values) for name, values in recording.choices.items()},
        "objective": "time",
    }
    lines = ",\n".join(json.dumps({_key(r.values): _entry(recording, r)})[1:-1] for r in recording.results)
    # Kernel Tuner knows a closed file by its last three characters.
    return f'{json.dumps(head, indent=0)[:-2]},\n"cache": {{\n{lines}}}\n}}'


def _key(values: tuple[Value, ...]) -> str:
    return ",".join(str(value) for value in values)


def _entry(recording: Recording, result: Result) -> dict[str, Any]:
    said = t4.invalidity(result.failure)
    entry: dict[str, Any] = dict(zip(recording.parameters, result.values, strict=True))
    if result.seconds is None:
        entry |= {"time": t4.ERRORS[said], _FINER: said, t4.FAILURE: str(result.failure)}
    else:
        entry |= {"time": result.seconds / _MS, "times": [t / _MS for t in result.runtimes]}
    return entry | dict.fromkeys(_TIMES, 0.0) | {"compile_time": result.build_seconds / _MS}


def _result(where: str, entry: dict[str, Any], values: tuple[Value, ...], objective: str) -> Result | None:
    """None for a point outside the space."""
    error = next((v for v in entry.values() if isinstance(v, str) and v in _INVALIDITY), None)
    build = _seconds(entry.get("compile_time", 0.0)) or 0.0
    if error is not None:
        said = _INVALIDITY[error]
        if said == "constraints":
            return None
        finer = entry.get(_FINER)
        said = finer if isinstance(finer, str) and finer in t4.CLASS else said
        return Result(values, None, t4.failure_of(said, entry.get(t4.FAILURE)), error, (), build)
    if "time" not in entry:
        raise KforgeError(f"{where}: it has no time (the objective was {objective})")
    seconds = _seconds(entry["time"])
    if seconds is None or not 0 < seconds < float("inf"):
        raise KforgeError(f"{where}.time: a call cannot take {entry['time']!r} ms")
    times = entry.get("times")
    single = tuple(t for t in map(_seconds, times) if t is not None) if isinstance(times, list) else ()
    return Result(values, seconds, None, "", single, build)


def _seconds(value: object) -> float | None:
    """Of milliseconds; None for what is no number."""
    return value * _MS if isinstance(value, int | float) and not isinstance(value, bool) else None


def _closed(text: str) -> str:
    """The text of a file that may have been left open behind some point."""
    if text.endswith(("}\n}", "}}}")) or not text:
        return text
    try:
        json.loads(text)
    except ValueError:
        return text.removesuffix(",") + "}\n}"
    return text
