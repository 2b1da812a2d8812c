"""One small problem of every kind, with dynamic axes, for the operators' tests, and how outputs are judged."""

import numpy as np

from kforge.core.workload import Problem, Workload
from kforge.operators.numerics import widen

FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k")


def linear(weight="q4_0", act="a8", epilogue="none", bias=0, rows=32, k=None, n=90, m=5):
    k = k or (512 if weight.endswith("_k") else 416 if weight.startswith("q") else 403)
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


def rms_norm(residual=0, h=577):
    return Workload.of(Problem.of("rms_norm", H=h, residual=residual), T=9)


def all_workloads():
    made = [embedding(weight) for weight in FORMATS]
    for weight in FORMATS:
        for act in ("f32", "a8") if weight.startswith("q") else ("f32",):
            made += [linear(weight, act), linear(weight, act, "residual", 1, rows=16, m=3),
                     linear(weight, act, "silu_gate", 1, rows=64, m=4)]
    made += [rms_norm(0), rms_norm(1)]
    for kv in ("f32", "bf16", "f16"):
        made += [rope(kv, style, operator) for style in ("norm", "neox")
                 for operator in ("rope_kv_write", "qk_norm_rope_kv_write")]
        made += [attention(kv)]
    made += [attention("bf16", window=100, sinks=1), attention("f32", window=300), attention("f16", sinks=1)]
    made += [Workload.of(Problem.of("silu_mul", I=333), T=5), Workload.of(Problem.of("gather_rows", H=65), R=3, T=5),
             Workload.of(Problem.of("argmax", V=1001), R=4)]
    return made


def ratio(bound, actual, dtype):
    """Worst |actual - reference| / bound; infinity for a NaN or an infinity where the reference has none or another,
    and for any difference where the bound is zero."""
    got = widen(actual, dtype)
    same = (got == bound.reference) | (np.isnan(got) & np.isnan(bound.reference))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.where(np.isfinite(bound.reference), np.abs(got - bound.reference) / bound.bound, np.inf)
    ratios[np.isnan(ratios)] = np.inf
    return np.where(same, 0.0, ratios).max(initial=0.0)
