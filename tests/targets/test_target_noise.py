"""Calibrated noise is kept with its target, by threads, and what cannot be read is judged as never calibrated."""

from __future__ import annotations

from pathlib import Path

import pytest

from kforge.core.errors import KforgeError
from kforge.core.target import Target
from kforge.targets import list_targets
from kforge.targets.noise import (
    DURATION_CLASSES,
    UNCALIBRATED,
    Noise,
    NoiseClass,
    calibrations,
    noise_of,
    noise_path,
    read_noise,
    save_noise,
)

TARGET = Target("t", "cpu", "v", "m", "x86_64", ("avx2",), 4, (), 1 << 30, (), ())
NOISE = Noise(2, tuple(NoiseClass(end, 0.001, 1.25, 0.02) for end in DURATION_CLASSES), 432, "2026-01-31")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))


def test_what_was_saved_is_what_is_judged_by_with_as_many_threads() -> None:
    save_noise(NOISE, TARGET)
    assert noise_of(TARGET, 2) == NOISE
    assert noise_of(TARGET, 1) is UNCALIBRATED
    assert calibrations(TARGET) == (NOISE,)


def test_a_calibration_is_not_taken_for_a_target() -> None:
    before = list_targets()
    save_noise(NOISE, TARGET)
    assert list_targets() == before


def test_a_call_falls_into_the_class_that_reaches_as_far() -> None:
    noise = Noise(1, (NoiseClass(50e-6, 0.1, 1, 1), NoiseClass(1e-3, 0.2, 1, 1)))
    assert [noise.at(s).floor for s in (1e-6, 50e-6, 51e-6, 5.0)] == [0.1, 0.1, 0.2, 0.2]


@pytest.mark.parametrize("old, new", [("floor = 0.001", "floor = -1"), ("threads = 2", "thraeds = 2"),
                                      ('up_to = "any"', 'up_to = "3us"'), ("stretch = 1.25", "stretch = 0.5")])
def test_a_damaged_calibration_is_named_and_not_judged_by(old: str, new: str) -> None:
    path = save_noise(NOISE, TARGET)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(KforgeError, match=str(path)):
        read_noise(noise_path(TARGET, 2))
    assert noise_of(TARGET, 2) is UNCALIBRATED
