"""Kernels of GPUs for tests: each shipped template of CUDA and HIP, workloads to check it at, and faults to plant."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kforge.backends import fibers, templates
from kforge.backends.cuda.backend import CudaBackend
from kforge.backends.hip.backend import HipBackend
from kforge.backends.templates import Template
from kforge.core.target import Target
from kforge.core.trial import Candidate, Failure
from kforge.core.workload import Attr, Workload
from kforge.harness.cases import Answers, plan_cases
from kforge.harness.check import CheckResult, check
from kforge.harness.offline import OFFLINE_OPERATIONS
from kforge.operators import get
from kforge.targets.files import load_target

BACKENDS = {"cuda": CudaBackend(), "hip": HipBackend()}
RMS = "rms_norm(H=100,residual=1)@T=3"
SILU = "silu_mul(I=700)@T=3"
DECODE = "paged_attention(D=32,Hkv=2,Hq=6,P=16,kv=f16)@B=40,S=2,T=2,max_context=600,pages=80"
WINDOW = "paged_attention(D=40,Hkv=1,Hq=2,P=16,kv=i8,sinks=1,window=300)@B=40,S=2,T=3,max_context=600,pages=80"
Q4 = "linear(K=320,N=40,act=a8,bias=1,epilogue=residual,rows=32,weight=q4_0)@M=3"
GATED = "linear(K=512,N=72,act=a8,bias=1,epilogue=silu_gate,rows=32,weight=q4_k)@M=3"
F32 = "linear(K=288,N=24,act=f32,bias=1,epilogue=none,rows=16,weight=q4_1)@M=2"


@dataclass(frozen=True)
class Fault:
    """A text of the rendered kernel, and what a mistake makes of it, everywhere."""

    name: str
    workload: str
    found: str
    planted: str


FAULTS = (
    Fault("silu: unmasked tail", SILU, "if (first + 256 < 700)", "if (true)"),
    Fault("silu: rows taken as dense", SILU, "kf::group_x() * gate_up_stride", "kf::group_x() * 1400"),
    Fault("silu: up one too early", SILU, "gate + 700", "gate + 699"),
    Fault("silu: gate without its sigmoid", SILU, "kf::silu(gate[first + 0])", "gate[first + 0]"),
    Fault("silu: half of the outputs left out", SILU, "if (first + 256 < 700)", "if (false)"),
    Fault("silu: output rows taken as dense", SILU, "kf::group_x() * out_stride", "kf::group_x() * 700"),
    Fault("norm: no barrier behind the loads", RMS, "    kf::sync();\n    if (me < 16)", "    if (me < 16)"),
    Fault("norm: no barrier behind the sums", RMS, "    kf::sync();\n    const float r", "    const float r"),
    Fault("norm: one sum too few", RMS, "if (me < 16)", "if (me < 15)"),
    Fault("norm: eps forgotten", RMS, " + eps", " + 0.0f"),
    Fault("norm: residual not stored", RMS, "residual[k] = y;", ""),
    Fault("norm: residual rows taken as dense", RMS, "kf::group_x() * residual_stride", "kf::group_x() * 100"),
    Fault("norm: another order of the sums", RMS, "kf::fma(row[k], row[k], sum)", "row[k] * row[k] + sum"),
    Fault("norm: shared memory one too small", RMS, "KF_SHARED(float, row, 100)", "KF_SHARED(float, row, 80)"),
    Fault("norm: a barrier for some", RMS, "    const float r", "    if (me < 40) kf::sync();\n    const float r"),
    Fault("attention: one position too many", DECODE, "me < n;", "me <= n && me < CHUNK;"),
    Fault("attention: scale forgotten", DECODE, "= by * score[g]", "= score[g]"),
    Fault("attention: one page off", DECODE, "table[position / P]", "table[(position + 1) / P]"),
    Fault("attention: slots of another page", DECODE, "+ position % P;", "+ position % (P / 2);"),
    Fault("attention: rows of K taken as dense", DECODE, "k + x * k_row", "k + x * 17"),
    Fault("attention: the last chunk left out", DECODE, "chunk <= seen.last_chunk", "chunk < seen.last_chunk"),
    Fault("attention: merged without the sum's scale", DECODE, "l = kf::fma(l, a, chunk_l * b)", "l = l + chunk_l * b"),
    Fault("attention: no barrier behind the weights", DECODE,
          ": 0.0f;\n        kf::sync();\n        for (int32_t i = me", ": 0.0f;\n        for (int32_t i = me"),
    Fault("attention: window one too long", WINDOW, "seen - 300, 0", "seen - 301, 0"),
    Fault("attention: scale of V forgotten", WINDOW, "*= weight_scale", "*= 1.0f"),
    Fault("attention: sink forgotten", WINDOW, "kf::fma(l, a, kf::exp(sink - both))", "l * a"),
    Fault("attention: every sequence the first", DECODE, "return {low,", "return {0,"),
    Fault("linear: offset forgotten", Q4, "-8 * from.sums[token * GROUPS + g]", "0"),
    Fault("linear: scale of another group", Q4, "packed, 32 * g)", "packed, 32 * (g / 2))"),
    Fault("linear: unmasked rows", Q4, "&& n < 40", ""),
    Fault("linear: unmasked tokens", Q4, "t < M &&", ""),
    Fault("linear: low and high nibbles exchanged", Q4, "words[j + 4] = word >> 4", "words[j + 4] = word >> 0"),
    Fault("linear: bias forgotten", Q4, "(acc + bias[n])", "acc"),
    Fault("linear: residual rows taken as dense", Q4, "t * residual_stride", "t * 40"),
    Fault("linear: no barrier before adding up", Q4, "    kf::sync();\n        if (slice < TOKENS)",
          "    if (slice < TOKENS)"),
    Fault("linear: x beyond K", Q4, "k < K ? x[t * x_stride + k] : 0.0f", "x[t * x_stride + k]"),
    Fault("linear: minimum forgotten", GATED, "kf::fma(minima[slot * ROWS + row], ", "kf::fma(0.0f, "),
    Fault("linear: gate and up exchanged", GATED, "kf::silu(dots[slice * ROWS + row]) * dots[slice * ROWS + 16 + row]",
          "kf::silu(dots[slice * ROWS + 16 + row]) * dots[slice * ROWS + row]"),
    Fault("linear: blocks of another length", F32, "BLOCK = 128", "BLOCK = 64"),
    Fault("linear: the last block alone", F32, "acc + block", "block"),
)


def gpu(arch: str) -> Target:
    """A target of this architecture, with the limits of one of the same maker whose file says all that a prediction
    needs."""
    return dataclasses.replace(load_target("nvidia-h200" if arch.startswith("sm_") else "amd-mi300x"), arch=arch)


def fitting(workload: Workload, target: Target, backend: str) -> Template:
    """The one shipped template of ``backend`` that fits."""
    found = [t for t in templates.load(workload.problem.operator)
             if t.backend == backend and t.applies(workload.problem, target) is None]
    assert len(found) == 1, [t.path for t in found]
    return found[0]


def candidate(workload: str, target: Target, backend: str = "cuda", **params: Attr) -> Candidate:
    problem = Workload.parse(workload)
    template = fitting(problem, target, backend)
    return template.render(problem.problem, target, {**template.defaults(problem.problem, target), **params})


def checked(made: Candidate, workload: str, warp: int = 32, seed: int = 13) -> CheckResult | Failure:
    """On fibers, at cases of at most ``OFFLINE_OPERATIONS``."""
    at = Workload.parse(workload)
    operator = get(at.problem.operator)
    caller = fibers.stand_in(made, warp)
    if isinstance(caller, Failure):
        return caller
    try:
        return check(caller, operator, made.numerics, plan_cases(operator, at, seed, OFFLINE_OPERATIONS), Answers(), 1)
    finally:
        caller.close()
