"""The ``quantization_config`` of a folder's config.json: what is understood, and what is refused.

Source of names and meanings: the ``compressed-tensors`` package's ``QuantizationConfig`` and ``QuantizationScheme``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kforge.core.errors import KforgeError
from kforge.models.config import Family

_KEYS = ("quantization_config", "compression_config")  # the second is how older files spell it
_SUPPORTED = ("supported: compressed-tensors' int-quantized with symmetric int8 weights, a scale a row, and symmetric "
              "dynamic int8 activations, a scale a token")
_USUAL = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False}  # where left out
_INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
_WANTED: dict[str, dict[str, Any]] = {
    "weights": {**_INT8, "strategy": "channel", "dynamic": False},
    "input_activations": {**_INT8, "strategy": "token", "dynamic": True},
}


def has_int8(file: Path, raw: dict[str, Any], family: Family) -> bool:
    """Whether the folder may hold int8 matrices with a scale a row, which its config.json ``raw`` says.

    Which matrices they are the tensors tell: those on the ``ignore`` list are stored as floats. Raises KforgeError that
    names the first thing that is not supported.
    """
    found = next((raw[key] for key in _KEYS if raw.get(key)), None)
    if found is None:
        return False
    if not isinstance(found, dict):
        raise KforgeError(f"{file}: 'quantization_config' is {found!r}; an object was expected.")
    method = found.get("quant_method", "compressed-tensors")
    if method == "mxfp4" and family is Family.GPT_OSS:
        return False
    if method != "compressed-tensors":
        raise _refused(file, f"'quant_method' {method!r}")
    if reason := next(_unfit(found), None):
        raise _refused(file, reason)
    return True


def _refused(file: Path, reason: str) -> KforgeError:
    return KforgeError(f"{file}: weights quantised with {reason} are not supported ({_SUPPORTED}).")


def _unfit(found: dict[str, Any]) -> Iterator[str]:
    """What is not supported, in words."""
    if (format := found.get("format")) != "int-quantized":
        yield f"'format' {format!r}"
    for key in ("kv_cache_scheme", "transform_config"):
        if found.get(key):
            yield f"a '{key}'"
    sparsity = found.get("sparsity_config") or {}
    if not isinstance(sparsity, dict):
        yield f"'sparsity_config' {sparsity!r}"
    elif sparsity.get("format", "dense") != "dense":
        yield f"a 'sparsity_config' of format {sparsity['format']!r}"
    groups = found.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        yield f"'config_groups' {groups!r}"
        return
    for name, group in groups.items():
        yield from _unfit_group(name, group)


def _unfit_group(name: str, group: Any) -> Iterator[str]:
    if not isinstance(group, dict):
        yield f"'{name}' {group!r}"
        return
    if (format := group.get("format")) not in (None, "int-quantized"):
        yield f"'{name}.format' {format!r}"
    if group.get("output_activations"):
        yield f"'{name}.output_activations'"
    for part, wanted in _WANTED.items():
        given = group.get(part)
        if not isinstance(given, dict):
            yield f"'{name}.{part}' {given!r}"
            continue
        for key, value in wanted.items():
            if (told := given.get(key, _USUAL[key])) != value:
                yield f"'{name}.{part}.{key}' {told!r}"
