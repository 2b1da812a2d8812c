"""OpenCL C to a device's binary: the driver's compiler, locked down, and a cache by what the bytes depend on."""

from __future__ import annotations

import dataclasses
import re
import tempfile
import time

from kforge.backends.cpp import store
from kforge.backends.cpp.code import CodeFacts
from kforge.backends.cpp.elf import Refused
from kforge.backends.opencl import poclbin
from kforge.backends.opencl.devices import Device, device_of
from kforge.backends.opencl.image import ImageError, OpenClImage, Signature, parse
from kforge.backends.opencl.programs import HERE, tool
from kforge.core.drafts import draft_folder, left
from kforge.core.errors import KforgeError
from kforge.core.launch import LaunchError
from kforge.core.paths import cache_dir
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, CompilerReport, Failure, FailureClass
from kforge.core.workload import Workload, stable_hash
from kforge.harness.sandbox import Limits, run
from kforge.operators import get

_SOURCE, _OUTPUT = "kernel.cl", "kernel.bin"
# Nothing that lets the compiler change a result, and divisions and square roots that are rounded correctly.
_OPTIONS = ("-cl-std=CL1.2", "-cl-fp32-correctly-rounded-divide-sqrt")
# Of PoCL's: where it works, and one version of each kernel, for all grids. A template that names its group's size in
# the source (reqd_work_group_size) has that version compiled for it.
_ENVIRONMENT = ("POCL_CACHE_DIR=cache", "POCL_WORK_GROUP_SPECIALIZATION=0")
_LIMITS = Limits(seconds=120.0, memory_bytes=8 << 30, file_bytes=64 << 20)
_DIAGNOSTIC = re.compile(r"^.*?(?P<line>\d+):\d+: (?:fatal )?error: (?P<text>.*)$", re.MULTILINE)
_UNLINKED = re.compile(r"(?P<text>undefined symbol: \w+)")  # PoCL tries to load what it built
_MOST_BINARY = 32 << 20
_UNABLE = 2  # exit status of tool.cc


def build(candidate: Candidate, target: Target) -> Artifact | Failure:
    """The artifact of a candidate of backend ``opencl``. Raises KforgeError where this machine lacks the device."""
    device = device_of(target)
    if device is None:
        raise KforgeError(f"{target.name}: this machine has no such OpenCL device; kforge target list says which are")
    try:
        sizes = [launch.threads({}) for launch in candidate.launches]
    except LaunchError as error:
        return Failure(FailureClass.COMPILE, f"the size of a group must not depend on an axis: {error}")
    if not sizes:
        return Failure(FailureClass.COMPILE, "an OpenCL kernel needs [[launch]] in its template's header")
    if (largest := max(x * y * z for x, y, z in sizes)) > device.group_size:
        return Failure(FailureClass.COMPILE, f"a group of {largest} threads: {device.name} takes {device.group_size}")
    key = stable_hash(["opencl", candidate.source, prelude(), [*_OPTIONS, *_ENVIRONMENT], device.compiler, device.name,
                       [repr(launch) for launch in candidate.launches]], 40)
    folder = cache_dir() / "artifacts"
    if (cached := store.load(folder, key, candidate.hash)) is not None:
        return _artifact(cached.data, cached.report, candidate)
    built = _compile(candidate, device)
    if isinstance(built, Artifact):
        store.save(folder, key, built)
    return built


def signature(candidate: Candidate) -> Signature:
    """The operator's order of what a launch's arguments name."""
    operator = get(candidate.problem.operator)
    workload = Workload.of(candidate.problem, **dict.fromkeys(operator.dynamic_axes, 1))  # type: ignore[arg-type]
    return Signature(tuple(spec.name for spec in operator.tensors(workload)), tuple(operator.dynamic_axes),
                     tuple(operator.scalar_names))


def load(data: bytes, target: Target) -> OpenClImage | Failure:
    """A stored artifact for the runner on this machine: read, checked, and given its device's number."""
    try:
        image = parse(data)
        device = device_of(target)
        if device is None:
            return Failure(FailureClass.LOAD, f"this machine has no {target.name}")
    except ImageError as error:
        return Failure(FailureClass.ADMISSION, f"not admitted: {error}")
    facts = _admitted(image)
    return facts if isinstance(facts, Failure) else dataclasses.replace(image, device=device.number)


def prelude() -> str:
    """What stands in front of every candidate: no contraction, and kforge's own arithmetic."""
    return (HERE / "prelude.cl").read_text(encoding="utf-8")


def _compile(candidate: Candidate, device: Device) -> Artifact | Failure:
    try:
        source = f"{prelude()}\n#line 1\n{candidate.source}".encode()
    except UnicodeEncodeError as error:
        return Failure(FailureClass.COMPILE, f"the source is no Unicode text: {error.reason} at {error.start}")
    try:
        with draft_folder() as work:
            (work / _SOURCE).write_bytes(source)
            command = ("/usr/bin/env", *_ENVIRONMENT, str(tool()), "build", str(device.number), _SOURCE, _OUTPUT,
                       " ".join(_OPTIONS))
            began = time.monotonic()
            outcome = run(command, work, _LIMITS, (str(tool().parent), "/etc/OpenCL", "/sys/devices", "/proc"))
            seconds = time.monotonic() - began
            if outcome.timed_out:
                reason = f"{device.compiler} took longer than {_LIMITS.seconds:g} s"
                return Failure(FailureClass.COMPILE_LIMIT, reason, outcome.text[-2000:])
            if outcome.code != 0:
                return _refused(outcome.code, outcome.text, device)
            binary = left(work / _OUTPUT, _MOST_BINARY + 1)
    except OSError as error:
        raise KforgeError(f"cannot build in {tempfile.gettempdir()}: {error.strerror}; free some space, or set TMPDIR "
                          "to another folder") from error
    image = OpenClImage(candidate.launches, signature(candidate), binary)
    facts = _admitted(image)
    if isinstance(facts, Failure):
        return facts
    report = CompilerReport(device.compiler, _OPTIONS, seconds, facts.text_bytes, facts.spills, facts.mix,
                            outcome.text[:4000])
    return _artifact(image.data(), report, candidate)


def _admitted(image: OpenClImage) -> CodeFacts | Failure:
    """What is known of the code, of an image that the runner can take; or why it is refused."""
    try:
        image.blob()
        if poclbin.is_poclbin(image.binary):
            return poclbin.admit(image.binary, image.launches)
        return CodeFacts(len(image.binary), 0, ())
    except (ImageError, LaunchError, Refused) as error:
        return Failure(FailureClass.ADMISSION, f"not admitted: {error}")


def _artifact(data: bytes, report: CompilerReport, candidate: Candidate) -> Artifact:
    return Artifact("opencl", candidate.hash, data, store.ABI_VERSION, report, candidate.launches)


def _refused(code: int, text: str, device: Device) -> Failure:
    if code == _UNABLE:
        raise KforgeError(f"{device.compiler} cannot build here: {text.strip()[-300:]}")
    found = _DIAGNOSTIC.search(text) or _UNLINKED.search(text)
    if code < 0 and not found:
        reason = f"{device.compiler} ran into its limit of memory or time, or crashed"
        return Failure(FailureClass.COMPILE_LIMIT, reason, text[-2000:])
    said = text.strip()[-300:]
    if found:
        where = found.groupdict().get("line")
        said = f"line {where}: {found['text']}" if where else f"the kernel cannot be linked: {found['text']}"
    return Failure(FailureClass.COMPILE, f"{device.compiler}: {said}", text[:4000])
