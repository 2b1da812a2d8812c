"""Operator contracts and their references."""

from __future__ import annotations

import functools
from importlib import import_module
from pathlib import Path

from kforge.core.paths import data_dir
from kforge.operators.base import Bound, Cost, Distribution, Operator, Part, Residency, Role, TensorSpec

__all__ = ["IMPORTED_VERSION", "Bound", "Cost", "Distribution", "Operator", "Part", "Residency", "Role", "TensorSpec",
           "get", "import_file", "imported_names", "names"]

IMPORTED_VERSION = 1  # of what all imported operators promise: a kernel checked under another one is stale

_WHERE = {
    "embedding": ("embedding", "Embedding"),
    "rms_norm": ("rms_norm", "RmsNorm"),
    "linear": ("linear", "Linear"),
    "rope_kv_write": ("rope", "RopeKvWrite"),
    "qk_norm_rope_kv_write": ("qk_norm_rope", "QkNormRopeKvWrite"),
    "paged_attention": ("attention", "PagedAttention"),
    "silu_mul": ("small", "SiluMul"),
    "gather_rows": ("small", "GatherRows"),
    "argmax": ("small", "Argmax"),
    "moe_route": ("moe_route", "MoeRoute"),
    "moe_linear": ("moe_linear", "MoeLinear"),
    "moe_combine": ("moe_combine", "MoeCombine"),
}


def names() -> tuple[str, ...]:
    """Names of the built-in operators."""
    return tuple(_WHERE)


def imported_names() -> tuple[str, ...]:
    """Names of the user's imported operators."""
    return tuple(sorted(file.stem for file in import_file("x").parent.glob("*.json") if file.stem not in _WHERE))


def import_file(name: str) -> Path:
    """Where the record of an imported operator is kept."""
    return data_dir() / "operators" / f"{name}.json"


def get(name: str) -> Operator:
    """The operator called ``name``, built in or imported. Raises KeyError that lists the known ones, KforgeError for
    one whose record is broken."""
    if name in _WHERE:
        return _built_in(name)
    known = (*names(), *imported_names())
    if name not in known:
        raise KeyError(f"no operator {name!r}; known are {', '.join(known)}")
    file = import_file(name)
    seen = file.stat()
    return _imported(file, seen.st_mtime_ns, seen.st_size, seen.st_ino)


@functools.cache
def _built_in(name: str) -> Operator:
    module, cls = _WHERE[name]
    made: Operator = getattr(import_module(f"kforge.operators.{module}"), cls)()
    return made


@functools.lru_cache(maxsize=64)
def _imported(file: Path, *version: int) -> Operator:
    """One that is imported anew under its name has another version of its file."""
    from kforge.operators.import_record import read
    from kforge.operators.imported import Imported

    return Imported(read(file))
