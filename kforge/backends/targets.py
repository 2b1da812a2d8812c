"""Targets by name, those included that a driver on this machine describes rather than a file."""

from __future__ import annotations

from kforge.core.target import Target
from kforge.targets.files import load_target

OPENCL = "opencl"


def target_called(name: str) -> Target:
    """``host``, a target file's name or path, ``opencl`` (this machine's only OpenCL device) or ``opencl-DEVICE``.

    Raises KforgeError that says what there is.
    """
    if name == OPENCL or (name.startswith(f"{OPENCL}-") and not name.endswith(".toml")):
        from kforge.backends.opencl.devices import target_named

        return target_named(name, load_target("host"))
    return load_target(name)


def why_not_here(target: Target) -> str:
    """Why kernels for it cannot be run on this machine; "" when they can."""
    from kforge.backends.verbs import of

    if not target.backends:
        return f"no backend builds for {target.name}"
    return of(target.backends[0]).cannot_run(target)
