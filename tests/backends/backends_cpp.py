"""What the tests of this room share: this machine as a target, and candidates from source text."""

from __future__ import annotations

import platform

from kforge.backends.cpp.flags import host_processor
from kforge.core.target import Compiler, Target
from kforge.core.trial import Candidate, NumericsClass
from kforge.core.workload import Attr, Problem, attrs
from kforge.native.compilers import find_compilers

SILU = Problem.of("silu_mul", I=64)


def target(*features: str, compilers: tuple[Compiler, ...] | None = None, model: str = "some processor") -> Target:
    """A CPU of this machine's architecture with exactly these features."""
    return Target("test", "cpu", "vendor", model, platform.machine(), tuple(sorted(features)), 2, (), 1 << 30, (), (),
                  find_compilers() if compilers is None else compilers)


def host() -> Target:
    model, features = host_processor()
    return target(*features, model=model)


def candidate(source: str, problem: Problem = SILU, **params: Attr) -> Candidate:
    return Candidate(problem, "cpp", "file:test", "0" * 16, attrs(params), source, NumericsClass.EXACT, ())


def kernel(body: str, before: str = "") -> Candidate:
    """A candidate whose kernel has this body; ``launch`` is its argument."""
    return candidate(f"#include <kforge/abi.h>\n{before}\nvoid kforge_kernel(const kf_launch *launch) {{\n{body}\n}}\n")
