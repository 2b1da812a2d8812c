"""This machine as a target, with figures that need no probe."""

from __future__ import annotations

from kforge.core.target import Peak, Target
from kforge.native import find_compilers
from kforge.targets.cpu import read_cpu


def host_target(cores: int = 0) -> Target:
    facts = read_cpu()
    return Target(
        name="host",
        kind="cpu",
        vendor=facts.vendor,
        model=facts.model,
        arch=facts.arch,
        features=facts.features,
        cores=cores or facts.cores,
        caches=facts.caches,
        memory_bytes=facts.memory_bytes,
        bandwidth=((1, Peak(8e9)), (2, Peak(1e10))),
        peaks=tuple((name, Peak(5e11)) for name in ("fp32_fma", "bf16_dot", "int8_dot")),
        compilers=find_compilers(),
    )
