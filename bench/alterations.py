"""What kernels that are wrong in one way are made of, whatever the operator: the order specification on tampered inputs
or with tampered outputs, and inexact arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kforge.core.workload import Workload
from kforge.operators import Operator
from kforge.operators.numerics import rounded_bf16

Arrays = Mapping[str, np.ndarray]
Kernel = Callable[[Operator, Workload, Arrays, np.random.Generator], Mapping[str, np.ndarray]]
F = np.float32


@dataclass(frozen=True)
class Subject:
    """An operator at one workload with its honest and its wrong kernels, each by name."""

    workload: Workload
    honest: Mapping[str, Kernel]
    wrong: Mapping[str, Kernel]


def specified(op: Operator, w: Workload, given: Arrays, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    return op.spec(w, given)


def on(change: Callable[[Workload, Arrays, np.random.Generator], Arrays]) -> Kernel:
    """The specification on inputs of which some are replaced."""
    return lambda op, w, given, rng: op.spec(w, {**given, **change(w, given, rng)})


def after(change: Callable[[np.ndarray], np.ndarray], *names: str) -> Kernel:
    """The specification with its outputs changed (all, or those named)."""
    return lambda op, w, given, rng: {n: change(v) if not names or n in names else v
                                      for n, v in op.spec(w, given).items()}


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < F(2.0**-126), F(0), x)


def altered(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Kernel:
    return on(lambda w, given, rng: {name: np.ascontiguousarray(change(given[name]), given[name].dtype)})


def input_mistakes(name: str) -> dict[str, Kernel]:
    """What is right for some inputs only."""
    return {
        "NaN taken for 0": altered(name, lambda x: np.where(np.isnan(x), F(0), x)),
        "infinity clamped": altered(name, lambda x: np.where(np.isinf(x), np.sign(x) * F(3e38), x)),
        "denormals flushed": altered(name, flushed),
        "right for positive inputs": altered(name, np.abs),
        "right for negative inputs": altered(name, lambda x: -np.abs(x)),
        "right below 100": altered(name, lambda x: np.clip(x, -100, 100)),
        "right above 1e-5": altered(name, lambda x: np.where(np.abs(x) < 1e-5, F(0), x)),
    }


def dropped(name: str) -> Kernel:
    """One column, a term of every sum, is left out."""

    def change(w: Workload, given: Arrays, rng: np.random.Generator) -> Arrays:
        x = given[name].copy()
        x[:, rng.integers(0, x.shape[1])] = 0
        return {name: x}

    return on(change)


TOO_LARGE = after(lambda out: (out * F(1.001)).astype(out.dtype))


def same(x: np.ndarray) -> np.ndarray:
    return x


def to_bf16(x: np.ndarray) -> np.ndarray:
    return rounded_bf16(x.astype(F))


def to_f16(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(F)


def fast_exp(x: np.ndarray) -> np.ndarray:
    """A relative error of up to 1e-3 that depends on the argument."""
    return np.exp(x) * (1 + F(1e-3) * np.sin(50 * x))
