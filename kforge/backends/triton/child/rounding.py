"""Arithmetic of Triton's interpreter as the hardware has it, where the interpreter's own is wrong.

In Triton 3.6 to 3.9 the interpreter keeps bfloat16 and 8-bit floats as raw integers: it adds, multiplies, compares and
reduces these integers, converts by truncation or with a rounding that does not carry into the exponent, and multiplies
float32 matrices exactly whatever their input precision. Here operands are widened to float32 first, each operation's
result is rounded to nearest even, a multiply-add rounds once, and a product of float32 matrices has its operands
rounded as the hardware has them.
"""

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

# Formats of 8 bits: bits of the exponent, of the mantissa, bias, whether there are infinities, whether zero has no sign
# (then 0x80 is NaN). OCP 8-bit Floating Point Specification 1.0 (e4nv, e5); AMD's FNUZ formats in its CDNA 3 ISA guide.
FORMATS = {"fp8e4nv": (4, 3, 7, False, False), "fp8e5": (5, 2, 15, True, False), "fp8e4b8": (4, 3, 8, False, True),
           "fp8e5b16": (5, 2, 16, False, True)}
_TABLES: dict = {}


def is_raw(dtype):
    """Whether the interpreter keeps it as integers."""
    name = dtype.scalar.name
    return name == "bf16" or name in FORMATS


def widen(data, dtype):
    """float32 (float64 for itself) values of raw or ordinary data."""
    name = dtype.scalar.name
    if name == "bf16":
        return (data.astype(np.uint32) << 16).view(np.float32)
    if name in FORMATS:
        return table(name)[0][data]
    return data


def narrow(values, dtype):
    """Raw data of float32 or float64 values, rounded to nearest even; beyond an 8-bit format's largest: that one."""
    name = dtype.scalar.name
    if name == "bf16":
        single = odd(values) if values.dtype == np.float64 else np.ascontiguousarray(values, dtype=np.float32)
        bits = single.view(np.uint32)
        rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(single), (bits >> 16).astype(np.uint16) | np.uint16(0x40), rounded)
    if name in FORMATS:
        return _to_eight(np.asarray(values), name)
    return values


def odd(values):
    """float64 to float32, an inexact result made odd: a second rounding then ends as one would have."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
        back = single.astype(np.float64)
    away = np.abs(back) > np.abs(values)
    bits = single.view(np.uint32).copy()
    inexact = (back != values) & np.isfinite(values)
    bits = np.where(inexact & away, bits - 1, bits)  # towards zero
    return np.where(inexact, bits | 1, bits).astype(np.uint32).view(np.float32)


def table(name):
    """Values of all 256 codes; the finite ones from zero up, and the codes that these have."""
    if name not in _TABLES:
        exponents, mantissas, bias, infinities, unsigned = FORMATS[name]
        codes = np.arange(256)
        e, m = codes >> mantissas & ((1 << exponents) - 1), codes & ((1 << mantissas) - 1)
        size = np.where(e > 0, np.ldexp(1 + m / (1 << mantissas), e - bias),
                        np.ldexp(m / (1 << mantissas), 1 - bias))
        top = (1 << exponents) - 1
        if infinities:
            size = np.where(e == top, np.where(m == 0, np.inf, np.nan), size)
        elif not unsigned:
            size = np.where((e == top) & (m == (1 << mantissas) - 1), np.nan, size)
        values = np.where(codes >= 128, -size, size).astype(np.float32)
        if unsigned:
            values[128] = np.nan
        finite = codes[:128][np.isfinite(values[:128])]
        _TABLES[name] = (values, values[finite].astype(np.float64), finite)
    return _TABLES[name]


def _to_eight(values, name):
    all_values, sizes, codes = table(name)
    unsigned = FORMATS[name][4]
    magnitude = np.abs(values.astype(np.float64))
    middle = (sizes[1:] + sizes[:-1]) / 2
    index = np.searchsorted(middle, magnitude, side="left")
    tie = (index < len(middle)) & (magnitude == middle[np.minimum(index, len(middle) - 1)])
    index = np.where(tie & (codes[index] & 1 == 1), index + 1, index)  # ties to the even code
    found = codes[index].astype(np.uint8)
    negative = np.signbit(values)
    found = np.where(negative & ((found != 0) | (not unsigned)), found | np.uint8(0x80), found)
    nan = np.uint8(np.flatnonzero(np.isnan(all_values))[0])
    return np.where(np.isnan(values), nan, found).astype(np.uint8)


def _widened(handle):
    return TensorHandle(widen(handle.data, handle.dtype), tl.float32) if is_raw(handle.dtype) else handle


def _narrowed(values, dtype):
    return TensorHandle(narrow(values, dtype), dtype.scalar)


def _operator(plain):
    """An operation on handles, of which raw ones are widened and the result narrowed; comparisons stay as they are."""

    def made(self, *handles_and_op):
        *handles, operation = handles_and_op
        raw = next((h.dtype for h in handles if is_raw(h.dtype)), None)
        if raw is None:
            return plain(self, *handles, operation)
        with np.errstate(all="ignore"):
            values = operation(*(widen(h.data, h.dtype) for h in handles))
        if values.dtype == np.bool_:
            return TensorHandle(values, raw.scalar)
        return _narrowed(values, raw)

    return made


def _ternary(plain):
    whole = _operator(plain)

    def made(self, first, second, third, operation):
        if operation is np.where:  # chooses, and computes nothing
            return plain(self, first, second, third, operation)
        return whole(self, first, second, third, operation)

    return made


def _cast(self, source, wanted):
    was, becomes = source.dtype.scalar, wanted.scalar
    data = source.data
    if is_raw(was):
        data = widen(data, was)
    with np.errstate(all="ignore"):
        if is_raw(becomes):
            data = data if data.dtype in (np.float32, np.float64) else data.astype(np.float64)
            return TensorHandle(narrow(data, becomes), becomes)
        return TensorHandle(data.astype(interpreter._get_np_dtype(wanted)), becomes)


def _float_to_float(self, source, wanted, rounding):
    becomes = wanted.scalar
    if rounding == ir.ROUNDING_MODE.RTZ:
        return TensorHandle(_towards_zero(widen(source.data, source.dtype), becomes), becomes)
    return _cast(self, source, wanted)


def _towards_zero(values, dtype):
    if dtype.name == "bf16":
        return (np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.name == "fp16":
        half = values.astype(np.float16)
        back = half.astype(np.float64)
        bits = half.view(np.uint16)
        return np.where(np.abs(back) > np.abs(values), bits - 1, bits).astype(np.uint16).view(np.float16)
    raise NotImplementedError(f"rounding to {dtype} towards zero is not checked here")


def _fma(plain):
    def made(self, x, y, z):
        if z.data.dtype == np.float64:
            return plain(self, x, y, z)
        a, b, c = np.broadcast_arrays(*(widen(h.data, h.dtype).astype(np.float64) for h in (x, y, z)))
        with np.errstate(all="ignore"):
            product = a * b  # exact: at most 48 bits
            total = product + c
            low = total - product
            error = (product - (total - low)) + (c - low)  # of that sum, exact (Knuth's two-sum)
            even = np.ascontiguousarray(total).view(np.int64).reshape(total.shape) & 1 == 0
            nudge = (error != 0) & np.isfinite(total) & even
            towards = np.where(error > 0, np.inf, -np.inf)
            total = np.where(nudge, np.nextafter(total, towards), total)  # odd, so that the next rounding is the only
            if is_raw(z.dtype):
                return _narrowed(total, z.dtype)
            return TensorHandle(total.astype(z.data.dtype), z.dtype.scalar)

    return made


def tf32(values):
    """float32 as a TF32 matrix unit reads it: the low 13 bits of the mantissa do not take part."""
    return (np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _bf16(values):
    return widen(narrow(values, tl.bfloat16), tl.bfloat16)


def _parts(values, count):
    found = []
    for _ in range(count):
        found.append(_bf16(values))
        values = values - found[-1]
    return found


def product(a, b, precision):
    """float32 a @ b with operands as ``precision`` has them, sums in float32."""
    name = str(precision).rpartition(".")[2].lower()
    if name == "ieee":
        return a @ b
    if name == "tf32":
        return tf32(a) @ tf32(b)
    if name == "tf32x3":
        high_a, high_b = tf32(a), tf32(b)
        low_a, low_b = tf32(a - high_a), tf32(b - high_b)
        return low_a @ high_b + high_a @ low_b + high_a @ high_b
    if name in ("bf16x3", "bf16x6"):
        count = 2 if name == "bf16x3" else 3
        left, right = _parts(a, count), _parts(b, count)
        return sum(left[i] @ right[j] for i in range(count) for j in range(count) if i + j < count)
    raise NotImplementedError(f"input precision {name}")


def _dot(self, a, b, d, precision, *rest):
    with np.errstate(all="ignore"):
        if np.issubdtype(d.data.dtype, np.integer):
            # exact while sums stay below 2^53, which those of 8-bit integers do; numpy has no fast integer product
            found = (a.data.astype(np.float64) @ b.data.astype(np.float64)).astype(np.int64).astype(d.data.dtype)
        else:
            left = widen(a.data, a.dtype).astype(np.float32)
            right = widen(b.data, b.dtype).astype(np.float32)
            full = a.dtype.scalar.name == "fp32" and b.dtype.scalar.name == "fp32"
            found = product(left, right, precision) if full else left @ right
    if is_raw(d.dtype):
        return _narrowed(found + widen(d.data, d.dtype), d.dtype)
    return TensorHandle((found + d.data).astype(d.data.dtype), d.dtype.scalar)


def _reductions():
    sums, extremes = interpreter.ReduceOps.sum, interpreter.ReduceOps.min_max
    scans = {name: getattr(interpreter.ScanOps, name) for name in ("cumsum", "cumprod")}

    def wide(tensor):
        return tl.core.tensor(_widened(tensor.handle), tl.block_type(tl.float32, list(tensor.handle.data.shape)))

    def back(found, dtype):
        handle = _narrowed(np.asarray(found.handle.data), dtype)
        return tl.core.tensor(handle, tl.block_type(dtype, list(handle.data.shape)) if found.shape else dtype)

    def total(self, tensor):
        return back(sums(self, wide(tensor)), tensor.dtype) if is_raw(tensor.dtype) else sums(self, tensor)

    def least(self, tensor, value=None, index=None, **given):
        value, index = given.get("val_reduce_op", value), given.get("idx_reduce_op", index)
        only = tensor[0] if isinstance(tensor, tuple) else tensor
        if not is_raw(only.dtype):
            return extremes(self, tensor, value, index)
        found = extremes(self, wide(only), value, index)
        if value is None:
            return found
        return (back(found[0], only.dtype), found[1]) if isinstance(found, tuple) else back(found, only.dtype)

    def scan(plain):
        def made(self, tensor):
            if not is_raw(tensor.dtype):
                return plain(self, tensor)
            return [back(found, tensor.dtype) for found in plain(self, wide(tensor))]

        return made

    interpreter.ReduceOps.sum, interpreter.ReduceOps.min_max = total, least
    for name, plain in scans.items():
        setattr(interpreter.ScanOps, name, scan(plain))


def install():
    """Replaces what is wrong, in this process."""
    builder = InterpreterBuilder
    builder.cast_impl = _cast
    builder.create_fp_to_fp = _float_to_float
    builder.binary_op = _operator(builder.binary_op)
    builder.unary_op = _operator(builder.unary_op)
    builder.ternary_op = _ternary(builder.ternary_op)
    builder.create_fma = _fma(builder.create_fma)
    builder.create_dot = _dot
    if not hasattr(builder, "get_bf16"):  # of 3.6: constants of the type
        builder.get_bf16 = lambda self, value: _narrowed(np.array([value], dtype=np.float64), tl.bfloat16)
    for name in ("create_erf", "create_rsqrt", "create_idiv"):
        if hasattr(builder, name):
            setattr(builder, name, _unary(getattr(builder, name)))
    _reductions()


def _unary(plain):
    def made(self, *handles):
        raw = next((h.dtype for h in handles if is_raw(h.dtype)), None)
        found = plain(self, *(_widened(h) for h in handles))
        return found if raw is None else _narrowed(found.data, raw)

    return made
