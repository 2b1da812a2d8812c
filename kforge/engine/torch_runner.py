"""The reference that needs no kernel and no compiler: torch on weights that were dequantised once.

Same graph, scheduler and paged cache as with kernels, so the three ways are comparable in one process. Its results
depend on the batch in their last bits, as any library's do that picks algorithms by shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from kforge.core.errors import KforgeError
from kforge.engine.cache_groups import CacheLayout, first_page, page_bytes
from kforge.engine.memory import require_memory
from kforge.engine.runner import KernelUse, RunnerOptions
from kforge.engine.steps import StepInputs, StepLimits, StepShape
from kforge.engine.torch_attention import attend_with_sinks
from kforge.engine.torch_cache import TorchCache
from kforge.engine.torch_experts import Routes, expert_products, gated, routes
from kforge.models.config import RopeStyle, rope_tables
from kforge.models.graph import Call, CallKind, StepOptions, step_calls
from kforge.models.model import Model
from kforge.models.roles import WeightRef, shape_of

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass
class _Step:
    """Tensors on their way through one step, and its view of the inputs."""

    shape: StepShape
    x: torch.Tensor  # residual stream [T, H]
    h: torch.Tensor  # what the next matrix reads
    parts: list[torch.Tensor]  # of a fused matrix that came as several
    tables: list[list[torch.Tensor]]  # by group of layers: pages of each sequence, i64
    routes: Routes | None = None  # of a layer with experts


class TorchRunner:
    """Runs steps with torch (see ``Runner``); weights and activations in ``options.torch_dtype``."""

    isolated = False  # there is nothing of anybody else's in it

    def __init__(self, model: Model, limits: StepLimits, options: RunnerOptions, promised: int = 0) -> None:
        """``promised``: bytes that others are going to use."""
        kv, dtype = options.kv, options.torch_dtype
        if dtype not in DTYPES:
            raise KforgeError(f"Unknown element type '{dtype}': use one of {', '.join(DTYPES)}.")
        self._config = c = model.config
        self._dtype = DTYPES[dtype]
        self._threads = options.threads
        self._calls = step_calls(model, StepOptions(kv=kv, page=limits.page_tokens))
        self._runs = [0] * len(self._calls)
        refs = {ref for call in self._calls for ref in (*call.weights, *call.biases)}
        weights = sum(int(np.prod(shape_of(c, ref.role))) for ref in refs) * self._dtype.itemsize
        require_memory(c.name, weights, limits.pages * page_bytes(c, limits.page_tokens, kv), promised=promised)
        self.inputs = StepInputs(limits, np.zeros)
        self.greedy = np.zeros(limits.max_sequences, np.int32)
        self.logits = np.zeros((limits.max_sequences, c.vocab), np.float32)
        self._layout = CacheLayout.of(c)
        self._cache = TorchCache((self._layout.depth, limits.pages, limits.page_tokens, c.kv_heads, c.head_dim), kv)
        tables = rope_tables(c, limits.context)
        self._cos, self._sin = torch.from_numpy(tables.cos), torch.from_numpy(tables.sin)
        self._loaded: dict[tuple[WeightRef, ...], torch.Tensor] = {}
        for call in self._calls:
            for group in (call.weights, call.biases):
                if group and group not in self._loaded:
                    self._loaded[group] = self._load(model, group)

    def _load(self, model: Model, refs: tuple[WeightRef, ...]) -> torch.Tensor:
        """The tensors one below the other, dequantised."""
        parts = []
        for ref in refs:
            stored = model.tensor(ref.role, ref.layer)
            values = stored if isinstance(stored, np.ndarray) else stored.dequantize()
            parts.append(torch.from_numpy(np.array(values, np.float32)).to(self._dtype))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @torch.inference_mode()
    def run(self, shape: StepShape) -> None:
        if self._threads is not None and torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        page = self.inputs.limits.page_tokens
        contexts = self.inputs.context[: shape.sequences].tolist()
        tables = [[torch.from_numpy(group.block_table[i, : -(-c // page)]).long() for i, c in enumerate(contexts)]
                  for group in self.inputs.groups]
        nothing = torch.empty(0)
        step = _Step(shape, nothing, nothing, [], tables)
        for i, call in enumerate(self._calls):
            if call.kind.per_sequence and not shape.rows:
                continue
            self._run(call, step)
            self._runs[i] += 1

    def kernels_used(self) -> list[KernelUse]:
        used: dict[str, KernelUse] = {}
        for call, calls in zip(self._calls, self._runs, strict=True):
            if calls:
                key = call.problem.key
                first = used.get(key)
                used[key] = KernelUse(key, first.label if first else call.label, "torch", f"torch {torch.__version__}",
                                      "none", "relaxed", calls + (first.calls if first else 0))
        return list(used.values())

    def close(self) -> None:
        self._loaded.clear()

    def _run(self, call: Call, step: _Step) -> None:
        rows, c = step.shape.rows, self._config
        match call.kind:
            case CallKind.EMBED:
                step.x = self._loaded[call.weights][torch.from_numpy(self.inputs.ids[: step.shape.tokens])]
            case CallKind.ATTN_NORM | CallKind.FFN_NORM | CallKind.FINAL_NORM:
                step.h = self._norm(step.x, self._loaded[call.weights])
            case CallKind.QKV:
                step.h = self._linear(call, step.h)
            case CallKind.Q | CallKind.K | CallKind.V | CallKind.GATE | CallKind.UP:
                step.parts.append(self._linear(call, step.h))
            case CallKind.ROPE:
                self._rope(call, step, self._joined(step))
            case CallKind.ATTENTION:
                step.h = self._attention(call, step)
            case CallKind.O | CallKind.DOWN:
                step.x = step.x + self._linear(call, step.h)
            case CallKind.ROUTER:
                step.parts.append(self._linear(call, step.h))
            case CallKind.ROUTE:
                assert c.experts
                step.routes = routes(step.parts.pop(), c.experts)
            case CallKind.EXPERT_GATE_UP | CallKind.EXPERT_DOWN:
                step.h = self._experts(call, step)
            case CallKind.COMBINE:
                assert step.routes
                step.x = step.x + torch.einsum("tj,tjh->th", step.routes.weights, step.h)
            case CallKind.GATE_UP | CallKind.SILU:
                both = self._linear(call, step.h) if call.kind is CallKind.GATE_UP else self._joined(step)
                gate, up = both.chunk(2, -1)
                step.h = F.silu(gate) * up
            case CallKind.GATHER:
                step.x = step.x[torch.from_numpy(self.inputs.index[:rows])]
            case CallKind.HEAD:
                step.h = self._linear(call, step.h).float()
                self.logits[:rows] = step.h.numpy()
            case CallKind.ARGMAX:
                self.greedy[:rows] = self.logits[:rows].argmax(-1)
            case _:
                raise KforgeError(f"The torch reference has no '{call.kind}' ({c.name}).")

    def _joined(self, step: _Step) -> torch.Tensor:
        """The fused result: as it is, or from the parts that were computed one by one."""
        if step.parts:
            step.h = torch.cat(step.parts, -1)
            step.parts.clear()
        return step.h

    def _linear(self, call: Call, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._loaded[call.weights], self._loaded[call.biases] if call.biases else None)

    def _experts(self, call: Call, step: _Step) -> torch.Tensor:
        """[T, k, n]: what each token's experts make of it, or of what they made before."""
        e = self._config.experts
        assert e and step.routes
        x = step.h if step.h.dim() == 3 else step.h[:, None].expand(-1, e.per_token, -1)
        weights = self._loaded[call.weights].unflatten(0, (len(call.weights), e.count, -1))
        biases = self._loaded[call.biases].unflatten(0, (len(call.biases), e.count)) if call.biases else None
        parts = [expert_products(x, step.routes, weights[i], None if biases is None else biases[i])
                 for i in range(len(call.weights))]
        return parts[0] if len(parts) == 1 else gated(e.gate, parts[0], parts[1])

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._config.rms_eps)
        return (wide * scale * weight.float()).to(x.dtype)

    def _rope(self, call: Call, step: _Step, qkv: torch.Tensor) -> None:
        """Turns q and k, writes k and v into the cache; leaves q [T, Hq, D] in ``h``."""
        c, tokens, layer = self._config, step.shape.tokens, call.layer or 0
        positions = torch.from_numpy(self.inputs.positions[:tokens]).long()
        slots = torch.from_numpy(self.inputs.groups[self._layout.groups[layer]].slots[:tokens]).long()
        heads = qkv.view(tokens, c.heads + 2 * c.kv_heads, c.head_dim)
        turned = heads[:, : c.heads + c.kv_heads].float()
        if call.weights:
            q_norm, k_norm = self._loaded[call.weights].chunk(2)
            parts = self._norm(turned[:, : c.heads], q_norm), self._norm(turned[:, c.heads :], k_norm)
            turned = torch.cat(parts, 1)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        if c.rope.style is RopeStyle.NORM:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        else:
            a, b = turned.chunk(2, -1)
            turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
        step.h = turned[:, : c.heads].to(self._dtype)
        keys, values = turned[:, c.heads :], heads[:, c.heads + c.kv_heads :]
        self._cache.write(self._layout.places[layer], slots, keys, values)

    def _attention(self, call: Call, step: _Step) -> torch.Tensor:
        """Each sequence alone over the pages that its queries see; [T, Hq*D]."""
        layer = call.layer or 0
        place, page = self._layout.places[layer], self.inputs.limits.page_tokens
        window, sinks = self._config.window(layer), self._loaded[call.weights] if call.weights else None
        starts = self.inputs.query_start[: step.shape.sequences + 1].tolist()
        outs = []
        for i, table in enumerate(step.tables[self._layout.groups[layer]]):
            context, count = int(self.inputs.context[i]), starts[i + 1] - starts[i]
            first = first_page(window, context - count, page)
            pages, context = table[first:], context - first * page
            q = step.h[starts[i] : starts[i + 1]].transpose(0, 1)[None]
            k, v = self._cache.read(place, pages, context, self._dtype)
            seen = torch.ones(count, context, dtype=torch.bool).tril(context - count)
            if window:
                seen = seen.triu(context - count - window + 1)
            if sinks is None:
                out = F.scaled_dot_product_attention(q, k, v, attn_mask=None if seen.all() else seen, enable_gqa=True)
            else:
                out = attend_with_sinks(q, k, v, seen, sinks)
            outs.append(out[0].transpose(0, 1))
        return (outs[0] if len(outs) == 1 else torch.cat(outs)).reshape(step.shape.tokens, -1)
