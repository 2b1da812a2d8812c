"""One small problem of every kind, with dynamic axes, for the operators' tests, and how outputs are judged."""

import numpy as np

from kforge.core.dtypes import WeightFormat
from kforge.core.workload import Problem, Workload
from kforge.operators.numerics import widen

FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k", "mxfp4", "int8_channel")
INTEGERS = FORMATS[3:]


def linear(weight="q4_0", act="a8", epilogue="none", bias=0, rows=32, k=None, n=90, m=5):
    k = k or (512 if weight.endswith("_k") else 416 if weight in INTEGERS else 403)
    problem = Problem.of("linear", K=k, N=n, weight=weight, act=act, epilogue=epilogue, bias=bias, rows=rows)
    return Workload.of(problem, M=m)


def attention(kv="f32", hq=6, hkv=2, d=64, page=32, window=0, sinks=0, **axes):
    axes = axes or {"T": 20, "S": 3, "B": 20, "pages": 40, "max_context": 601}
    static = {"Hq": hq, "Hkv": hkv, "D": d, "P": page, "kv": kv, "window": window, "sinks": sinks}
    return Workload.of(Problem.of("paged_attention", **static), **axes)


def rope(kv="f32", style="norm", operator="rope_kv_write"):
    problem = Problem.of(operator, Hq=6, Hkv=2, D=64, P=16, kv=kv, style=style)
    return Workload.of(problem, T=9, pages=3, positions=50)


def embedding(weight="q4_0", t=7):
    h = 512 if weight.endswith("_k") else 416
    return Workload.of(Problem.of("embedding", V=101, H=h, weight=weight, rows=16), T=t)


def moe_linear(weight="mxfp4", act="a8", epilogue="swiglu_oai", input="token", bias=1, rows=32, k=2, e=5, n=72, t=7):
    width = 512 if weight.endswith("_k") else 160 if weight in INTEGERS else 139
    problem = Problem.of("moe_linear", E=e, k=k, input=input, K=width, N=n, weight=weight, act=act, epilogue=epilogue,
                         bias=bias, rows=rows)
    return Workload.of(problem, T=t)


def moe_route(e=20, k=4, style="chosen", t=9):
    return Workload.of(Problem.of("moe_route", E=e, k=k, style=style), T=t)


def moe_combine(h=83, k=4, t=6):
    return Workload.of(Problem.of("moe_combine", H=h, k=k), T=t)


def moe_workloads():
    return [moe_linear(), moe_linear("mxfp4", "a8", "none", "slot", 1, 16, n=50),
            moe_linear("q4_0", "a8", "silu_gate", "token", 0, 64, k=5, t=3), moe_linear("bf16", "f32", "swiglu_oai"),
            moe_linear("int8_channel", "a8_token", "silu_gate", t=3),
            moe_linear("q6_k", "a8", "none", "slot", 0, 16, n=40, t=2), moe_linear("mxfp4", "f32", "silu_gate", t=4),
            moe_route(), moe_route(8, 1), moe_route(5, 5), moe_route(33, 8, "all"), moe_combine(), moe_combine(32, 1),
            moe_combine(17, 5)]


def rms_norm(residual=0, h=577):
    return Workload.of(Problem.of("rms_norm", H=h, residual=residual), T=9)


def all_workloads():
    made = [embedding(weight) for weight in FORMATS]
    for weight in FORMATS:
        for act in WeightFormat(weight).acts:
            made += [linear(weight, act), linear(weight, act, "residual", 1, rows=16, m=3),
                     linear(weight, act, "silu_gate", 1, rows=64, m=4)]
    made += [rms_norm(0), rms_norm(1)]
    for kv in ("f32", "bf16", "f16", "i8"):
        made += [rope(kv, style, operator) for style in ("norm", "neox")
                 for operator in ("rope_kv_write", "qk_norm_rope_kv_write")]
        made += [attention(kv)]
    made += [attention("bf16", window=100, sinks=1), attention("f32", window=300), attention("f16", sinks=1),
             attention("i8", window=100, sinks=1)]
    made += [Workload.of(Problem.of("silu_mul", I=333), T=5), Workload.of(Problem.of("gather_rows", H=65), R=3, T=5),
             Workload.of(Problem.of("argmax", V=1001), R=4)]
    return made + moe_workloads()


def ratio(bound, actual, dtype):
    """Worst |actual - reference| / bound; infinity for a NaN or an infinity where the reference has none or another,
    and for any difference where the bound is zero."""
    got = widen(actual, dtype)
    same = (got == bound.reference) | (np.isnan(got) & np.isnan(bound.reference))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.where(np.isfinite(bound.reference), np.abs(got - bound.reference) / bound.bound, np.inf)
    ratios[np.isnan(ratios)] = np.inf
    if bound.free is not None:
        same |= bound.free
    return np.where(same, 0.0, ratios).max(initial=0.0)
