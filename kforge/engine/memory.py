"""Whether a model fits, asked before anything is allocated."""

from __future__ import annotations

from kforge.core.errors import KforgeError

_RESERVE = 256 << 20  # left for activations, Python and everybody else


def require_memory(name: str, weight_bytes: int, cache_bytes: int, available: int | None = None,
                   promised: int = 0) -> None:
    """Raises ``KforgeError`` when weights and KV cache exceed the ``available`` bytes (None: what is free now), less
    those ``promised`` to somebody who has not touched them yet, so that the system still counts them as free."""
    if available is None:
        import psutil

        available = psutil.virtual_memory().available
    available = max(available - promised, 0)
    if weight_bytes + cache_bytes + _RESERVE > available:
        raise KforgeError(
            f"{name} needs {_gib(weight_bytes)} for its weights and {_gib(cache_bytes)} for the KV cache, but "
            f"{_gib(available)} of memory is free: close other programs, lower kv_tokens, or use a smaller model.")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
