"""A Gaussian process over a space's features, in numpy: some hundred points, and an answer in milliseconds.

Written here rather than taken from a library: what Optuna ships is private to it, scikit-learn's takes scipy and
restarts an optimiser that has no gradient of priors at every fit, and both fit from scratch at every point.
"""

from __future__ import annotations

import numpy as np

_FIRST_STEPS, _STEPS = 40, 12  # of gradient ascent: from nothing, and on from the last fit
_LEAST_NOISE = 1e-5  # variance, in units of the signal's
_SQRT5 = 5.0**0.5


class GaussianProcess:
    """Matern 5/2 kernel with a weight of its own for each feature; weights and noise by maximum a posteriori.

    The signal's variance is profiled out. Rasmussen and Williams, Gaussian Processes for Machine Learning (2006),
    chapters 2 and 5.
    """

    def __init__(self, features: int):
        scale = 0.6 * max(features, 1) ** 0.5  # a length at which points half the space apart still say something
        self._prior = np.concatenate([np.full(features, -2 * np.log(scale)), [np.log(3e-3)]])
        self._spread = np.concatenate([np.full(features, 2.0), [1.5]])
        self._theta = self._prior.copy()  # log weights, log noise over signal
        self._fitted = 0
        self._x = np.zeros((0, features))
        self._z = self._alpha = np.zeros(0)
        self._inverse = np.zeros((0, 0))
        self._mean, self._scale, self._signal = 0.0, 1.0, 1.0

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        """``x`` [points, features], ``y`` [points]; goes on from the last fit's weights."""
        self._x = np.asarray(x, dtype=float)
        self._mean, self._scale = float(np.mean(y)), float(np.std(y)) or 1.0
        z = (y - self._mean) / self._scale
        if len(y) >= 1.04 * self._fitted:
            self._theta = self._ascend(z, _STEPS if self._fitted else _FIRST_STEPS)
            self._fitted = len(y)
        self._set(z)

    def assume(self, x: np.ndarray, y: np.ndarray) -> None:
        """Adds points to those that were fitted, until the next fit; weights stay."""
        self._x = np.concatenate([self._x, x])
        self._set(np.concatenate([self._z, (y - self._mean) / self._scale]))

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the noiseless function at ``x``."""
        k = self._kernel(x)
        mean = k @ self._alpha
        variance = self._signal * np.maximum(1.0 - np.einsum("ij,ij->i", k @ self._inverse, k), 1e-9)
        return self._mean + self._scale * mean, self._scale * np.sqrt(variance)

    def _kernel(self, x: np.ndarray) -> np.ndarray:
        root = np.exp(0.5 * self._theta[:-1])
        r = np.sqrt(_squared(x * root, self._x * root))
        return (1 + _SQRT5 * r + 5 / 3 * r * r) * np.exp(-_SQRT5 * r)

    def _set(self, z: np.ndarray) -> None:
        cov = self._kernel(self._x)
        cov[np.diag_indices(len(z))] += np.exp(self._theta[-1]) + _LEAST_NOISE
        self._z = z
        self._inverse = np.linalg.inv(cov)
        self._alpha = self._inverse @ z
        self._signal = float((z @ self._alpha + 1) / (len(z) + 1))

    def _ascend(self, z: np.ndarray, steps: int) -> np.ndarray:
        """Rprop on the posterior: its steps need signs alone, so neither the scale nor a line search."""
        theta, step = self._theta.copy(), np.full(len(self._theta), 0.3)
        best, best_value = theta.copy(), -np.inf
        before = np.zeros_like(theta)
        for _ in range(steps):
            value, gradient = self._posterior(theta, z)
            if value > best_value:
                best, best_value = theta.copy(), value
            agree = np.sign(gradient) * np.sign(before)
            step = np.clip(np.where(agree > 0, 1.3 * step, np.where(agree < 0, 0.5 * step, step)), 1e-3, 1.0)
            before = np.where(agree < 0, 0.0, gradient)
            theta = theta + step * np.sign(before)
        return best

    def _posterior(self, theta: np.ndarray, z: np.ndarray) -> tuple[float, np.ndarray]:
        """Log posterior density of the weights up to a constant, and its gradient."""
        root = np.exp(0.5 * theta[:-1])
        noise = np.exp(theta[-1])
        x = self._x * root
        r = np.sqrt(_squared(x, x))
        decay = np.exp(-_SQRT5 * r)
        cov = (1 + _SQRT5 * r + 5 / 3 * r * r) * decay
        n = len(z)
        cov[np.diag_indices(n)] += noise + _LEAST_NOISE
        lower = np.linalg.cholesky(cov)
        half = np.linalg.inv(lower)
        inverse = half.T @ half
        alpha = inverse @ z
        signal = (z @ alpha + 1) / (n + 1)
        value = -0.5 * (n + 1) * np.log(signal) - np.log(np.diag(lower)).sum()
        slope = np.outer(alpha, alpha) / signal - inverse
        pull = slope * (-5 / 6 * (1 + _SQRT5 * r) * decay)  # times d(r^2)/dw, which is a sum over pairs
        weights = pull.sum(axis=1) @ (x * x) - np.einsum("ik,ik->k", x, pull @ x)
        gradient = np.concatenate([weights, [0.5 * noise * np.trace(slope)]])
        off = (theta - self._prior) / self._spread
        return value - 0.5 * float(off @ off), gradient - off / self._spread


def _squared(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared distances, [len(a), len(b)]."""
    return np.maximum((a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * (a @ b.T), 0.0)
