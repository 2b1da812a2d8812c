"""``rope_kv_write``: rotary embedding of q and k, k and v written to the paged cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.workload import Problem, Workload
from kforge.operators import buckets, numerics, spec
from kforge.operators.base import Arrays, Bound, Cost, Distribution, Operator, Role, TensorSpec
from kforge.operators.kv_cache import CACHE_TYPES, KvProblem
from kforge.operators.kv_quantised import written as quantised_bounds
from kforge.operators.numerics import ROUNDOFF, SMALLEST, U

if TYPE_CHECKING:
    import numpy as np

_POSITIONS = 4096  # rows of the tables at a bucket's tuning point


class RopeKvWrite(Operator):
    """Pairs (a, b) of q and k become (a c - b s, a s + b c); k and v go to ``slot`` of the cache in its type.

    Bound. Two products and a sum are off by at most 2u (|a c| + |b s|); twice that and what the products may lose to
    underflow: ``4u (|a c| + |b s|) + underflow(2)``. A written element of the cache adds its own rounding,
    ``u_kv |ref|`` or half of a denormal step, and no more; for kv = i8 see ``kv_quantised.written``. Elements that no
    token writes may not change at all. A NaN or an infinity reaches the two elements of its pair as IEEE arithmetic has
    it, and, through the scale, all of its position and head in a cache of i8.
    """

    name = "rope_kv_write"
    static_axes = ("Hq", "Hkv", "D", "P", "kv", "style")
    dynamic_axes = ("T", "pages", "positions")

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        p, axes = KvProblem.of(workload.problem), workload.axes
        t, table = axes["T"], (axes["positions"], p.d // 2)
        return (TensorSpec("qkv", DType.F32, (t, (p.heads + 2 * p.kv_heads) * p.d), Role.IN),
                TensorSpec("position", DType.I32, (t,), Role.IN), TensorSpec("slot", DType.I32, (t,), Role.IN),
                TensorSpec("cos", DType.F32, table, Role.IN), TensorSpec("sin", DType.F32, table, Role.IN),
                TensorSpec("q_out", DType.F32, (t, p.heads * p.d), Role.OUT),
                *p.cache_tensors(axes["pages"], Role.INOUT))

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
        for tensor in p.cache_tensors(axes["pages"], Role.INOUT):
            values = numerics.normals(rng, tensor.shape)
            if tensor.dtype is DType.I8:
                made[tensor.name] = np.clip(np.rint(values * 40), -127, 127).astype(np.int8)
            else:
                made[tensor.name] = np.abs(values) if "scale" in tensor.name else numerics.narrow(values, p.dtype)
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
        for part, new, new_error in (("k", rotated[:, p.heads:], error[:, p.heads:]), ("v", v, np.zeros_like(v))):
            places = {f"{part}_cache": (page, slice(None), slice(None), offset) if part == "k" else
                      (page, slice(None), offset), f"{part}_scale": (page, slice(None), offset)}
            for name, bound in _stored(p, part, new[written], new_error[written]).items():
                kept = numerics.widen(inputs[name], p.dtype if name.endswith("cache") else DType.F32)
                bounds[name] = _placed(kept, places[name], bound)
        return bounds

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        import numpy as np

        p, t = KvProblem.of(workload.problem), workload.axes["T"]
        caches = {c.name: np.array(inputs[c.name]) for c in p.cache_tensors(workload.axes["pages"], Role.INOUT)}
        out = {"q_out": np.empty((t, p.heads * p.d), np.float32), **caches}
        spec.call(self.name, t, p.heads, p.kv_heads, p.d, p.page,
                  CACHE_TYPES.index(p.dtype), int(_neox(workload.problem)), *self.given_scalars(workload, inputs),
                  *(inputs[tensor.name] for tensor in self.tensors(workload) if tensor.role is Role.IN),
                  out["q_out"], *(out.get(name) for name in ("k_cache", "v_cache", "k_scale", "v_scale")))
        return out

    def _q_and_k(self, workload: Workload, inputs: Arrays) -> Bound:
        """What is rotated, float64 [T, Hq + Hkv, D], and how far a kernel may be off in it: here it is given."""
        import numpy as np

        p = KvProblem.of(workload.problem)
        given = heads_of(p, inputs)[:, :p.heads + p.kv_heads]
        return Bound(given, np.zeros_like(given))

    def cost(self, workload: Workload) -> Cost:
        p, t = KvProblem.of(workload.problem), workload.axes["T"]
        written = t * p.kv_heads * p.position_bytes()
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


def _stored(p: KvProblem, part: str, new: np.ndarray, error: np.ndarray) -> dict[str, Bound]:
    """What the cache has of new values [n, Hkv, D] of k or v, in which a kernel may be off by ``error``."""
    import numpy as np

    if p.scaled:
        integers, scales = quantised_bounds(new, error)
        return {f"{part}_cache": integers, f"{part}_scale": scales}
    narrowing = 0 if p.dtype is DType.F32 else ROUNDOFF[p.dtype]
    with np.errstate(invalid="ignore"):
        bound = error + narrowing * (np.abs(new) + error)
    return {f"{part}_cache": Bound(new, bound + SMALLEST[p.dtype] / 2 if narrowing else bound)}


def _placed(kept: np.ndarray, at: tuple[slice | np.ndarray, ...], new: Bound) -> Bound:
    """A cache of which ``at`` is written and all else kept."""
    import numpy as np

    bound, free = np.zeros_like(kept), None
    kept[at], bound[at] = new.reference, new.bound
    if new.free is not None:
        free = np.zeros(kept.shape, bool)
        free[at] = new.free
    return Bound(kept, bound, free)


def _neox(problem: Problem) -> bool:
    if problem.str("style") not in ("norm", "neox"):
        raise ValueError(f"{problem.key}: style is norm or neox")
    return problem.str("style") == "neox"
