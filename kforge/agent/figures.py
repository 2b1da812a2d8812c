"""Figures as prompts show them: three digits, so that the noise behind them changes no byte, and no exponents."""

from __future__ import annotations


def sig(value: float) -> str:
    """Three significant digits, never in exponents."""
    if not value:
        return "0"
    rounded = float(f"{value:.2e}")
    digits = max(0, 2 - int(f"{rounded:e}".split("e")[1]))
    return f"{rounded:.{digits}f}"


def us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{sig(1e6 * seconds)} us"


def percent(share: float) -> str:
    return f"{sig(100 * share)} %"


def around(spread: float) -> str:
    """Half an interquartile range on either side of a median; ``spread`` is the whole, as a share."""
    return f"±{max(50 * spread, 0.1):.1f} %"


def gain(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{'+' if ratio >= 0 else '-'}{sig(abs(100 * ratio))} %"


def size(count: int) -> str:
    """Bytes."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{sig(count / unit)} {name}"
    return f"{count} B"


def count(number: float) -> str:
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{sig(number / unit)} {name}"
    return sig(number)


def clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} [cut]"
