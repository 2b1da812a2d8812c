"""What tokens cost, by provider and model: shipped figures with their sources, and the user's own before them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kforge.agent.calls import Usage
from kforge.core.errors import KforgeError, sentence_of
from kforge.core.paths import data_dir

_SHIPPED = Path(__file__).with_name("prices.toml")
_FIGURES = ("input", "cache_read", "cache_write", "output")
_TEXTS = ("provider", "source", "date")


@dataclass(frozen=True)
class Price:
    """USD per million tokens.

    ``models``: patterns in which ``*`` stands for anything. ``prompt``: the most tokens of a prompt for which the
    figures hold, None where there is no limit.
    """

    provider: str
    models: tuple[str, ...]
    input: float
    cache_read: float
    cache_write: float
    output: float
    source: str
    date: str
    prompt: int | None = None

    def cost(self, usage: Usage) -> float:
        """USD."""
        return (
            usage.input * self.input
            + usage.cache_read * self.cache_read
            + usage.cache_written * self.cache_write
            + usage.output * self.output
        ) / 1e6

    def most(self, bound: Usage) -> float:
        """USD of at most so many tokens, when it is not known how many of the prompt's the cache takes."""
        prompt = bound.input + bound.cache_read + bound.cache_written
        dearest = max(self.input, self.cache_read, self.cache_write)
        return (prompt * dearest + bound.output * self.output) / 1e6


_FREE = Price("replay", ("*",), 0.0, 0.0, 0.0, 0.0, "recorded calls cost nothing", "")


@dataclass(frozen=True)
class Prices:
    """The first entry that fits counts."""

    entries: tuple[Price, ...]

    @classmethod
    def load(cls) -> Prices:
        """``prices.toml`` of the user's data, then the shipped one. Raises KforgeError."""
        own = data_dir() / "prices.toml"
        return cls((*(_read(own) if own.exists() else ()), *_read(_SHIPPED)))

    def of(self, provider: str, model: str) -> Price | None:
        if provider == _FREE.provider:
            return _FREE
        fitting = (p for p in self.entries if p.provider == provider and any(fnmatchcase(model, m) for m in p.models))
        return next(fitting, None)


def _read(path: Path) -> list[Price]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise KforgeError(sentence_of(error)) from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise KforgeError(f"{path} cannot be read: {error}") from error
    entries = document.get("price")
    if not isinstance(entries, list):
        raise KforgeError(f"{path} holds no [[price]]")
    return [_price(entry, f"{path}, price {number}") for number, entry in enumerate(entries, 1)]


def _price(entry: Any, where: str) -> Price:
    if not isinstance(entry, dict):
        raise KforgeError(f"{where}: no table")
    unknown = entry.keys() - {*_FIGURES, *_TEXTS, "models", "prompt"}
    if unknown:
        raise KforgeError(f"{where}: unknown field {min(unknown)}")
    for name in _FIGURES:
        value = entry.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise KforgeError(f"{where}: {name} must be USD per million tokens")
    for name in _TEXTS:
        if not isinstance(entry.get(name), str):
            raise KforgeError(f"{where}: {name} must be a text")
    models = entry.get("models")
    if not isinstance(models, list) or not models or not all(isinstance(m, str) for m in models):
        raise KforgeError(f"{where}: models must be a list of names")
    prompt = entry.get("prompt")
    if prompt is not None and (isinstance(prompt, bool) or not isinstance(prompt, int) or prompt <= 0):
        raise KforgeError(f"{where}: prompt must be a number of tokens")
    return Price(**{**entry, "models": tuple(models)})
