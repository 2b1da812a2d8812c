"""What a backend does, whatever its language and silicon: the few verbs that the rest of kforge calls.

A backend is a folder ``kforge/backends/NAME`` with a class that has these methods, listed in ``of``; a target names
those that build for it (``Target.backends``). Building, inspecting and checking need no device; timing does.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from kforge.core.errors import KforgeError
from kforge.core.image import Loadable
from kforge.core.launch import Launch
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure
from kforge.core.workload import Workload


@dataclass(frozen=True)
class StaticReport:
    """What is known of a binary without running it. Times are predictions of a cost model, never measurements.

    ``resources``: "registers" a thread, "spill_bytes" a thread, "shared_bytes" a group, "warps" a group, ...;
    ``occupancy``: resident warps over the most that a unit holds, 0 where it does not apply; ``mix``: instruction class
    -> count in the main loop; ``seconds``: predicted for one call; ``bound``: which limit that is ("memory", ...);
    ``notes``: what was not known or assumed, in sentences.
    """

    resources: tuple[tuple[str, int], ...]
    mix: tuple[tuple[str, int], ...]
    occupancy: float
    seconds: float
    bound: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """A candidate that was right wherever it was checked. ``exact``: bit for bit the order specification everywhere."""

    cases: int
    max_error_ratio: float  # worst |out - ref| over the bound
    exact: bool
    where: str  # "device", or what stood in for it: "interpreter", "qemu", "fibers"


class Backend(Protocol):
    """Instances hold no state; failures of candidates are values, KforgeError is for what a person has to mend."""

    name: str

    def cannot_build(self, target: Target) -> str:
        """Why artifacts for this target cannot be built on this machine; "" when they can."""

    def cannot_run(self, target: Target) -> str:
        """Why kernels cannot be timed here (no such device, no driver); "" when they can."""

    def build(self, candidate: Candidate, target: Target) -> Artifact | Failure:
        """In the sandbox; what was built before comes from the cache."""

    def admit(self, data: bytes, target: Target) -> Loadable | Failure:
        """What a runner on this machine loads of an artifact's bytes, wherever they come from, or why not."""

    def launches(self, data: bytes) -> tuple[Launch, ...]:
        """Those that an artifact's bytes carry; none of a language without a grid."""

    def inspect(self, artifact: Artifact, workload: Workload, target: Target) -> StaticReport:
        """From the binary, the compiler's report and the target's limits."""

    def check(self, candidate: Candidate, workload: Workload, target: Target, seed: int) -> Checked | Failure:
        """Against the operator's bound (and, when it claims to be exact, its order specification) at the workload's
        bucket, on the device where there is one, else on what stands in for it; inside the sandbox."""


_KNOWN = {"cpp": "kforge.backends.cpp.backend:CppBackend", "triton": "kforge.backends.triton.backend:TritonBackend",
          "opencl": "kforge.backends.opencl.backend:OpenClBackend"}


def of(name: str) -> Backend:
    """The backend of this name. Raises KforgeError for an unknown one."""
    if name not in _KNOWN:
        raise KforgeError(f"no backend '{name}'; there are {', '.join(sorted(_KNOWN))}")
    module, _, cls = _KNOWN[name].partition(":")
    found: Backend = getattr(import_module(module), cls)()
    return found


def names() -> tuple[str, ...]:
    return tuple(sorted(_KNOWN))
