"""kforge/simd.h and kforge/vector_math.h: the errors that they state, special values, and the same results at every
width."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import numpy as np
import pytest
from operators_cpp import cpu_features, open_probe, pointer

FORMS = {"portable": (), "avx2": ("-mavx2", "-mfma"), "avx512": ("-mavx512f", "-mavx2", "-mfma")}
SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 1.0, -1.0, 0.5, 1.1754944e-38], np.float32
)


@pytest.fixture(scope="module", params=FORMS)
def probe(request: pytest.FixtureRequest) -> ctypes.CDLL:
    flags = FORMS[request.param]
    if not {flag.removeprefix("-m") for flag in flags} <= cpu_features():
        pytest.skip(f"this machine has no {request.param}")
    return open_probe("vector_math_probe", flags)


def call(library: ctypes.CDLL, name: str, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    padded = [np.resize(part, -(-part.size // 16) * 16) for part in (x, y) if part is not None]
    given = np.ascontiguousarray(np.concatenate(padded), np.float32)
    out = np.empty(padded[0].size, np.float32)
    getattr(library, f"{name}_of")(pointer(given), pointer(out), ctypes.c_int64(out.size))
    return out[: x.size]


def floats(step: int = 5003) -> np.ndarray:
    """Every ``step``-th float of all, the special ones, and what lies densely where a function's cases meet."""
    spread = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    places = np.array(
        [
            0.34657,
            0.5,
            0.70710677,
            1.0,
            1.0397,
            1.4142135,
            2.0,
            3.1415927,
            3.92,
            4.0,
            9.01,
            10.0,
            16.6,
            87.3,
            88.7,
            103.9,
            1.1754944e-38,
            8192.0,
            355.0,
            5215 * math.pi / 2,
        ],
        np.float32,
    )
    near = (places.view(np.int32)[:, None] + np.arange(-500, 500, dtype=np.int32)).view(np.float32).ravel()
    line = np.linspace(-12, 12, 200_000, dtype=np.float32)
    return np.concatenate([SPECIAL, spread, near, -near, line])


def wide(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return np.vectorize(function, otypes=[np.float64])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1.0) / (1 + np.exp(-np.abs(x)))


# The largest error in units of the last place that the header states, and the function in float64.
STATED: dict[str, tuple[float, Callable[[np.ndarray], np.ndarray]]] = {
    "exp": (0.9, np.exp),
    "log": (1.5, np.log),
    "tanh": (3.5, np.tanh),
    "sigmoid": (2.5, sigmoid),
    "erf": (2.5, wide(math.erf)),
    "sin": (1.8, np.sin),
    "cos": (1.8, np.cos),
    "sqrt": (0.5, np.sqrt),
}


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Errors of finite results; infinities and NaNs must be equal."""
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32)
        finite = np.isfinite(rounded)
        assert ((got == rounded) | (np.isnan(got) & np.isnan(rounded)))[~finite].all()
        unit = np.maximum(np.spacing(np.abs(rounded[finite])).astype(np.float64), 2.0**-149)
        return np.abs(got[finite] - want[finite]) / unit


@pytest.mark.parametrize("name", STATED)
def test_a_function_is_as_exact_as_its_header_says(probe: ctypes.CDLL, name: str) -> None:
    most, function = STATED[name]
    x = floats()
    with np.errstate(all="ignore"):
        want = function(x.astype(np.float64))
    error = ulps(call(probe, name, x), want)
    assert error.max() <= most, (name, error.max())


def test_zeros_keep_their_sign_where_the_function_is_odd(probe: ctypes.CDLL) -> None:
    for name in ("tanh", "erf"):
        assert np.signbit(call(probe, name, np.array([-0.0], np.float32)))[0]
        assert not np.signbit(call(probe, name, np.array([0.0], np.float32)))[0]


def test_powers_are_what_c_makes_them(probe: ctypes.CDLL) -> None:
    rng = np.random.default_rng(3)
    x, y = (
        part.ravel()
        for part in np.meshgrid(
            np.concatenate([SPECIAL, [2.0, -2.0, 0.3]]), np.concatenate([SPECIAL, [3.0, -3.0, 2.0, 0.3, 2.5]])
        )
    )
    x = np.concatenate([x, np.exp(rng.normal(0, 5, 100_000))]).astype(np.float32)
    y = np.concatenate([y, rng.normal(0, 8, 100_000)]).astype(np.float32)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulps(call(probe, "pow", x, y), want).max() <= 0.6


def test_a_nan_on_either_side_is_passed_on(probe: ctypes.CDLL) -> None:
    x, y = (part.ravel() for part in np.meshgrid(SPECIAL, SPECIAL))
    for name in ("maximum", "minimum"):
        assert np.array_equal(call(probe, name, x, y), getattr(np, name)(x, y), equal_nan=True)


def test_lanes_move_where_they_should(probe: ctypes.CDLL) -> None:
    w = probe.lanes()
    x = np.arange(1, w * w + 1, dtype=np.float32)
    out = np.zeros(w * w, np.float32)
    probe.transpose_of(pointer(x), pointer(out), ctypes.c_int64(0))
    assert (out.reshape(w, w) == x.reshape(w, w).T).all()
    x = np.arange(1, w * (w + 1) + 1, dtype=np.float32)
    out = np.zeros((w + 1, 4, w), np.float32)
    probe.parts_of(pointer(x), pointer(out), ctypes.c_int64(0))
    for n, (stored, loaded, apart, selected) in enumerate(out):
        row, first = x[n * w : (n + 1) * w], np.arange(w) < n
        assert (stored == np.where(first, row, 0)).all()
        assert (loaded == np.where(first, row, 0)).all()
        assert (apart == np.where(first & (np.arange(w) % 2 == 0), row, 0)).all()
        assert (selected == np.where(first, row, -1)).all()


def test_sums_and_extremes_across_lanes(probe: ctypes.CDLL) -> None:
    w = probe.lanes()
    x = np.random.default_rng(5).integers(-99, 99, (8, w)).astype(np.float32)
    x[6, w - 1] = x[7, 0] = np.nan
    out = np.empty((8, 3), np.float32)
    probe.across_of(pointer(x), pointer(out), ctypes.c_int64(x.size))
    want = np.stack([x.sum(axis=1), x.max(axis=1), x.min(axis=1)], axis=1)
    assert np.array_equal(out, want, equal_nan=True)
