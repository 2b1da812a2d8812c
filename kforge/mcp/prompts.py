"""Prompts: a task put into words, with the order of tools that gets it done."""

from __future__ import annotations

from mcp.server.mcpserver.prompts.base import Prompt

INSTRUCTIONS = """kforge builds, checks, times and judges CPU kernels on this machine.
To write one: list_workloads or describe_operator for the contract and its axes; read_reference for the ABI (abi.h),
the numerics (math.h) and a worked template (example-template); write_source into your run; build, check, measure;
compare with what serves; tune a template's parameters; submit to the judge; promote an accepted kernel with a model
that calls it. An exact kernel equals the order specification to the bit. The machine measures one call at a time:
calls queue, report progress, and may be cancelled. Failures name a class (compile, inexact, crash, ...) and, where
there is one, the first wrong element."""


def _write_kernel(operator: str, axes: str) -> str:
    return f"""Write the fastest exact kernel for {operator} at {axes} on this machine, with kforge's tools.

1. describe_operator(name="{operator}", axes=...): tensors in launch order, scalars, order specification.
2. read_reference: abi.h, math.h, writing-kernels; for a template also template-header and example-template.
3. describe_target: ISA features, caches, bandwidth. measure(kernel="default", ...) and measure(kernel="tuned", ...):
   what there is to beat, and how far it is from the roofline. disassemble(kernel="tuned", ...) shows its hot loop.
4. write_source(name="mine.cc.j2", text=...): a template with its parameters in the header (or plain C++, mine.cc).
5. build until it compiles without spills; check until it is right; measure.
6. Name the one bottleneck that the figures show, change one thing, measure again.
7. tune its parameters; compare(kernel="mine.cc.j2", params=<the best>, against="tuned").
8. When it is told faster: submit. When it is accepted and list_models has a model file that calls it: promote.
   Report the verdicts as they are, also a rejection."""


def _explain_kernel(kernel: str, operator: str, axes: str) -> str:
    return f"""Explain what limits the kernel {kernel} for {operator} at {axes}, with kforge's tools: measure it beside
its roofline, build it for spills and instruction mix, disassemble its hot loop, and describe_target for the machine's
limits. Name one bottleneck, the evidence for it, and one change that would move it, with the gain that you predict."""


PROMPTS = [
    Prompt.from_function(
        _write_kernel,
        name="write_kernel",
        title="Write a kernel",
        description="From an operator's contract to a verdict of the judge.",
    ),
    Prompt.from_function(
        _explain_kernel,
        name="explain_kernel",
        title="Explain a kernel",
        description="What limits a kernel, from figures and machine code.",
    ),
]
