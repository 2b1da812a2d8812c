"""What ``kforge target show`` says of a GPU or another accelerator beside what every target has."""

from __future__ import annotations

from kforge.core.target import Gpu


def gpu_lines(gpu: Gpu, backends: tuple[str, ...]) -> list[str]:
    """Lines of words: who builds for it, how it is recognised, and what its blocks of threads may have."""
    builders = f"built by backend {' and '.join(backends)}" if backends else "described only: no backend builds"
    names = ", ".join(repr(name) for name in gpu.devices) or "no name of a driver is known"
    lines = [builders, f"recognised by: {names}; PCI {gpu.pci_id}"]
    lines += _limits("a unit", (("threads", gpu.threads_per_unit), ("warps", gpu.warps_per_unit),
                                ("blocks", gpu.blocks_per_unit), ("registers", gpu.registers_per_unit),
                                ("bytes of shared memory", gpu.shared_per_unit)))
    lines += _limits("a block", (("threads", gpu.threads_per_block), ("bytes of shared memory", gpu.shared_per_block)))
    lines += _limits("a thread", (("registers", gpu.registers_per_thread),
                                  ("registers a step", gpu.register_granularity)))
    lines += _limits("a warp", (("threads", gpu.warp),))
    if gpu.clock_hz:
        lines.append(f"clock: {gpu.clock_hz / 1e9:.2f} GHz")
    if gpu.power_watts:
        lines.append(f"power: {gpu.power_watts} W")
    return lines


def _limits(what: str, figures: tuple[tuple[str, int | None], ...]) -> list[str]:
    known = [f"{value:,} {name}" for name, value in figures if value is not None]
    return [f"{what}: {', '.join(known)}"] if known else []
