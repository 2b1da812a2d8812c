"""kforge/math.h: accuracy against float64, and the same bits from every form."""

import ctypes

import numpy as np
import pytest
from operators_cpp import cpu_features, open_probe, pointer

F7 = np.float32(7)
FORMS = {"portable": (), "avx2": ("-mavx2", "-mfma", "-mf16c"),
         "avx512": ("-mavx512f", "-mavx512bw", "-mavx2", "-mfma", "-mf16c")}


@pytest.fixture(scope="module")
def probes():
    """The probe library compiled for every instruction set that this machine has."""
    return {form: open_probe("math_probe", flags) for form, flags in FORMS.items()
            if {flag.removeprefix("-m") for flag in flags} <= cpu_features()}


def call(library, function, array, dtype=np.float32, per_item=1):
    array = np.ascontiguousarray(array)
    out = np.empty(array.size // per_item, dtype)
    getattr(library, function)(pointer(array), pointer(out), ctypes.c_int64(out.size))
    return out


def sample_of_all_floats(step=397):
    """Every ``step``-th float of all 2^32, plus the neighbourhoods of special values: about 10.8 million."""
    spread = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    centres = np.array([0.0, 1.0, 88.72284, 88.73, 89, -103.97, -103.98, -104, -87.33655, 65504, 65520, 6.1e-5, 5.96e-8,
                        2.98e-8, np.inf, 3.4e38, 1e-45], np.float32)
    centres = np.concatenate([centres, -centres]).view(np.uint32)
    near = (centres[:, None].astype(np.int64) + np.arange(-2000, 2000)).ravel() % 2**32
    bits = np.concatenate([spread, near.astype(np.uint32)])
    return np.resize(bits, -(-bits.size // 16) * 16).view(np.float32)


def same_bits(a, b):
    return ((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all()


def exp_error(library, x):
    """Largest error of the finite results, in units of the last place of the float nearest to float64's exp."""
    got = call(library, "exp_scalar", x)
    with np.errstate(all="ignore"):
        want = np.exp(x.astype(np.float64))
        rounded = want.astype(np.float32)
    finite = np.isfinite(rounded)
    ulp = np.maximum(np.spacing(rounded[finite]).astype(np.float64), 2.0**-149)
    assert np.isinf(got[~finite]).all()
    return (np.abs(got[finite] - want[finite]) / ulp).max(initial=0.0)


def test_exp_is_within_one_ulp_of_float64(probes):
    x = sample_of_all_floats()
    x = x[np.isfinite(x)]
    assert exp_error(probes["portable"], x) <= 0.9
    assert exp_error(probes["portable"], np.linspace(-104, 88.7, 3_000_000, dtype=np.float32)) <= 0.9
    assert (call(probes["portable"], "exp_scalar", x[x < -103.98]) == 0).all()
    special = call(probes["portable"], "exp_scalar", np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32))
    assert np.isnan(special[0]) and special[1] == np.inf and special[2] == 0 and special[3] == special[4] == 1


@pytest.mark.slow
def test_exp_of_every_float_that_matters(probes):
    """All floats from 2^-12 to 128, both signs; smaller ones give 1 + x, rounded."""
    library = probes.get("avx2", probes["portable"])
    for sign in (0, 1 << 31):
        for exponent in range(127 - 12, 127 + 7):
            bits = np.arange(1 << 23, dtype=np.uint32) | np.uint32(exponent << 23 | sign)
            assert exp_error(library, bits.view(np.float32)) <= 0.9


def test_every_form_of_exp_and_silu_returns_the_same_bits(probes):
    x = sample_of_all_floats()
    assert x.size > 10_000_000
    for name in ("exp", "silu"):
        want = call(probes["portable"], f"{name}_scalar", x)
        for form, library in probes.items():
            assert same_bits(call(library, f"{name}_scalar", x), want), (name, form, "scalar")
            if form != "portable":
                assert same_bits(call(library, f"{name}_{form}", x), want), (name, form)


def test_every_form_of_the_clamped_gate_returns_the_same_bits(probes):
    values = sample_of_all_floats(4001)
    near = np.linspace(-9, 9, 40_000, dtype=np.float32)
    edges = np.array([7, -7, np.nextafter(F7, F7 * 2), np.inf, -np.inf, np.nan, 0, -0.0, -1, 1e-45], np.float32)
    gate = np.concatenate([values, near, np.repeat(edges, 16)])
    up = np.concatenate([np.roll(values, 7), np.random.default_rng(3).permutation(near), np.resize(edges, 160)])
    both = np.stack([gate, up])
    want = call(probes["portable"], "swiglu_oai_scalar", both, per_item=2)
    for form, library in probes.items():
        for name in ("scalar", *([form] if form != "portable" else [])):
            assert same_bits(call(library, f"swiglu_oai_{name}", both, per_item=2), want), name
    with np.errstate(all="ignore"):
        g, u = np.minimum(gate.astype(np.float64), 7), np.clip(up.astype(np.float64), -7, 7)
        exact = (u + 1) * g / (1 + np.exp(-1.702 * g))
        settled = np.isfinite(exact) & (g > -40) & (np.abs(exact) > 1e-30)
        assert (np.abs(want - exact)[settled] <= (4 + 2 * np.abs(g[settled])) * 2.0**-23 * np.abs(exact[settled])).all()
    assert (np.isnan(want) == np.isnan(exact))[~(g < -1e30)].all()


def test_silu_is_accurate_where_it_matters(probes):
    x = np.linspace(-80, 80, 200_000, dtype=np.float32)
    want = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    assert (np.abs(call(probes["portable"], "silu_scalar", x) - want) <= 4 * 2.0**-24 * np.abs(want)).all()


def test_half_precision_conversions_round_to_nearest_even_in_every_form(probes):
    x = sample_of_all_floats()
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    bits = x.view(np.uint32).astype(np.uint64)
    brain = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    brain[np.isnan(x)] = (bits[np.isnan(x)] >> 16 | 0x40).astype(np.uint16)
    for form, library in probes.items():
        for name in ("f32_to_f16", "f32_to_f16_portable"):
            got = call(library, name, x, np.uint16)
            assert (got[~np.isnan(x)] == want.view(np.uint16)[~np.isnan(x)]).all(), (form, name)
            assert np.isnan(got[np.isnan(x)].view(np.float16)).all()
        assert (call(library, "f32_to_f16", x, np.uint16) == call(library, "f32_to_f16_portable", x, np.uint16)).all()
        assert (call(library, "f32_to_bf16", x, np.uint16) == brain).all(), form
        if form != "portable":
            assert same_bits(call(library, f"f16_round_trip_{form}", x), want.astype(np.float32)), form
            widened = (brain.astype(np.uint32) << 16).view(np.float32)
            assert same_bits(call(library, f"bf16_round_trip_{form}", x), widened), form


def test_widening_is_exact_for_all_65536_halves(probes):
    h = np.arange(65536, dtype=np.uint16)
    for library in probes.values():
        for name in ("f16_to_f32", "f16_to_f32_portable"):
            got = call(library, name, h)
            assert same_bits(got, h.view(np.float16).astype(np.float32))
        assert call(library, "f16_to_f32", h).tobytes() == call(library, "f16_to_f32_portable", h).tobytes()
        assert same_bits(call(library, "bf16_to_f32", h), (h.astype(np.uint32) << 16).view(np.float32))


def test_fma_without_the_instruction_rounds_once(probes):
    """Against the instruction itself, with operands chosen so that double rounding would show."""
    if "avx2" not in probes:
        pytest.skip("no FMA instruction to compare with")
    rng = np.random.default_rng(1)
    abc = rng.integers(0, 2**32, (2_000_000, 3), dtype=np.uint32).view(np.float32)
    near = rng.standard_normal((2_000_000, 3)).astype(np.float32)
    near[:, 2] = -(near[:, 0] * near[:, 1]) * (1 + rng.integers(-2, 3, len(near)) * np.float32(2**-23))
    ties = np.stack([*(1 + rng.integers(0, 2**12, (2, 500_000)) * 2.0**-12),
                     rng.choice([-1, 1], 500_000) * 2.0 ** -rng.integers(40, 90, 500_000)], 1).astype(np.float32)
    tiny = near * np.float32(2.0**-70)
    tiny[:, 2] *= np.float32(2.0**-70)
    for cases in (abc, near, ties, tiny):
        soft, hard = (call(probes[form], "fma_scalar", cases, per_item=3) for form in ("portable", "avx2"))
        assert same_bits(soft, hard)


def test_tree_sum_keeps_its_order_in_every_form(probes):
    x = np.random.default_rng(2).standard_cauchy((10_000, 16)).astype(np.float32)
    want = x
    for half in (8, 4, 2, 1):
        want = want[:, :half] + want[:, half:2 * half]
    for form, library in probes.items():
        for name in ("scalar", *([form] if form != "portable" else [])):
            assert same_bits(call(library, f"tree_sum_{name}", x, per_item=16), want[:, 0].copy()), name


def test_sqrt_is_the_ieee_one(probes):
    x = np.abs(sample_of_all_floats(4001))
    with np.errstate(invalid="ignore"):
        assert same_bits(call(probes["portable"], "sqrt_scalar", x), np.sqrt(x))
