"""Sizes are halved until a problem fits, the batch first, and nothing is allocated to find out."""

from __future__ import annotations

from pathlib import Path

import pytest

from kforge.importing.child import imported
from kforge.importing.failures import ImportFailure
from kforge.importing.loading import Source
from kforge.importing.scaling import Extent, Room, Scaling, fitted

TEXT = """batch_size = 64
inner = 16 * 256
width: int = 2 ** 10
shape = (batch_size, inner)
name = 'x'
half = inner
"""
SOURCE = Source(TEXT, "p.py")
HUGE = Path(__file__).parents[1] / "operators" / "problems" / "huge.py"


def measured(scaling: Scaling) -> Extent:
    sizes = {**SOURCE.sizes, **scaling.sizes}
    if sizes["width"] % 2 or sizes["inner"] < 512:
        raise ImportFailure("too small")
    rows = sizes["batch_size"] // scaling.lead
    count = 2 * rows * sizes["inner"] * sizes["width"]
    return Extent(4 * (rows * sizes["inner"] + sizes["inner"] * sizes["width"]), count)


def test_sizes_are_whole_numbers_at_the_top_of_the_file() -> None:
    assert SOURCE.sizes == {"batch_size": 64, "inner": 4096, "width": 1024}
    module = SOURCE.executed({"inner": 128})
    assert (module.inner, module.shape, module.half, module.width) == (128, (64, 128), 128, 1024)


def test_what_fits_stays_and_what_is_not_to_be_scaled_too() -> None:
    assert fitted(SOURCE, measured, Room(1 << 40, 1 << 50), "auto") == Scaling()
    assert fitted(SOURCE, measured, Room(1, 1), "none") == Scaling()


def test_the_batch_is_halved_first_and_then_the_largest_size() -> None:
    few = fitted(SOURCE, measured, Room(1 << 40, measured(Scaling()).operations // 3), "auto")
    assert few.sizes == {"batch_size": 16}
    # Weights are nearly all of the bytes: a smaller batch would be no help.
    small = fitted(SOURCE, measured, Room(5 << 20, 1 << 50), "auto")
    assert small.sizes == {"inner": 1024}
    assert small.told(SOURCE) == "inner 4096 -> 1024"


def test_a_factor_is_so_many_halvings() -> None:
    assert fitted(SOURCE, measured, Room(1, 1), "8").sizes == {"batch_size": 16, "inner": 2048}


def test_a_factor_that_is_too_large_names_the_largest_one() -> None:
    with pytest.raises(ImportFailure, match=r"--scale 65536 asks for 16 halvings.* after 15: give --scale 32768 at"):
        fitted(SOURCE, measured, Room(1 << 40, 1 << 50), "65536")
    assert fitted(SOURCE, measured, Room(1 << 40, 1 << 50), "32768").sizes["inner"] == 512
    with pytest.raises(ImportFailure, match=r"--scale 2 asks for 1 halving, .* give --scale none"):
        fitted(SOURCE, lambda scaling: Extent(1, 1), Room(1 << 40, 1 << 50), "2")


def test_what_never_fits_says_by_how_much() -> None:
    with pytest.raises(ImportFailure, match=r"it takes \d+ MiB and 0 G operations a call, 0 MiB and .* would fit"):
        fitted(SOURCE, measured, Room(1000, 1 << 50), "auto")


def test_gigabytes_are_made_to_fit_without_being_allocated() -> None:
    job = {"label": "huge.py", "function": "", "inputs": [], "scale": "auto",
           "room": {"bytes": 64 << 20, "operations": 10**10}}
    made = imported(HUGE.read_text(), job)
    assert made["originals"] == [{"name": "x", "shape": [4096, 393216]}]
    assert made["scaling"] == "batch_size 4096 -> 16"
    assert (made["sizes"], made["lead"]) == ({"batch_size": 16}, 1)
    assert made["batch"] == 16 and made["graph"]["given"][0]["shape"] == ("B", 393216)
