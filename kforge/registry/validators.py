"""What must still hold for a stored kernel to be served, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kforge.core.kernel import KernelRecord


class Severity(StrEnum):
    HARD = "hard"  # never served
    SOFT = "soft"  # served, flagged stale, queued for tuning again


@dataclass(frozen=True)
class Validator:
    """A field of a kernel that is held against the present toolchain."""

    field: str
    severity: Severity
    why: str


VALIDATORS: dict[str, tuple[Validator, ...]] = {
    "cpp": (
        Validator("abi_version", Severity.HARD, "the executor calls kernels of its own ABI version only"),
        Validator("operator_version", Severity.HARD, "the operator's contract has changed"),
        Validator(
            "compiler", Severity.SOFT, "another compiler may do better today; the stored machine code is unaffected"
        ),
    ),
    "opencl": (
        Validator("operator_version", Severity.HARD, "the operator's contract has changed"),
        Validator(
            "compiler", Severity.HARD, "a device's binary is its driver's own: another version may refuse it, or load "
            "it in another way than the one that was checked"
        ),
    ),
}


@dataclass(frozen=True)
class Toolchain:
    """The present values that stored kernels are held against."""

    abi_version: int
    operator_versions: tuple[tuple[str, int], ...]
    compilers: tuple[str, ...]  # "g++ 12.2.0", ...; empty: not checked (no compiler is needed to serve)


@dataclass(frozen=True)
class Conflict:
    severity: Severity
    text: str


def conflicts(kernel: KernelRecord, toolchain: Toolchain) -> tuple[Conflict, ...]:
    """How a stored kernel differs from the present toolchain; empty when nothing does."""
    found = []
    for validator in VALIDATORS.get(kernel.backend, ()):
        stored = getattr(kernel, validator.field)
        if validator.field == "compiler":
            differs = bool(toolchain.compilers) and stored not in toolchain.compilers
            now: object = ", ".join(toolchain.compilers)
        elif validator.field == "operator_version":
            now = dict(toolchain.operator_versions).get(kernel.problem.operator, stored)
            differs = now != stored
        else:
            now = getattr(toolchain, validator.field)
            differs = now != stored
        if differs:
            found.append(Conflict(validator.severity, f"{validator.field} is {stored}, now {now}: {validator.why}"))
    return tuple(found)
