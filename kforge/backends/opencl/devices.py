"""The OpenCL devices of this machine, and the targets that they are.

A device is described by its driver, which is asked in a process of its own: a driver starts threads and loads a
compiler, which nobody wants in the parent.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from dataclasses import dataclass, replace

from kforge.backends.opencl.programs import tool
from kforge.core.errors import KforgeError
from kforge.core.target import Compiler, Gpu, Target

_SECONDS = 60
_FIELDS = 14
_POCL = "Portable Computing Language"
_CPU, _GPU = 1 << 1, 1 << 2
# CL_DEVICE_SINGLE_FP_CONFIG: what exact kernels ask of a device.
_FP = {"cl_denorm": 1 << 0, "cl_fma": 1 << 5, "cl_exact_divide_sqrt": 1 << 7}
_INSTALL = "install a driver (Debian: apt-get install pocl-opencl-icd ocl-icd-libopencl1 runs OpenCL on any processor)"
_NOTED = ("cl_khr_fp16", "cl_khr_fp64", "cl_khr_subgroups", "cl_khr_integer_dot_product", "cl_khr_int64_base_atomics")


@dataclass(frozen=True)
class Device:
    """One device as its driver describes it. ``number`` counts those of all platforms, in the loader's order."""

    number: int
    name: str
    vendor: str
    version: str  # "OpenCL 3.0 ..."
    driver: str
    extensions: tuple[str, ...]
    kind: str  # "cpu" or "gpu"
    units: int
    group_size: int  # threads of a group, at most
    cache_bytes: int
    memory_bytes: int
    local_bytes: int
    shares_memory: bool  # with the host: what kforge's runner asks of a device
    fp: tuple[str, ...]  # of ``_FP``
    platform: str

    @property
    def gated(self) -> bool:
        """Whether the runner can hold its kernels back until the process is locked down (``gate.h``), and its driver
        needs no system call to launch them."""
        return self.kind == "cpu" and self.platform == _POCL

    @property
    def compiler(self) -> str:
        """What builds for it, with its version: a driver's compiler is the driver."""
        return f"{self.platform} {self.driver}"

    @property
    def slug(self) -> str:
        return "opencl-" + re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:40].strip("-")


@functools.cache
def devices() -> tuple[Device, ...]:
    """All of them, asked once in a process's life. None where there is no loader. Raises KforgeError where the drivers
    do not answer."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run([str(tool()), "devices"], capture_output=True, text=True, timeout=_SECONDS,
                                  check=False, cwd=folder, env={"HOME": folder, "POCL_CACHE_DIR": folder})
        except subprocess.TimeoutExpired:
            raise KforgeError(f"the OpenCL drivers of this machine did not answer within {_SECONDS} s: see clinfo, and "
                              "/etc/OpenCL/vendors for the drivers that are there") from None
    if done.returncode != 0:
        if "there is no OpenCL loader" in done.stderr:
            return ()
        raise KforgeError(f"the OpenCL drivers of this machine cannot be asked: {done.stderr.strip()[:300]}")
    return parsed(done.stdout)


def parsed(text: str) -> tuple[Device, ...]:
    """Devices of what ``kforge-opencl devices`` prints. Raises KforgeError for a line that is none."""
    found = []
    for number, line in enumerate(text.splitlines()):
        fields = line.rstrip("\t").split("\t")
        if len(fields) != _FIELDS or not all(field.isdecimal() for field in fields[5:13]):
            raise KforgeError(f"OpenCL device {number} is not described in the way that is expected: {line[:200]!r}")
        kind, units, group, cache, memory, local, unified, config = map(int, fields[5:13])
        fp = tuple(name for name, bit in _FP.items() if config & bit)
        found.append(Device(number, fields[0].strip(), fields[1].strip(), fields[2].strip(), fields[3].strip(),
                            tuple(fields[4].split()), "cpu" if kind & _CPU else "gpu" if kind & _GPU else "other",
                            units, group, cache, memory, local, bool(unified), fp, fields[13].strip()))
    return tuple(found)


def target_of(device: Device, host: Target) -> Target:
    """The device as a target. Bandwidth, peaks and caches of a device that is the host's processor are the host's, as
    measured there; nothing is known of another's."""
    own = device.kind == "cpu"
    named = re.sub(r"[^a-z0-9]+", "-", f"{device.platform} {device.name}".lower()).strip("-")
    features = sorted({*device.fp, *(e for e in device.extensions if e in _NOTED), f"on-{named}",
                       *(["cl_shared_memory"] if device.shares_memory else [])})
    return Target(name=device.slug, kind="cpu" if own else "gpu", vendor=device.vendor, model=device.name,
                  arch="opencl", features=tuple(features), cores=min(device.units, host.cores) if own else device.units,
                  caches=host.caches if own else (), memory_bytes=device.memory_bytes,
                  bandwidth=host.bandwidth if own else (), peaks=host.peaks if own else (),
                  compilers=(Compiler("", device.platform, device.driver),),
                  levels=host.levels if own else (), backends=("opencl",),
                  gpu=None if own else Gpu("", (device.name,)))


def target_named(name: str, host: Target) -> Target:
    """The target of ``opencl`` (the machine's only device) or of a device by its target's name. Raises KforgeError."""
    found = devices()
    if not found:
        raise KforgeError(f"target {name}: this machine has no OpenCL device; {_INSTALL}")
    listed = ", ".join(f"{d.slug} ({d.name}, {d.platform})" for d in found)
    wanted = [d for d in found if name in ("opencl", d.slug)]
    if not wanted:
        raise KforgeError(f"target {name}: no OpenCL device of that name here; there are {listed}")
    if len(wanted) > 1:
        raise KforgeError(f"target {name}: this machine has several OpenCL devices: {listed}; name one of them")
    return target_of(wanted[0], host)


def device_of(target: Target) -> Device | None:
    """The device that a target is, None where this machine does not have it."""
    for device in devices():
        if target_of(device, replace(target, cores=target.cores)).identity == target.identity:
            return device
    return None
