"""The part of a target file that is about a GPU or another accelerator, and devices recognised by their names."""

from __future__ import annotations

import dataclasses
from typing import Any

from kforge.core.errors import KforgeError
from kforge.core.target import Gpu, Link, Peak, Target
from kforge.targets.fields import Table

# What kernels of GPUs may require of a target, as ``features`` lists it.
GPU_FEATURES = frozenset((
    "mma",  # NVIDIA: matrix instructions of a warp, mma.sync
    "cp_async",  # NVIDIA: copies from memory to shared memory past the registers
    "tma",  # NVIDIA: tiles copied by the tensor memory accelerator
    "wgmma",  # NVIDIA: matrix instructions of four warps (sm_90a)
    "tcgen05",  # NVIDIA: matrix instructions on tensor memory (sm_100a)
    "mfma",  # AMD: matrix instructions of a wavefront
    "mfma_scale",  # AMD: the same with a scale per block of 32 (MX formats)
    "fp8",  # OCP's E4M3 and E5M2 in matrix instructions
    "fp8_fnuz",  # those of CDNA 3: other bias, no infinity, no minus zero
    "fp4",  # OCP's E2M1 in matrix instructions
    "dpas",  # Intel: matrix instructions of XMX
))

_COUNTS = tuple(f.name for f in dataclasses.fields(Gpu) if f.type == "int | None")
_SOURCED = ("cores", "memory_bytes", "caches")  # figures of the file's upper part, which name their source here too


def read_gpu(table: Table) -> Gpu:
    """The table ``[gpu]``. A figure that is absent is unknown; one without a source is refused."""
    counts = {name: table.count(name) for name in _COUNTS if table.has(name)}
    given = table.table("sources")
    sources = tuple((name, given.text(name)) for name in (*_SOURCED, *counts))
    gpu = Gpu(pci_id=table.text("pci_id"), devices=tuple(table.texts("devices")), sources=sources,
              links=tuple(_link(t) for t in table.tables("links", required=False)), **counts)
    table.no_more()
    given.no_more()
    return gpu


def gpu_as_toml(gpu: Gpu) -> dict[str, Any]:
    """What ``read_gpu`` reads back."""
    document: dict[str, Any] = {"pci_id": gpu.pci_id, "devices": list(gpu.devices)}
    document |= {name: value for name in _COUNTS if (value := getattr(gpu, name)) is not None}
    document["sources"] = dict(gpu.sources)
    if gpu.links:
        document["links"] = [{"name": link.name, "value": link.bandwidth.value, "spread": link.bandwidth.spread,
                              "source": link.bandwidth.source} for link in gpu.links]
    return document


def recognise(device: str, known: tuple[Target, ...], units: int | None = None) -> Target:
    """The target among ``known`` that names ``device`` (as its driver reports it, or ``vendor:device`` of PCI).

    Names are compared whole: a part of a name is another device. With ``units``, the number of SMs or compute units
    that the driver reports, a partition of a device (MIG, CPX) is another device too. Raises KforgeError where no
    target, or more than one, fits: an unknown chip is described by its owner, never assumed.
    """
    found = [t for t in known if t.gpu and (device in t.gpu.devices or device.lower() == t.gpu.pci_id)]
    if len(found) == 1 and units not in (None, found[0].cores):
        raise KforgeError(f"the device {device!r} has {units} units, target {found[0].name} {found[0].cores}: a part "
                          "of a device is a target of its own; write a target file for it, or name one with --target")
    if len(found) == 1:
        return found[0]
    if found:
        raise KforgeError(f"the device {device!r} is named by several targets: {', '.join(t.name for t in found)}; "
                          "say which one with --target")
    raise KforgeError(f"no target describes the device {device!r}: write a target file that lists it under gpu.devices "
                      "(kforge target show nvidia-h200 shows one), or say with --target which one to use")


def _link(table: Table) -> Link:
    link = Link(table.text("name"), Peak(table.positive("value"), table.number("spread"), table.text("source")))
    table.no_more()
    return link
