"""Mistakes that people and models make in Triton kernels, each planted in a shipped template's rendered source.

A fault is one textual change of a base's source: a mask, a stride, a scale, a page, a tail. ``bases`` has small
problems of every operator that has templates, with the parameters that they are rendered with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kforge.core.workload import Attr, Problem, Workload


@dataclass(frozen=True)
class Base:
    """A template at a small problem."""

    template: str  # path below templates/kernels
    workload: Workload
    params: dict[str, Attr] = field(default_factory=dict)  # where they are not the defaults


@dataclass(frozen=True)
class Fault:
    base: str
    what: str
    old: str
    new: str
    times: int = -1  # how often ``old`` is replaced, from the front; all when negative

    def planted(self, source: str) -> str:
        """The source with the fault. Raises AssertionError where it no longer applies."""
        changed = source.replace(self.old, self.new, self.times)
        assert changed != source, f"{self.base}, {self.what}: the source no longer has {self.old!r}"
        return changed

    def __str__(self) -> str:
        return f"{self.base}: {self.what}"


def _workload(operator: str, axes: dict[str, int], **static: Attr) -> Workload:
    return Workload.of(Problem.of(operator, **static), **axes)


def _linear(weight: str, act: str, epilogue: str = "none", bias: int = 0, k: int = 160, n: int = 72,
            m: int = 3) -> Workload:
    return _workload("linear", {"M": m}, K=k, N=n, weight=weight, act=act, epilogue=epilogue, bias=bias, rows=32)


def _experts(weight: str, act: str, epilogue: str, source: str) -> Workload:
    return _workload("moe_linear", {"T": 4}, E=5, k=2, input=source, K=96, N=72, weight=weight, act=act,
                     epilogue=epilogue, bias=1, rows=32)


def _attention(kv: str, axes: dict[str, int], **more: int) -> Workload:
    return _workload("paged_attention", axes, Hq=6, Hkv=2, D=48, P=16, kv=kv, **more)


_DECODE = {"T": 3, "S": 3, "B": 12, "pages": 20, "max_context": 181}
_PREFILL = {"T": 20, "S": 3, "B": 6, "pages": 14, "max_context": 75}
_ROPE = {"Hq": 4, "Hkv": 2, "D": 48, "P": 16, "kv": "bf16"}
_ROPE_AXES = {"T": 6, "pages": 3, "positions": 40}

bases: dict[str, Base] = {
    "rms_norm": Base("triton/rms_norm/row.py.j2", _workload("rms_norm", {"T": 3}, H=100, residual=1)),
    "silu_mul": Base("triton/silu_mul/block.py.j2", _workload("silu_mul", {"T": 3}, I=200), {"block": 128}),
    "gather_rows": Base("triton/gather_rows/block.py.j2", _workload("gather_rows", {"R": 3, "T": 9}, H=300),
                        {"block": 256}),
    "argmax": Base("triton/argmax/split.py.j2", _workload("argmax", {"R": 3}, V=2500), {"block": 1024}),
    "embedding": Base("triton/embedding/block.py.j2",
                      _workload("embedding", {"T": 4}, V=90, H=160, weight="q4_1", rows=32), {"block": 128}),
    "moe_route": Base("triton/moe_route/sort.py.j2", _workload("moe_route", {"T": 24}, E=12, k=4, style="chosen"),
                      {"block": 64}),
    "moe_combine": Base("triton/moe_combine/block.py.j2", _workload("moe_combine", {"T": 3}, H=150, k=4),
                        {"block": 128}),
    "rope_kv_write": Base("triton/rope_kv_write/heads.py.j2",
                          _workload("rope_kv_write", _ROPE_AXES, style="neox", **_ROPE)),
    "qk_norm_rope_kv_write": Base("triton/qk_norm_rope_kv_write/heads.py.j2",
                                  _workload("qk_norm_rope_kv_write", _ROPE_AXES, style="norm", **_ROPE)),
    "linear a8": Base("triton/linear/tile.py.j2", _linear("q4_1", "a8", "residual", 1),
                      {"block_n": 32, "block_k": 64, "split_k": 2}),
    "linear bf16": Base("triton/linear/tile.py.j2", _linear("mxfp4", "bf16", "silu_gate", 1),
                        {"block_m": 8, "block_n": 32, "block_k": 64, "split_k": 1, "direct": 1}),
    "linear f32": Base("triton/linear/tile.py.j2", _linear("bf16", "f32", k=150),
                       {"block_n": 32, "block_k": 64, "split_k": 2}),
    "moe_linear": Base("triton/moe_linear/grouped.py.j2", _experts("mxfp4", "bf16", "swiglu_oai", "token"),
                       {"block_n": 64, "block_k": 64}),
    "decode": Base("triton/paged_attention/decode.py.j2", _attention("bf16", _DECODE, sinks=1),
                   {"block": 32, "splits": 4}),
    "decode window": Base("triton/paged_attention/decode.py.j2", _attention("i8", _DECODE, window=50),
                          {"block": 32, "splits": 2}),
    "prefill": Base("triton/paged_attention/prefill.py.j2", _attention("bf16", _PREFILL),
                    {"rows": 16, "queries": 4, "block": 16}),
}

faults = [
    Fault("rms_norm", "unmasked tail", "inside = k < H", "inside = k < BLOCK"),
    Fault("rms_norm", "mask one short", "inside = k < H", "inside = k < H - 1"),
    Fault("rms_norm", "stride taken for the width", "t * x_stride", "t * H"),
    Fault("rms_norm", "eps left out", " / H + eps", " / H"),
    Fault("rms_norm", "mean over the padded row", " / H + eps", " / BLOCK + eps"),
    Fault("rms_norm", "weight left out", "(h * r) * w", "h * r"),
    Fault("rms_norm", "sum not kept", "tl.store(residual + t * residual_stride + k, h, mask=inside)", "pass"),

    Fault("silu_mul", "unmasked tail", "inside = i < I", "inside = i < I + 8"),
    Fault("silu_mul", "mask one short", "inside = i < I", "inside = i < I - 1"),
    Fault("silu_mul", "stride taken for the width", "t * gate_up_stride", "t * (2 * I)"),
    Fault("silu_mul", "sign", "tl.exp(-gate)", "tl.exp(gate)"),
    Fault("silu_mul", "factors one off", "+ I + i", "+ I - 1 + i"),
    Fault("silu_mul", "factor left out", "1.0 + tl.exp(-gate)) * up", "1.0 + tl.exp(-gate))"),

    Fault("gather_rows", "index ignored", "tl.load(index + r)", "r"),
    Fault("gather_rows", "index of another row", "tl.load(index + r)", "tl.load(index)"),
    Fault("gather_rows", "stride taken for the width", "row * x_stride", "row * H"),
    Fault("gather_rows", "unmasked tail", "inside = h < H", "inside = h < H + 4"),
    Fault("gather_rows", "mask one short", "inside = h < H", "inside = h < H - 1"),
    Fault("gather_rows", "block one off", "tl.program_id(1) * 256", "tl.program_id(1) * 257"),

    Fault("argmax", "last of equals", "2147483647 - index", "index"),
    Fault("argmax", "NaN above all", "rising, -2147483648)", "rising, 2147483647)"),
    Fault("argmax", "zeros of two signs differ", "x = tl.where(x == 0.0, 0.0, x)", "pass"),
    Fault("argmax", "unmasked tail", "tl.where(v < V, ordered(x, v), LEAST)", "ordered(x, v)"),
    Fault("argmax", "mask one short", "v < V", "v < V - 1"),
    Fault("argmax", "stride taken for the width", "r * logits_stride", "r * V"),
    Fault("argmax", "negative numbers in bits' order", "tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)", "bits"),
    Fault("argmax", "last part left out", "mask=p < PARTS", "mask=p < PARTS - 1"),

    Fault("embedding", "scale left out", "signed(u).to(tl.float32) * d", "signed(u).to(tl.float32)"),
    Fault("embedding", "minimum left out", "x += tl.load", "x += 0.0 * tl.load"),
    Fault("embedding", "halves of a byte exchanged", "k // 16 * 4", "(1 - k // 16) * 4"),
    Fault("embedding", "rows of a panel's first tile", "in_panel // 16 *", "0 *"),
    Fault("embedding", "scale of the row's place in its tile", "tl.float16)) + in_panel", "tl.float16)) + r"),
    Fault("embedding", "group one off", "start + h // 32 *", "start + (h + 1) // 32 *"),
    Fault("embedding", "unmasked tail", "inside = h < H", "inside = h < H + 32"),

    Fault("moe_route", "last of equals", "2147483647 - index", "index"),
    Fault("moe_route", "NaN below all", "rising, 0x7FFFFFFF)", "rising, -2147483648)"),
    Fault("moe_route", "maximum not subtracted", "tl.exp(chosen - largest)", "tl.exp(chosen)"),
    Fault("moe_route", "padding in the sum", "tl.where(j < CHOICES, p, 0.0)", "tl.where(j < CHOICES - 1, p, 0.0)"),
    Fault("moe_route", "weights not divided", "tl.div_rn(p, total)", "p"),
    Fault("moe_route", "slots one off", "tl.cumsum(mine, axis=0) - 1", "tl.cumsum(mine, axis=0)"),
    Fault("moe_route", "later blocks start anew", "start += tl.sum(mine, axis=0)", "pass"),
    Fault("moe_route", "end left out", "if e == E - 1:", "if e == E:"),
    Fault("moe_route", "chosen twice", "left = tl.where(e == best, LEAST, left)", "left = left"),

    Fault("moe_combine", "expert left out", "tl.static_range(1, 4)", "tl.static_range(1, 3)"),
    Fault("moe_combine", "weight left out", "tl.load(weights + j) * tl.load", "tl.load"),
    Fault("moe_combine", "rows of another token", "t * 4 * x_stride", "t * x_stride"),
    Fault("moe_combine", "residual left out", "tl.load(place, mask=inside, other=0.0) + total", "total"),
    Fault("moe_combine", "unmasked tail", "inside = h < H", "inside = h < H + 2"),
    Fault("moe_combine", "stride taken for the width", "t * weights_stride", "t * 4"),

    Fault("rope_kv_write", "sign of the sine", "a * c - b * s", "a * c + b * s"),
    Fault("rope_kv_write", "pairs of the other style", "first + HALF", "first + 1"),
    Fault("rope_kv_write", "v rotated", "tl.where(is_v, b, ", "tl.where(is_v & False, b, "),
    Fault("rope_kv_write", "negative slots written", "written = inside & (place >= 0)[:, None]", "written = inside"),
    Fault("rope_kv_write", "slot one off", "offset = place % P", "offset = (place + 1) % P"),
    Fault("rope_kv_write", "k stored as v is", "k + second * P", "k + second"),
    Fault("rope_kv_write", "head one off", "head - HQ) * (D * P)", "head - HQ + 1) * (D * P)"),
    Fault("rope_kv_write", "rounded towards zero", "rotated_a.to(tl.bfloat16)",
          "(rotated_a.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True).to(tl.bfloat16)"),

    Fault("qk_norm_rope_kv_write", "mean over pairs", "axis=1) / D + eps", "axis=1) / HALF + eps"),
    Fault("qk_norm_rope_kv_write", "eps left out", " / D + eps", " / D"),
    Fault("qk_norm_rope_kv_write", "weight of q for k", "tl.load(k_norm + first, mask=of_k, other=0.0)",
          "tl.load(q_norm + first, mask=of_k, other=0.0)"),
    Fault("qk_norm_rope_kv_write", "second half of the weight left out", "(b * r) * second_w", "b * r"),
    Fault("qk_norm_rope_kv_write", "pairs of the other style", "first = 2 * pair[None, :]", "first = pair[None, :]"),
    Fault("qk_norm_rope_kv_write", "position ignored", "tl.load(position + t)", "t"),
    Fault("qk_norm_rope_kv_write", "pages one off", "page = place // P", "page = tl.maximum(place // P - 1, 0)"),

    Fault("linear a8", "scale of the activations left out", "(d * s[None, :])", "d"),
    Fault("linear a8", "scale of the weights left out", "(d * s[None, :])", "s[None, :]"),
    Fault("linear a8", "minimum left out", "minimum[:, None] * t[None, :]", "0.0 * minimum[:, None] * t[None, :]"),
    Fault("linear a8", "rounded towards zero", "((y + 12582912.0) - 12582912.0).to(tl.int8)", "y.to(tl.int8)"),
    Fault("linear a8", "places of k not exchanged", "(place % 2 * 16 + place // 8 * 4 + place % 8 // 2)", "place"),
    Fault("linear a8", "one of the shares left out", "tl.static_range(2):", "tl.static_range(1):"),
    Fault("linear a8", "last group left out", "tl.minimum(first + 4, GROUPS)", "tl.minimum(first + 4, GROUPS - 1)"),
    Fault("linear a8", "bias left out", "acc_up += tl.load(bias", "acc_up += 0.0 * tl.load(bias"),
    Fault("linear a8", "infinite activations finite", "tl.div_rn(amax, 127.0) + (amax - amax)",
          "tl.div_rn(amax, 127.0)"),
    Fault("linear bf16", "nibbles in the order of the word", "tl.arange(0, 8) * 4", "(7 - tl.arange(0, 8)) * 4"),
    Fault("linear bf16", "gate and up exchanged", "packed_up = c // 16 * 32 + c % 16 + 16",
          "packed_up = c // 16 * 32 + c % 16"),
    Fault("linear bf16", "scale one exponent off", "(e - 1) << 23", "e << 23"),
    Fault("linear bf16", "denormal scales flushed", "0x200000 << (e & 1)", "0 * e"),
    Fault("linear bf16", "sign of a code left out", "(u & 8) << 12", "(u & 0) << 12"),
    Fault("linear bf16", "rows of the first tile of a panel", "row_up // 16 *", "0 *"),
    Fault("linear bf16", "unmasked columns", "inside_c = c[:, None] < WIDTH", "inside_c = c[:, None] < WIDTH + 4"),
    Fault("linear bf16", "stride taken for the width", "at * out_stride", "at * WIDTH"),
    Fault("linear f32", "rounded to bf16", "(rest - middle).to(tl.bfloat16)", "(rest - rest).to(tl.bfloat16)"),
    Fault("linear f32", "small values not scaled", "tl.where(small, 18446744073709551616.0, 1.0)[:, None]", "1.0"),
    Fault("linear f32", "infinity less infinity", "tl.where(tl.abs(v) == float(\"inf\"), 0.0, v - high)", "v - high"),
    Fault("linear f32", "unmasked k", "mask=k < K", "mask=k < K + 8"),

    Fault("moe_linear", "bias of the first expert", "bias += e.to(tl.int64) * bias_stride", "pass"),
    Fault("moe_linear", "matrix of the first expert", "w += e.to(tl.int64) *", "w += 0 *"),
    Fault("moe_linear", "row of the slot, not of its token", "plane_row = slot // 2",
          "plane_row = tl.minimum(slot, T - 1)"),
    Fault("moe_linear", "tile one expert on", "behind <= tile_m", "behind < tile_m"),
    Fault("moe_linear", "slots of the next expert", "tl.where(mine, ends, 0), axis=0)",
          "tl.where(mine, ends, 0), axis=0) + 1"),
    Fault("moe_linear", "written in order, not to slots", "out + slot[None, :]", "out + m[None, :]"),
    Fault("moe_linear", "gate not limited", "gate = tl.where(acc_gate > 7.0, 7.0, acc_gate)", "gate = acc_gate"),

    Fault("decode", "page one off", "block_table + n // P", "block_table + (n + 1) // P"),
    Fault("decode", "own position unseen", "high = position + 1", "high = position"),
    Fault("decode", "unmasked tail", "((n >= low) & (n < high))[None, :]", "(n >= low)[None, :]"),
    Fault("decode", "stale values multiplied by zero", "mask=(n < high)[:, None]", "mask=(n < high + 16)[:, None]"),
    Fault("decode", "scale left out", "q *= scale * LOG2E", "q *= LOG2E"),
    Fault("decode", "sum not rescaled", "total = total * shrink + tl.sum", "total = total + tl.sum"),
    Fault("decode", "rounded to bf16", "o = tl.dot(pm, v, o)", "o = o"),
    Fault("decode", "sink left out", "tl.exp2(sink - top)", "0.0 * tl.exp2(sink - top)"),
    Fault("decode", "share left out", "mosts = tl.load(scratch + pairs * (SPLITS * D) + place)",
          "mosts = tl.where(i == SPLITS - 1, -float('inf'), tl.load(scratch + pairs * (SPLITS * D) + place))"),
    Fault("decode window", "window one short", "high - 50", "high - 49"),
    Fault("decode window", "window one long", "high - 50", "high - 51"),
    Fault("decode window", "scale of k left out", "scores *= tl.load(k_scale", "scores *= 1.0 + 0.0 * tl.load(k_scale"),
    Fault("decode window", "scale of another head", "v_scale += head * P", "v_scale += 0 * P"),
    Fault("prefill", "own position unseen", "n[None, :] <= own[:, None]", "n[None, :] < own[:, None]"),
    Fault("prefill", "no causal mask", "scores = tl.where((n[None, :] <= own[:, None])",
          "scores = tl.where((n[None, :] < high)"),
    Fault("prefill", "NaN reaches queries before it", "if lost:", "if lost & False:"),
    Fault("prefill", "wrong row of queries", "q + row[:, None] * q_stride", "q + (row[:, None] - 1) * q_stride"),
    Fault("prefill", "head of another group", "k_cache += head * (D * P)", "k_cache += 0 * (D * P)"),
    Fault("prefill", "a sequence's last tile unmasked", "(query < count)", "(query < count + 1)"),
]
