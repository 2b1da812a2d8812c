"""What confines candidates on this machine, proven by children that try what they must not; and the minimum of it."""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag

from kforge.core.errors import KforgeError
from kforge.harness.binaries import runner
from kforge.harness.sandbox import Facts, describe
from kforge.harness.sandbox.remembered import remembered
from kforge.harness.zygote import Zygote


class Layer(IntFlag):
    """What a candidate's process is kept in by (``jail.h``)."""

    FILTER = 1
    FILES = 2
    PRIVILEGES = 4
    LIMITS = 8
    LANDLOCK = 16


@dataclass(frozen=True)
class RunFacts:
    """What a child that is locked down as for a candidate was seen to be kept from on this machine."""

    layers: Layer
    tried: int  # system calls that must end it, each made by a thread of a child of its own
    survived: tuple[str, ...]  # those that did not end it

    @property
    def needed(self) -> Layer:
        """What every further child must have: what was seen to hold must go on holding."""
        return self.layers


@dataclass(frozen=True)
class Promise:
    """One thing that candidates are promised to be kept from: whether it holds here, by what, and what to do if not."""

    step: str  # "build" (the compiler that reads a candidate) or "run" (the process that executes it)
    rests_on: str
    meaning: str
    holds: bool
    needed: bool  # without it no candidate runs unless it is trusted
    advice: str


@dataclass(frozen=True)
class Confinement:
    """All that was proven. Build with ``proven``; a test may make one of its own."""

    build: Facts
    run: RunFacts

    @property
    def promises(self) -> tuple[Promise, ...]:
        build, run, layers = self.build, self.run, self.run.layers
        calls = f"{run.tried - len(run.survived)} of {run.tried} forbidden system calls ended it, on a worker thread"
        loose = f"; not: {', '.join(run.survived)}" if run.survived else ""
        elsewhere = "run on a kernel and in a container that allow it"
        return (
            Promise("build", "seccomp", "a compiler has no network and reaches no other process", build.seccomp, True,
                    elsewhere),
            Promise("build", "landlock", "a compiler reads and writes only its toolchain and its folder",
                    build.landlock, True, "needs Linux >= 5.13 with Landlock enabled (lsm=landlock,...)"),
            Promise("build", "rlimits", "memory, time and files of a compiler are bounded", build.rlimits, True,
                    elsewhere),
            Promise("build", "capabilities", "a compiler has no privileges and gains none", build.privileges, True,
                    elsewhere),
            Promise("build", "uid", "a compiler does not run as root", build.unprivileged, False,
                    "run kforge as an ordinary user, from folders that others may enter"),
            Promise("build", "namespaces", "what a compiler starts dies with it and sees no other process",
                    build.namespaces, False, "allow unprivileged user namespaces "
                    "(sysctl kernel.unprivileged_userns_clone=1), or run in a VM"),
            Promise("run", "seccomp", f"a kernel makes no system call: {calls}{loose}", Layer.FILTER in layers, True,
                    elsewhere),
            Promise("run", "descriptors", "a kernel's process has no open file", Layer.FILES in layers, True,
                    elsewhere),
            Promise("run", "uid", "a kernel's process has no privileges and gains none", Layer.PRIVILEGES in layers,
                    True, "run where the uid 65534 exists (in a container, map it), or as an ordinary user"),
            Promise("run", "rlimits", "a kernel's process is bounded in time and writes no file",
                    Layer.LIMITS in layers, True, elsewhere),
            Promise("run", "landlock", "a second lock on files, behind the filter", Layer.LANDLOCK in layers, False,
                    "needs Linux >= 5.13 with Landlock enabled (lsm=landlock,...)"),
        )

    @property
    def missing(self) -> tuple[Promise, ...]:
        """What the minimum lacks here."""
        return tuple(p for p in self.promises if p.needed and not p.holds)


def require(confinement: Confinement, trust_candidates: bool) -> None:
    """Raises KforgeError, naming what is missing, where candidates may only run if they are trusted, and are not."""
    if trust_candidates or not confinement.missing:
        return
    first, *others = confinement.missing
    more = f" (and {len(others)} more, see kforge doctor)" if others else ""
    raise KforgeError(f"untrusted candidates are not run here: {first.rests_on} does not hold in the {first.step} "
                      f"step, so nothing ensures that {first.meaning}{more}; {first.advice}, or pass "
                      "--trust-candidates if you would run programs of those who wrote them")


@dataclass(frozen=True)
class Provenance:
    """What the registry keeps of the sandbox beside a kernel that it accepts."""

    trusted: bool  # it ran without the minimum, on the user's word
    missing: tuple[str, ...]

    @classmethod
    def of(cls, confinement: Confinement, trust_candidates: bool) -> Provenance:
        missing = tuple(f"{p.step}: {p.rests_on}" for p in confinement.missing)
        return cls(trust_candidates and bool(missing), missing)


@functools.cache
def proven() -> Confinement:
    """What holds here, tried once a boot. Raises KforgeError when there is no compiler."""
    kept = remembered("run", [runner()], _tried_run, {"layers": int(~Layer(0)), "survived": []})
    return Confinement(describe(), RunFacts(Layer(kept["layers"]), kept["tried"], tuple(kept["survived"])))


def _tried_run() -> dict[str, object]:
    facts = _prove_run(sorted(os.sched_getaffinity(0))[:2])
    return {"layers": int(facts.layers), "tried": facts.tried, "survived": list(facts.survived)}


def _prove_run(cpus: Sequence[int]) -> RunFacts:
    with Zygote.empty(mmap.PAGESIZE) as zygote:
        control = zygote.attempt(0, cpus)
        if not control.survived:
            raise KforgeError(f"the harness's runner cannot be proven: a child that only had {control.name} ended with "
                              f"wait status {control.status}; run kforge doctor on another kernel or container")
        looked = zygote.attempt(1, cpus)
        layers = Layer(looked.result) if looked.survived else Layer(0)
        calls = [zygote.attempt(n, cpus) for n in range(2, control.attempts)]
    survived = tuple(call.name for call in calls if not call.forbidden)
    return RunFacts(layers if survived else layers | Layer.FILTER, len(calls), survived)
