"""Problems and buckets in the few words that a heading or an axis has room for."""

from __future__ import annotations

from kforge.core.workload import Problem

_SILENT = {"none", 0}


def short_problem(key: str) -> str:
    """``linear(K=576,N=960,act=a8,bias=0,...)`` as ``linear 576x960 q4_1 a8``."""
    problem = Problem.parse(key)
    static = dict(problem.static)
    words = [problem.operator]
    if "K" in static:
        words.append(f"{static.pop('K')}x{static.pop('N')}")
    for name in ("weight", "act", "epilogue", "kv", "style"):
        if (value := static.pop(name, "none")) not in _SILENT:
            words.append(str(value))
    words += [f"{name}={value}" for name, value in static.items() if value not in _SILENT and name != "rows"]
    return " ".join(words)


def short_bucket(key: str) -> str:
    """The axes that tell a bucket from its neighbours: ``M=8``."""
    axes = key.rpartition("@")[2].split(",")
    told = [a for a in axes if a.partition("=")[0] not in ("pages", "positions", "B")]
    return " ".join(told or axes) or "-"


def short_template(path: str) -> str:
    """A template's name without its folder and endings."""
    return path.rsplit("/", 1)[-1].partition(".")[0]


def microseconds(seconds: float) -> str:
    us = 1e6 * seconds
    return f"{us:.3g}" if us < 100 else f"{us:.0f}"
