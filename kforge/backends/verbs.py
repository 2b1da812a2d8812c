"""What a backend does, whatever its language and silicon: the few verbs that the rest of kforge calls.

A backend is a folder ``kforge/backends/NAME`` with a class that has these methods, listed in ``of``; a target names
those that build for it (``Target.backends``). Building and inspecting need no device; for
checking something may stand in for it; timing is done on the device alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from kforge.core.errors import KforgeError
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure
from kforge.core.workload import Workload

if TYPE_CHECKING:
    import numpy as np

    from kforge.operators.base import Arrays


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


class Caller(Protocol):
    """Runs one candidate, call by call, in a locked-down process of its own."""

    def run_once(self, workload: Workload, inputs: Arrays, threads: int, poison: int, fence: int, strided: bool,
                 seconds: float, late: int | None = None) -> dict[str, np.ndarray] | Failure:
        """The ``out`` and ``inout`` tensors after one call, which may take ``seconds``. Outputs and scratch are
        poisoned with the byte ``poison``, the byte ``fence`` lies around every tensor and is compared afterwards
        (FENCE), inputs too (INPUT_MODIFIED); ``strided``: activations lie as ``kforge.harness.forms`` says. ``late``
        may be ignored where there are no threads. A fault is CRASH, too long TIMEOUT."""


class StandIn(Caller, Protocol):
    """A caller that is not the candidate's device. ``where``: "interpreter", "qemu", "fibers"."""

    where: str

    def close(self) -> None: ...


class Backend(Protocol):
    """Instances hold no state; failures of candidates are values, KforgeError is for what a person has to mend."""

    name: str

    def cannot_build(self, target: Target) -> str:
        """Why artifacts for this target cannot be built on this machine; "" when they can."""

    def cannot_run(self, target: Target) -> str:
        """Why kernels cannot be timed here (no such device, no driver); "" when they can."""

    def build(self, candidate: Candidate, target: Target) -> Artifact | Failure:
        """In the sandbox; what was built before comes from the cache."""

    def inspect(self, artifact: Artifact, workload: Workload, target: Target) -> StaticReport:
        """From the binary, the compiler's report and the target's limits."""

    def stand_in(self, candidate: Candidate, artifact: Artifact, target: Target) -> StandIn | Failure:
        """A sandboxed process in which the candidate runs on this machine although its device is not here.

        ``kforge.harness.offline`` makes the cases, and holds what comes back against the references, which no
        candidate's process ever sees. Raises KforgeError where there is nothing of the kind.
        """


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
