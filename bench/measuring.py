"""What every bench shares: the machine's facts, robust statistics, and figures as JSON."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Stat:
    """Median of repeated runs, with the interquartile range over the median as spread."""

    median: float
    spread: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Stat:
        if len(values) < 2:
            return cls(values[0], 0.0, len(values))
        low, middle, high = statistics.quantiles(values, n=4)
        return cls(middle, (high - low) / middle if middle else 0.0, len(values))

    def __str__(self) -> str:
        return f"{self.median:.3g} ±{100 * self.spread / 2:.1f} %"


def machine() -> dict[str, object]:
    """Facts that a reader needs to repeat a figure; no host name, no paths."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    compilers = {}
    for name in ("g++", "clang++", "clang++-19"):
        try:
            compilers[name] = subprocess.run(
                [name, "--version"], capture_output=True, text=True, check=True
            ).stdout.split("\n")[0]
        except (OSError, subprocess.CalledProcessError):
            continue
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "optuna", "gguf")}
    return {
        "cpu": model,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "compilers": compilers,
        "versions": versions,
    }


def write_json(path: Path | None, command: str, figures: dict[str, object]) -> None:
    """Figures with the machine and the command that made them; nothing when no path was given."""
    if path is not None:
        path.write_text(
            json.dumps({"command": command, "machine": machine(), **figures}, indent=1, default=_plain) + "\n"
        )


def _plain(value: object) -> object:
    if isinstance(value, Stat):
        return asdict(value)
    raise TypeError(f"{value!r} is not a figure")
