"""What a machine's noise does to comparisons, measured by ``kforge judge calibrate`` and kept with the target."""

from __future__ import annotations

import logging
import tomllib
from dataclasses import dataclass
from pathlib import Path

from kforge.core.drafts import write_whole
from kforge.core.errors import KforgeError
from kforge.core.paths import data_dir
from kforge.core.target import Target
from kforge.targets.fields import Table

DURATION_CLASSES = (50e-6, 1e-3, float("inf"))  # upper ends, seconds of a call: hand-over, wake-ups and drift weigh
_log = logging.getLogger("kforge.targets")


@dataclass(frozen=True)
class NoiseClass:
    """Of kernels whose calls take at most ``up_to_seconds`` (and longer than the class below).

    ``floor``: how far a kernel can seem to be from itself however long one measures, as a ratio minus one.
    ``stretch``: how much more the means of a comparison scatter than independent zygotes would (at least 1).
    ``scatter_limit``: standard deviation of zygotes' log ratios beyond which nothing was calibrated: floor and bounds
    grow by as many times as it is passed.
    """

    up_to_seconds: float
    floor: float
    stretch: float
    scatter_limit: float


@dataclass(frozen=True)
class Noise:
    """Of comparisons with ``threads`` threads. ``zygotes``: how many A/A samples stand behind it; 0: none, defaults."""

    threads: int
    classes: tuple[NoiseClass, ...]
    zygotes: int = 0
    measured: str = ""  # date, ISO 8601

    def at(self, seconds: float) -> NoiseClass:
        """The class of calls that take ``seconds``; the longest where none reaches so far."""
        return next((c for c in self.classes if seconds <= c.up_to_seconds), self.classes[-1])

    def summary(self) -> str:
        """One line for a person."""
        floors = ", ".join(f"{100 * c.floor:.2f} %" for c in self.classes)
        return f"calibrated for {self.threads} threads on {self.measured}, A/A floors {floors} from short to long calls"


# Before a machine is calibrated: it may be worse than any that was measured, so little is accepted and little noise is
# borne. On the quiet two-core machines that were measured the floor is below 0.5 % and the scatter about 1 %.
UNCALIBRATED = Noise(0, (NoiseClass(float("inf"), 0.02, 1.5, 0.03),))


def noise_of(target: Target, threads: int) -> Noise:
    """What was calibrated on this target for so many threads; ``UNCALIBRATED`` where nothing was, or not legibly."""
    path = noise_path(target, threads)
    if not path.is_file():
        return UNCALIBRATED
    try:
        return read_noise(path)
    except KforgeError as error:
        _log.warning("%s: judging as on a machine that was never calibrated", error)
        return UNCALIBRATED


def calibrations(target: Target) -> tuple[Noise, ...]:
    """All that was calibrated on this target, by threads. Raises KforgeError for a file that cannot be read."""
    counts = range(1, target.cores + 1)
    return tuple(read_noise(path) for n in counts if (path := noise_path(target, n)).is_file())


def noise_path(target: Target, threads: int) -> Path:
    """A folder of its own: what lies beside the targets' files is taken for a target."""
    return data_dir() / "targets" / "noise" / f"{target.identity}-{threads}.toml"


def read_noise(path: Path) -> Noise:
    """Raises KforgeError, naming file and field."""
    try:
        table = Table(str(path), "", tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise KforgeError(f"cannot read the calibration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KforgeError(f"{path}: not valid TOML: {error}; kforge judge calibrate replaces it") from error
    classes = []
    for row in table.tables("classes"):
        ends = row.text("up_to")
        known = {_end_name(end): end for end in DURATION_CLASSES}
        if ends not in known:
            raise KforgeError(f"{path}: classes up_to must be one of {', '.join(known)}, not {ends}")
        found = NoiseClass(known[ends], row.number("floor"), row.positive("stretch"), row.positive("scatter_limit"))
        row.no_more()
        if found.stretch < 1:
            raise KforgeError(f"{path}: classes stretch must be at least 1, not {found.stretch:g}")
        classes.append(found)
    if not classes:
        raise KforgeError(f"{path}: no classes; kforge judge calibrate replaces it")
    noise = Noise(table.count("threads"), tuple(sorted(classes, key=lambda c: c.up_to_seconds)), table.count("zygotes"),
                  table.text("measured"))
    table.no_more()
    return noise


def save_noise(noise: Noise, target: Target) -> Path:
    """Written whole or not at all; returns the path. Raises KforgeError."""
    import tomli_w

    path = noise_path(target, noise.threads)
    text = tomli_w.dumps({
        "threads": noise.threads, "zygotes": noise.zygotes, "measured": noise.measured,
        "classes": [{"up_to": _end_name(c.up_to_seconds), "floor": round(c.floor, 6), "stretch": round(c.stretch, 4),
                     "scatter_limit": round(c.scatter_limit, 6)} for c in noise.classes],
    })
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise KforgeError(f"cannot write the calibration {path}: {error.strerror}") from error
    return path


def _end_name(seconds: float) -> str:
    return "any" if seconds == float("inf") else f"{seconds * 1e6:g}us"
