"""Grouped-query attention over a paged or a contiguous KV cache, as kforge's ``paged_attention``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.workload import Problem
from kforge.interchange import schema
from kforge.interchange.dense import Signature
from kforge.interchange.mapping import (
    FLOATS,
    INTEGERS,
    Call,
    Foreign,
    Given,
    Tables,
    exact_normals,
    narrowed,
    widened,
    workload_at,
)
from kforge.interchange.schema import Definition
from kforge.operators.base import Bound

if TYPE_CHECKING:
    import numpy as np

_PAGE = 16  # tokens a page where the definition's pages are none of kforge's
_PAGED = {"q", "k_cache", "v_cache", "qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len", "sm_scale"}
_RAGGED = {"q", "k", "v", "qo_indptr", "kv_indptr", "sm_scale"}
_INDEX = {"qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len"}
_MOST_SEQUENCES = 1 << 20  # of a workload


@dataclass(frozen=True)
class AttentionTranslation(Foreign):
    """``page``: tokens of the definition's pages, 0 for a contiguous cache. The cache is moved into kforge's layout."""

    page: int
    out: str

    @classmethod
    def match(cls, definition: Definition) -> Foreign | str:
        s = Signature.of(definition)
        paged = "k_cache" in definition.inputs
        known = _PAGED if paged else _RAGGED
        needed = known - {"qo_indptr", "kv_last_page_len", "sm_scale"} | (set() if paged else {"qo_indptr"})
        if set(definition.inputs) - known or needed - set(definition.inputs):
            odd = sorted((set(definition.inputs) - known) | (needed - set(definition.inputs)))
            return f"paged_attention's inputs are {', '.join(sorted(known))}: {', '.join(odd)} does not fit"
        k, v = ("k_cache", "v_cache") if paged else ("k", "v")
        q_shape, k_shape = s.extents("q"), s.extents(k)
        if len(q_shape) != 3 or len(k_shape) != (4 if paged else 3) or s.extents(v) != k_shape:
            return "paged_attention takes q[T, Hq, D] and k, v of one shape"
        if not s.floats("q", k, v) or s.tensor(k).dtype is not s.tensor(v).dtype:
            return "paged_attention's k and v are of one float type of 16 or 32 bits"
        heads, d = q_shape[1:]
        page = k_shape[1] if paged else 0
        kv_heads = k_shape[-2]
        numbers = (heads, d, page, kv_heads)
        if not all(isinstance(n, int) for n in numbers) or k_shape[-1] != d:
            return "paged_attention has constant heads, head size and page size, the same head size in q, k and v"
        if not isinstance(q_shape[0], str) or not isinstance(k_shape[0], str):
            return "paged_attention has any number of queries, and of pages or tokens in the cache"
        for name in (n for n in s.definition.inputs if n in _INDEX):
            extents = s.extents(name)
            if len(extents) != 1 or not isinstance(extents[0], str) or s.tensor(name).dtype not in INTEGERS:
                return f"paged_attention's {name} is a vector of any length, of int32 or int64"
        if "sm_scale" in s.tensors or not s.floats(*s.scalars):
            return "paged_attention's sm_scale is one float"
        outs = [n for n in s.outputs if s.extents(n) == q_shape]
        rest = [n for n in s.outputs if n not in outs]
        if len(outs) != 1 or rest not in ([], ["lse"]):
            return "paged_attention makes one output of q's shape"
        rows = int(page) if page and not int(page) % _PAGE else _PAGE
        if int(heads) % int(kv_heads) or int(d) % 2:
            return "paged_attention has an even head size, and heads in whole groups"
        problem = Problem.of(
            "paged_attention", Hq=int(heads), Hkv=int(kv_heads), D=int(d), P=rows, kv=FLOATS[s.tensor(k).dtype].value
        )
        return cls(definition, problem, int(page), outs[0])

    @property
    def _cache(self) -> tuple[str, str]:
        return ("k_cache", "v_cache") if self.page else ("k", "v")

    @property
    def _rows(self) -> int:
        """Tokens of kforge's pages."""
        return self.problem.int("P")

    @property
    def differences(self) -> tuple[str, ...]:
        float_cache = {n: t for n, t in self.definition.inputs.items() if n not in self._cache}
        said = widened(self.definition.model_copy(update={"inputs": float_cache}))
        if not self.page:
            said.append(f"k and v moved into pages of {self._rows} tokens")
        elif self.page != self._rows:
            said.append(f"pages of {self.page} regrouped into pages of {self._rows} tokens")
        said.append(f"a page holds k[Hkv, D, {self._rows}] and v[Hkv, {self._rows}, D]")
        if "lse" in self.definition.outputs:
            said.append("lse is not computed")
        return tuple(said)

    def example(self, rng: np.random.Generator) -> dict[str, np.ndarray | float]:
        """Three sequences; two of them prefill a few queries where the definition may."""
        import numpy as np

        heads, d, kv_heads = (self.problem.int(n) for n in ("Hq", "D", "Hkv"))
        queries = np.array([3, 1, 2] if "qo_indptr" in self.definition.inputs else [1, 1, 1])
        unit = self.page or 1
        whole = "kv_last_page_len" not in self.definition.inputs
        tokens = np.array([3 * unit, 2 * unit, 17 * unit] if whole else [2 * unit + 1, unit, 3 * unit - 1])
        tokens = np.maximum(tokens, queries if unit == 1 or not whole else unit)
        pages = -(-tokens // unit)
        total = int(pages.sum()) + 2
        shape = (total, self.page, kv_heads, d) if self.page else (int(tokens.sum()), kv_heads, d)
        k, v = self._cache
        made: dict[str, np.ndarray | float] = {
            "q": exact_normals(rng, (int(queries.sum()), heads, d)),
            k: exact_normals(rng, shape),
            v: exact_normals(rng, shape),
            "qo_indptr": _starts(queries),
            "kv_indptr": _starts(pages),
            "kv_indices": rng.permutation(total)[: int(pages.sum())].astype(np.int32),
            "kv_last_page_len": (tokens - (pages - 1) * unit).astype(np.int32),
            "sm_scale": 0.9 * d**-0.5,
        }
        return {name: made[name] for name in self.definition.inputs}

    def call(self, given: Given) -> Call:
        import numpy as np

        q = np.asarray(given["q"])
        k, v = (np.asarray(given[name]).reshape(-1, *np.shape(given[name])[-2:]) for name in self._cache)
        sequences = self._tokens(given)
        context = np.array([len(tokens) for tokens in sequences], np.int32)
        blocks = -(-context // self._rows)
        table = np.full((len(context), int(blocks.max())), -1, np.int32)
        shape = (int(blocks.sum()), self.problem.int("Hkv"), self.problem.int("D"), self._rows)
        keys, values = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
        at = 0
        for s, tokens in enumerate(sequences):
            for first in range(0, len(tokens), self._rows):
                part = tokens[first : first + self._rows]
                keys[at, :, :, : len(part)] = k[part].transpose(1, 2, 0)
                values[at, :, :, : len(part)] = v[part].transpose(1, 2, 0)
                table[s, first // self._rows] = at
                at += 1
        start = np.asarray(given["qo_indptr"]) if "qo_indptr" in given else np.arange(len(context) + 1)
        kv = DType(self.problem.str("kv"))
        inputs = {
            "q": q.reshape(len(q), -1),
            "k_cache": narrowed(keys, kv),
            "v_cache": narrowed(np.ascontiguousarray(values.transpose(0, 1, 3, 2)), kv),
            "block_table": table,
            "query_start": start.astype(np.int32),
            "context": context,
        }
        if "sm_scale" in given:
            inputs["scale"] = np.array(given["sm_scale"], np.float64)
        axes = {"T": len(q), "S": len(context), "B": table.shape[1], "pages": at, "max_context": int(context.max())}
        return Call(workload_at(self.problem, axes), inputs)

    def _tokens(self, given: Given) -> list[np.ndarray]:
        """Rows of each sequence's tokens in the cache, seen as one row a token."""
        import numpy as np

        starts = np.asarray(given["kv_indptr"])
        if not self.page:
            return [np.arange(a, b) for a, b in pairwise(starts)]
        indices, offsets, last = np.asarray(given["kv_indices"]), np.arange(self.page), given.get("kv_last_page_len")
        found = []
        for s, (a, b) in enumerate(pairwise(starts)):
            tokens = (indices[a:b, None].astype(np.int64) * self.page + offsets).ravel()
            short = self.page - int(np.asarray(last)[s]) if last is not None else 0
            found.append(tokens[: len(tokens) - short])
        return found

    def outputs(self, made: Mapping[str, Bound]) -> dict[str, Bound]:
        shape = (-1, self.problem.int("Hq"), self.problem.int("D"))
        return {self.out: Bound(made["out"].reference.reshape(shape), made["out"].bound.reshape(shape))}

    def axes(self, workload: schema.Workload, tables: Tables) -> dict[str, int]:
        """Contexts from the tables where they are stored, else even ones."""
        axes, inputs = workload.axes, self.definition.inputs
        queries = axes[(inputs["q"].shape or ())[0]]
        sequences = axes[(inputs["kv_indptr"].shape or ())[0]] - 1
        if sequences < 1:
            raise ValueError(f"workload {workload.uuid} has no sequence")
        if sequences > _MOST_SEQUENCES:
            raise ValueError(f"workload {workload.uuid} has more than {_MOST_SEQUENCES} sequences")
        context = self._contexts(workload, tables, sequences)
        longest = max(context)
        if longest < 1:
            raise ValueError(f"workload {workload.uuid} has no context")
        pages = sum(-(-c // self._rows) for c in context)
        return {"T": queries, "S": sequences, "B": -(-longest // self._rows), "pages": pages, "max_context": longest}

    def _contexts(self, workload: schema.Workload, tables: Tables, sequences: int) -> list[int]:
        unit = self.page or 1
        starts, last = tables("kv_indptr"), tables("kv_last_page_len")
        if starts is None or starts.shape != (sequences + 1,):
            name = "kv_indices" if self.page else self._cache[0]
            total = workload.axes[(self.definition.inputs[name].shape or ())[0]]
            return [-(-total * unit // sequences)] * sequences
        lengths = [int(b) - int(a) for a, b in pairwise(starts)]
        if any(n < 0 for n in lengths):
            raise ValueError(f"workload {workload.uuid} has a kv_indptr that descends")
        short = [unit - int(n) for n in last] if last is not None and last.shape == (sequences,) else [0] * sequences
        return [max(n * unit - s, 0) if n else 0 for n, s in zip(lengths, short, strict=True)]


def _starts(counts: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
