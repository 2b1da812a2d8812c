"""Options that are lists of numbers, such as ``--batch 1,8``."""

from __future__ import annotations

from kforge.core.errors import KforgeError


def numbers(option: str, text: str, most: int | None = None) -> tuple[int, ...]:
    """The numbers of "1,8", each once, in their order. Raises KforgeError naming the option, for numbers below 1 or
    above ``most`` too."""
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise KforgeError(f"{option} {text!r} is not a list of numbers of at least 1, such as 1,8")
    if most is not None and max(found) > most:
        raise KforgeError(f"{option} {text!r} holds a number above {most}, the tokens of the largest step")
    return found
