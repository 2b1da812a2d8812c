"""The judge measured on this machine: framed kernels are what they say, and a short calibration comes to its end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kforge.backends.cpp.build import build
from kforge.core.target import Target
from kforge.core.trial import Artifact
from kforge.harness import Harness
from kforge.harness.calibrate import Calibration, Journal, Progress, Settings, measure_noise
from kforge.harness.check import CheckResult
from kforge.harness.judge import LEAST_ZYGOTES
from kforge.harness.rates import ALL, rates
from kforge.harness.variants import Specimen, base_of, framed, specimens


@pytest.fixture(scope="module")
def specimen() -> Specimen:
    return next(s for s in specimens() if s.name == "elementwise")


def test_a_relinked_kernel_is_another_artifact_with_the_same_code_further_on(
        target: Target, specimen: Specimen) -> None:
    base = base_of(specimen, target)
    still, moved, slowed = (build(framed(base, **how), target) for how in ({}, {"pages": 2}, {"steps": 500}))
    assert isinstance(still, Artifact) and isinstance(moved, Artifact) and isinstance(slowed, Artifact)
    assert len({still.hash, moved.hash, slowed.hash}) == 3
    assert moved.report.text_bytes == still.report.text_bytes + 2 * 4096
    assert slowed.report.text_bytes == still.report.text_bytes


def test_framed_kernels_are_right(harness: Harness, target: Target, specimen: Specimen) -> None:
    for kernel in (framed(base_of(specimen, target), pages=1), framed(base_of(specimen, target), steps=100)):
        found = harness.check(kernel, specimen.workload)
        assert isinstance(found, CheckResult), found


@pytest.mark.slow
def test_a_calibration_that_was_stopped_goes_on_and_judges_itself(
        target: Target, threads: int, specimen: Specimen, tmp_path: Path) -> None:
    settings = Settings(target.identity, threads, False, (specimen.name,))
    news: list[Progress] = []

    def run(resume: bool, seconds: float) -> Journal:
        journal = Journal(tmp_path / "j.jsonl", settings, resume)
        Calibration(target, threads, [specimen], journal, 10, time.monotonic() + seconds, None, news.append).run()
        journal.close()
        return journal

    first = run(resume=False, seconds=4).recorded
    assert first.inserted and not first.decided
    whole = run(resume=True, seconds=300).recorded
    assert whole.inserted == first.inserted and whole.samples[: len(first.samples)] == first.samples
    table = {r.slowdown: r for r in rates(whole.decided) if r.kernel == ALL}
    assert table[0.0].decisions == 10 and table[0.0].accepted <= 1
    assert set(table) == {0.0, 0.01, 0.02, 0.03, 0.05}
    assert {n.stage for n in news} == {"inserted work", "noise", "decisions"}


@pytest.mark.slow
def test_a_first_tune_learns_the_noise_from_every_kernel(target: Target) -> None:
    with Harness(target, threads=1) as harness:
        noise = measure_noise(harness, deadline=0.0)
    assert noise.threads == 1 and noise.zygotes == 3 * len(specimens()) * LEAST_ZYGOTES
    assert all(c.floor > 0 and c.scatter_limit > 0 for c in noise.classes)
