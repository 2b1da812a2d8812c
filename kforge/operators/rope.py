"""``rope_kv_write``: rotary embedding of q and k, k and v written to the paged cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.layout import Layout
from kforge.core.workload import Problem, Workload
from kforge.operators import buckets, numerics, spec
from kforge.operators.base import Arrays, Bound, Cost, Distribution, Operator, Residency, Role, TensorSpec
from kforge.operators.kv_cache import CACHE_TYPES, KvProblem
from kforge.operators.numerics import ROUNDOFF, SMALLEST, U

if TYPE_CHECKING:
    import numpy as np

_POSITIONS = 4096  # rows of the tables at a bucket's tuning point


class RopeKvWrite(Operator):
    """Pairs (a, b) of q and k become (a c - b s, a s + b c); k and v go to ``slot`` of the cache in its type.

    Bound. Two products and a sum are off by at most 2u (|a c| + |b s|); twice that and what the products may lose to
    underflow: ``4u (|a c| + |b s|) + underflow(2)``. A written element of the cache adds its own rounding,
    ``u_kv |ref|`` or half of a denormal step, and no more. Elements that no token writes may not change at all. A NaN
    or an infinity reaches the two elements of its pair as IEEE arithmetic has it.
    """

    name = "rope_kv_write"
    static_axes = ("Hq", "Hkv", "D", "P", "kv", "style")
    dynamic_axes = ("T", "pages", "positions")

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        p, axes = KvProblem.of(workload.problem), workload.axes
        t, table = axes["T"], (axes["positions"], p.d // 2)
        layout = Layout.of("paged", 1, P=p.page)
        caches = [TensorSpec(name, p.dtype, shape, Role.INOUT, Residency.STREAMED, layout)
                  for name, shape in p.cache_shapes(axes["pages"]).items()]
        return (TensorSpec("qkv", DType.F32, (t, (p.heads + 2 * p.kv_heads) * p.d), Role.IN),
                TensorSpec("position", DType.I32, (t,), Role.IN), TensorSpec("slot", DType.I32, (t,), Role.IN),
                TensorSpec("cos", DType.F32, table, Role.IN), TensorSpec("sin", DType.F32, table, Role.IN),
                TensorSpec("q_out", DType.F32, (t, p.heads * p.d), Role.OUT), *caches)

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        import numpy as np

        p, axes = KvProblem.of(workload.problem), workload.axes
        t, slots = axes["T"], axes["pages"] * p.page
        if slots < t:
            raise ValueError(f"{workload.key}: {axes['pages']} pages of {p.page} have no room for {t} tokens")
        rng = np.random.default_rng([seed, 4])
        slot = rng.permutation(slots)[:t].astype(np.int32)
        if t >= 4 or (distribution is not Distribution.NORMAL and not rng.integers(4)):
            slot[rng.integers(0, t, max(1, t // 8))] = -1  # such tokens are not written
        # Tables of no known base, phase or scaling: models differ in these.
        frequency, phase = 10 ** rng.uniform(-6, 0, p.d // 2), rng.uniform(0, 7, p.d // 2)
        angle = np.arange(axes["positions"])[:, None] * frequency + phase
        size = rng.uniform(0.5, 1.5, p.d // 2)
        position = rng.integers(0, axes["positions"], t).astype(np.int32)
        if t > 1 or not rng.integers(4):
            position[rng.integers(0, t)] = axes["positions"] - 1
        made = {"qkv": numerics.draw(rng, t, (p.heads + 2 * p.kv_heads) * p.d, distribution),
                "position": position, "slot": slot,
                "cos": (size * np.cos(angle)).astype(np.float32), "sin": (size * np.sin(angle)).astype(np.float32)}
        for name, shape in p.cache_shapes(axes["pages"]).items():
            made[name] = numerics.narrow(numerics.normals(rng, shape), p.dtype)
        return made

    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        import numpy as np

        p, t = KvProblem.of(workload.problem), workload.axes["T"]
        before, v = self._q_and_k(workload, inputs), heads_of(p, inputs)[:, p.heads + p.kv_heads:]
        c, s = (inputs[name][inputs["position"]].astype(np.float64)[:, None] for name in ("cos", "sin"))
        neox = _neox(workload.problem)
        first = slice(0, p.d // 2) if neox else slice(0, None, 2)
        second = slice(p.d // 2, None) if neox else slice(1, None, 2)
        a, b = before.reference[..., first], before.reference[..., second]
        of_a, of_b = before.bound[..., first], before.bound[..., second]
        rotated, error = np.empty_like(before.reference), np.empty_like(before.reference)
        with np.errstate(invalid="ignore"):
            rotated[..., first], rotated[..., second] = a * c - b * s, a * s + b * c
            error[..., first] = 4 * U * (np.abs(a * c) + np.abs(b * s)) + numerics.underflow(2)
            error[..., second] = 4 * U * (np.abs(a * s) + np.abs(b * c)) + numerics.underflow(2)
            error[..., first] += of_a * np.abs(c) + of_b * np.abs(s)
            error[..., second] += of_a * np.abs(s) + of_b * np.abs(c)
        flat = (t, p.heads * p.d)
        bounds = {"q_out": Bound(rotated[:, :p.heads].reshape(flat), error[:, :p.heads].reshape(flat))}
        written = np.flatnonzero(inputs["slot"] >= 0)
        page, offset = np.divmod(inputs["slot"][written], p.page)
        for name, new, new_error in (("k_cache", rotated[:, p.heads:], error[:, p.heads:]),
                                     ("v_cache", v, np.zeros_like(v))):
            exact = numerics.widen(inputs[name], p.dtype)
            bound = np.zeros_like(exact)
            at = (page, slice(None), slice(None), offset) if name == "k_cache" else (page, slice(None), offset)
            exact[at] = new[written]
            narrowing = 0 if p.dtype is DType.F32 else ROUNDOFF[p.dtype]
            with np.errstate(invalid="ignore"):
                bound[at] = new_error[written] + narrowing * (np.abs(new[written]) + new_error[written])
            if narrowing:
                bound[at] += SMALLEST[p.dtype] / 2
            bounds[name] = Bound(exact, bound)
        return bounds

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        import numpy as np

        p, t = KvProblem.of(workload.problem), workload.axes["T"]
        out = {"q_out": np.empty((t, p.heads * p.d), np.float32), "k_cache": np.array(inputs["k_cache"]),
               "v_cache": np.array(inputs["v_cache"])}
        spec.call(self.name, t, p.heads, p.kv_heads, p.d, p.page,
                  CACHE_TYPES.index(p.dtype), int(_neox(workload.problem)), *self.given_scalars(workload, inputs),
                  *(inputs[tensor.name] for tensor in self.tensors(workload) if tensor.role is Role.IN),
                  out["q_out"], out["k_cache"], out["v_cache"])
        return out

    def _q_and_k(self, workload: Workload, inputs: Arrays) -> Bound:
        """What is rotated, float64 [T, Hq + Hkv, D], and how far a kernel may be off in it: here it is given."""
        import numpy as np

        p = KvProblem.of(workload.problem)
        given = heads_of(p, inputs)[:, :p.heads + p.kv_heads]
        return Bound(given, np.zeros_like(given))

    def cost(self, workload: Workload) -> Cost:
        p, t = KvProblem.of(workload.problem), workload.axes["T"]
        written = t * 2 * p.kv_heads * p.d * p.dtype.size
        hot = 4 * t * ((2 * p.heads + 2 * p.kv_heads) * p.d + 2 + p.d)  # qkv, q_out, position, slot, rows of tables
        return Cost(written, hot, (("fp32_fma", 3 * t * (p.heads + p.kv_heads) * p.d),))

    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        """Pages and positions beyond the tokens' own do not matter: one page a token, as in decoding."""
        tokens = buckets.point(buckets.TOKENS, dynamic["T"])
        return {"T": tokens, "pages": tokens, "positions": _POSITIONS}

    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        return [Workload.of(workload.problem, workload.count, workload.phase, T=t, pages=t // 2 + 1, positions=301)
                for t in buckets.inside(buckets.TOKENS, workload.axes["T"], seed)]


def heads_of(p: KvProblem, inputs: Arrays) -> np.ndarray:
    """q, k and v of each token: float64 [T, Hq + 2 Hkv, D]."""
    import numpy as np

    return inputs["qkv"].astype(np.float64).reshape(len(inputs["qkv"]), -1, p.d)


def _neox(problem: Problem) -> bool:
    if problem.str("style") not in ("norm", "neox"):
        raise ValueError(f"{problem.key}: style is norm or neox")
    return problem.str("style") == "neox"
