"""Spaces of which every point was measured once, read from files: what a strategy finds there takes no hardware.

Formats: T4 results (FAIR benchmark hub for auto-tuning), and Kernel Tuner's caches; both plain or gzipped JSON.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from kforge.core.errors import KforgeError, sentence_of
from kforge.core.workload import Attr
from kforge.tuner.strategies.space import DiscreteSpace

_CHUNK = 1 << 20  # characters read at a time: a file of a large space does not fit in memory as objects
_RESULTS = re.compile(r'"results"\s*:\s*\[')
_BETWEEN = " \t\r\n,"
_ILLEGAL = "constraints"  # T4's word for a configuration outside the space


@dataclass(frozen=True, eq=False)
class Recorded:
    """``cost`` [points]: what each point took, in the file's unit, the less the better; NaN where it failed."""

    name: str
    space: DiscreteSpace
    cost: np.ndarray

    @property
    def optimum(self) -> float:
        return float(np.nanmin(self.cost))

    def best(self, count: int) -> list[dict[str, Attr | None]]:
        """Parameters of the points that took least."""
        return [self.parameters(int(p)) for p in np.argsort(self.cost)[:count]]  # NaN comes last

    def parameters(self, point: int) -> dict[str, Attr | None]:
        codes = self.space.codes[point]
        return {name: self.space.values[name][code] for name, code in zip(self.space.names, codes, strict=True)}


def read(path: Path) -> Recorded:
    """Raises KforgeError for a file that is neither, or of which no point ever worked."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
            recorded = _recorded(path, _measured(cast(IO[str], file)))
    except (OSError, EOFError) as error:
        why = sentence_of(error) if isinstance(error, OSError) and error.errno else str(error)
        raise KforgeError(f"cannot read the recorded space {path}: {why}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise KforgeError(
            f"{path} is neither T4 results nor a cache of Kernel Tuner ({type(error).__name__}: {error}); leave it out"
        ) from error
    if np.isnan(recorded.cost).all():
        raise KforgeError(f"in {path} no configuration ever worked; leave it out")
    return recorded


def _recorded(path: Path, measured: Iterator[tuple[Mapping[str, Attr], float]]) -> Recorded:
    columns: dict[str, list[Attr]] = {}
    cost: list[float] = []
    seen: set[int] = set()
    for configuration, value in measured:
        if not cost:
            columns = {name: [] for name in configuration}
        if configuration.keys() != columns.keys():
            raise ValueError("its configurations differ in their parameters")
        key = hash(tuple(configuration[name] for name in columns))
        if key in seen:  # measured again
            continue
        seen.add(key)
        for name, column in columns.items():
            column.append(configuration[name])
        cost.append(value)
    if not cost:
        raise ValueError("it has no configuration")
    return Recorded(path.name.split(".")[0], DiscreteSpace(columns), np.array(cost))


def _measured(file: IO[str]) -> Iterator[tuple[Mapping[str, Attr], float]]:
    """Configurations with what they took, one after the other."""
    text = file.read(_CHUNK)
    while not (start := _RESULTS.search(text)):
        if '"cache"' in text or not (more := file.read(_CHUNK)):
            yield from _of_cache(json.loads(text + file.read()))
            return
        text += more
    for result in _objects(text[start.end() :], file):
        if result["invalidity"] != _ILLEGAL:
            yield result["configuration"], _t4_cost(result)


def _objects(text: str, file: IO[str]) -> Iterator[dict]:
    """The members of a list of which ``text`` is the beginning, while the rest is read as it is needed."""
    decoder = json.JSONDecoder()
    at = 0
    while True:
        while at < len(text) and text[at] in _BETWEEN:
            at += 1
        if text[at : at + 1] == "]":
            return
        try:
            found, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            more = file.read(_CHUNK)
            if not more:
                raise
            text, at = text[at:] + more, 0
            continue
        yield found


def _t4_cost(result: Mapping) -> float:
    """Of the first objective; a rate ("GFLOP/s") counts inversely."""
    if result["invalidity"] != "correct":
        return np.nan
    name = result["objectives"][0]
    value = next(m["value"] for m in result["measurements"] if m["name"] == name)
    return _cost(name, value)


def _of_cache(cache: Mapping) -> Iterator[tuple[Mapping[str, Attr], float]]:
    names = cache["tune_params_keys"]
    objective = cache.get("objective", "time")
    for entry in cache["cache"].values():
        value = np.nan if "__error__" in entry else entry.get(objective)
        yield {name: entry[name] for name in names}, _cost(objective, value)


def _cost(name: str, value: object) -> float:
    """NaN for what is no number: both formats put the name of a failure there."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        return np.nan
    return 1.0 / value if "/s" in name.lower() or "flop" in name.lower() else float(value)
