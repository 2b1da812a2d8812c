"""The OpenCL device of this machine, for tests that need one."""

from __future__ import annotations

import pytest

from kforge.core.target import Target


def opencl_target() -> Target:
    """Skips the test, saying why, where there is no device that kforge can use."""
    from kforge.backends.opencl.backend import OpenClBackend
    from kforge.backends.opencl.devices import devices, target_of
    from kforge.targets.files import host

    if not devices():
        pytest.skip("no OpenCL device here: apt-get install pocl-opencl-icd ocl-icd-libopencl1")
    target = target_of(devices()[0], host(quick=True))
    if why := OpenClBackend().cannot_run(target):
        pytest.skip(why)
    return target
