"""A peer at its best: its settings are tried one after the other on a short trace, and the fastest are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from peers.process import Process, Refused
from peers.steps import REST
from peers.trace import Trace

# What another value must gain to be taken: less is noise between single runs.
_GAIN = 1.03

Start = Callable[[dict[str, object]], Process]


@dataclass(frozen=True)
class Settled:
    """A running driver, its settings, and how fast each setting was: prompt and output tokens a second on the trial."""

    process: Process
    settings: dict[str, object]
    speed: float
    tried: list[dict[str, object]]


def settle(start: Start, choices: Mapping[str, Sequence[object]], trial: Trace, console: Console) -> Settled:
    """Starts with the first value of every choice, and walks through the choices in their order. A value that the
    engine refuses is not taken; the first ones must be possible, or this raises ``Refused``."""
    settings = {name: values[0] for name, values in choices.items()}
    process = start(settings)
    speed = _speed(process, trial)
    tried: list[dict[str, object]] = [{**settings, "speed": speed}]
    for name, values in choices.items():
        for value in values[1:]:
            other_settings = {**settings, name: value}
            try:
                other = start(other_settings)
                other_speed = _speed(other, trial)
            except Refused as refusal:
                tried.append({**other_settings, "refused": str(refusal)})
                continue
            tried.append({**other_settings, "speed": other_speed})
            if other_speed > speed * _GAIN:
                process, other = other, process
                settings, speed = other_settings, other_speed
            other.close()
    if len(tried) > 1:
        console.print(f"{process.name}: {spelled(settings)} is the fastest of {len(tried)} settings")
    return Settled(process, settings, speed, tried)


def spelled(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _speed(process: Process, trial: Trace) -> float:
    request = trial.request(0.0)
    times: list[list[float]] = process.ask(request)["times"]  # type: ignore[assignment]
    time.sleep(REST)
    return (trial.prompt_tokens + trial.output_tokens) / max(t[-1] for t in times)
