"""Launch descriptions: sizes that may come from anybody are evaluated, and nothing else is."""

from __future__ import annotations

import pytest

from kforge.core.launch import Argument, ArgumentKind, Launch, LaunchError, evaluate, names


def test_sizes_follow_axes_and_constants() -> None:
    launch = Launch("k", ("cdiv(M, m_tile)", "N // n_tile"), (Argument(ArgumentKind.TENSOR, "x"),), ("64",),
                    scratch="4 * M * max(N, 16)", constants=(("N", 512), ("m_tile", 16), ("n_tile", 128)))
    assert launch.groups({"M": 33}) == (3, 4, 1)
    assert launch.groups({"M": 0}) == (0, 4, 1)
    assert launch.threads({"M": 33}) == (64, 1, 1)
    assert launch.scratch_bytes({"M": 3}) == 4 * 3 * 512


def test_names_are_those_of_values_not_of_functions() -> None:
    assert names("cdiv(M, min(m_tile, 4)) + -2 * M") == {"M", "m_tile"}
    assert names("min + min(1, 2)") == {"min"}


@pytest.mark.parametrize("text", [
    "__import__('os')", "M.real", "(lambda: 1)()", "[M][0]", "M ** 9", "1.5", "True", "min(1)", "min(1, 2, key=3)",
    "M if M else 1", "M <", "", "M << 3", "x" * 501, "(" * 400 + "1" + ")" * 400, "min(*M, 1)",
])
def test_nothing_but_integer_arithmetic_is_read(text: str) -> None:
    with pytest.raises(LaunchError):
        evaluate(text, {"M": 2, "x": 1})


@pytest.mark.parametrize("text", ["1 // (M - 2)", "cdiv(1, M - 2)", "M % 0", "missing", "M * 4611686018427387904"])
def test_what_has_no_value_is_an_error(text: str) -> None:
    with pytest.raises(LaunchError):
        evaluate(text, {"M": 2})
