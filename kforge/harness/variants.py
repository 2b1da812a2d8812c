"""Kernels whose speed relative to each other is known: one and the same at another address, and one with more work.

Both are made from a kernel's source by the same frame, so that they differ in nothing else: the machine code of all is
byte for byte the same. How often a loop runs stands in read-only data.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kforge.backends.defaults import default_kernel
from kforge.core.target import Target
from kforge.core.trial import Candidate
from kforge.core.workload import Attr, Problem, Workload

_FRAME = """#define kforge_kernel kf_framed_kernel
{source}
#undef kforge_kernel
// In whole pages, so that nothing moves relative to lines, sets of a cache or a predictor's index inside a page.
asm(".pushsection .text.unlikely,\\"axR\\",@progbits\\n.balign 64\\n.skip {bytes}, 0x90\\n.popsection");
static const int64_t kf_numbers[2] = {{{steps}, 0}};
extern "C" void kforge_kernel(const kf_launch *launch) {{
    const int64_t *numbers = kf_numbers;
    asm volatile("" : "+r"(numbers));  // read where they stand, so that the code is the same for every number
    uint64_t chain = 1;
    for (int64_t left = numbers[0]; left > 0; --left) {{
        chain = chain * chain + 1;
        asm volatile("" : "+r"(chain));
    }}
    // Adds nothing, but the kernel must wait for the chain: a processor would do both at once.
    const uint64_t nothing = chain & static_cast<uint64_t>(numbers[1]);
    kf_framed_kernel(reinterpret_cast<const kf_launch *>(reinterpret_cast<const char *>(launch) + nothing));
}}
"""
_PAGE = 4096


@dataclass(frozen=True)
class Specimen:
    """A kernel that the judge is measured with."""

    name: str
    what: str
    workload: Workload


def framed(kernel: Candidate, pages: int = 0, steps: int = 0) -> Candidate:
    """``kernel`` behind ``pages`` pages that nobody runs; each thread of a call first makes ``steps`` dependent steps
    of about a nanosecond.
    """
    source = _FRAME.format(source=kernel.source, bytes=_PAGE * pages, steps=steps)
    return dataclasses.replace(kernel, source=source, template="judge:framed", proposer="judge")


def base_of(specimen: Specimen, target: Target) -> Candidate:
    return default_kernel(specimen.workload.problem, target)


def specimens() -> tuple[Specimen, ...]:
    """Of every class of duration, limited by memory, by arithmetic, and by neither."""
    weight: dict[str, Attr] = {"weight": "q4_0", "act": "a8", "epilogue": "none", "bias": 0, "rows": 16}
    small = Problem.of("linear", K=576, N=576, **weight)
    wide = Problem.of("linear", K=2048, N=2048, **weight)
    attention = Problem.of("paged_attention", Hq=9, Hkv=3, D=64, P=32, kv="bf16")
    return (
        Specimen("linear-small", "one token, a small weight", Workload.of(small, M=1)),
        Specimen("linear-memory", "one token, a weight from memory", Workload.of(wide, M=1)),
        Specimen("linear-compute", "64 tokens", Workload.of(small, M=64)),
        Specimen("linear-long", "256 tokens, a call of milliseconds", Workload.of(wide, M=256)),
        Specimen("elementwise", "RMSNorm of 64 tokens", Workload.of(Problem.of("rms_norm", H=2048, residual=0), T=64)),
        Specimen("attention", "decode at batch 4", Workload.of(attention, T=4, S=4, B=16, pages=64, max_context=512)),
    )
