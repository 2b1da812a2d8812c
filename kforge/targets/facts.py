"""What a reader needs to know of a machine to repeat a figure that was measured on it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata

from kforge.native import find_compilers
from kforge.targets.cpu import read_cpu

_PACKAGES = ("numpy", "torch", "optuna", "gguf")


@dataclass(frozen=True)
class MachineFacts:
    """No host name, no paths."""

    cpu: str
    cores: int
    system: str
    python: str
    compilers: tuple[str, ...]
    versions: dict[str, str]  # of the packages that figures depend on


def machine_facts() -> MachineFacts:
    """This machine, as it is now."""
    cpu = read_cpu()
    return MachineFacts(
        cpu.model,
        cpu.cores,
        f"{platform.system()} {platform.release()}",
        platform.python_version(),
        tuple(f"{c.name} {c.version}" for c in find_compilers()),
        {name: metadata.version(name) for name in _PACKAGES},
    )
