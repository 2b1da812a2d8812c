"""The judge on synthetic samples with the tails that were measured: what it accepts, and how rarely it errs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kforge.core.trial import Decision, RejectReason, Verdict
from kforge.harness.judge import Rules, ShapeSample, decide, hodges_lehmann, interval, zygote_locations
from kforge.harness.pairs import PairedSample
from kforge.harness.quantiles import incomplete_beta, proportion_upper, student_t_quantile
from kforge.targets.noise import Noise, NoiseClass


def noise(floor: float = 0.0, stretch: float = 1.0, scatter_limit: float = math.inf) -> Noise:
    return Noise(1, (NoiseClass(math.inf, floor, stretch, scatter_limit),))


def rules(**given: object) -> Rules:
    """As on a machine that adds nothing to the noise that is seen."""
    return Rules(**{"noise": noise(), **given})  # type: ignore[arg-type]


def sample(rng: np.random.Generator, gain: float, zygotes: int, pairs: int = 30, scatter: float = 0.02,
           between: float = 0.003, workload: str = "w", seconds: float = 1e-3) -> PairedSample:
    """Pairs with Student's t of 2 degrees (infinite variance) around a zygote's own location."""
    logs: list[float] = []
    for _ in range(zygotes):
        centre = math.log1p(gain) + between * rng.standard_normal()
        logs += (centre + scatter * rng.standard_t(2, pairs)).tolist()
    numbers = tuple(z for z in range(zygotes) for _ in range(pairs))
    noise = (0.001,) * zygotes, (0.0,) * zygotes
    return PairedSample(workload, tuple(logs), numbers, *noise, seconds, seconds * (1 + gain))


def cut(whole: PairedSample, zygotes: int) -> PairedSample:
    n = sum(z < zygotes for z in whole.zygotes)
    return PairedSample(whole.workload, whole.log_ratios[:n], whole.zygotes[:n], whole.overheads[:zygotes],
                        whole.disturbed[:zygotes], whole.seconds, whole.incumbent_seconds)


def through_looks(wholes: list[PairedSample], given: Rules) -> Verdict:
    for look in given.looks:
        verdict = decide("a", "b", [ShapeSample(cut(w, look)) for w in wholes], given)
        if verdict.decision is not Decision.UNDECIDED:
            break
    return verdict


def accepted(gain: float, runs: int, given: Rules, seed: int, **shape: float) -> int:
    rng = np.random.default_rng(seed)
    found = 0
    for _ in range(runs):
        whole = sample(rng, gain, given.looks[-1], **shape)  # type: ignore[arg-type]
        found += through_looks([whole], given).decision is Decision.ACCEPTED
    return found


def test_a_kernel_against_itself_is_hardly_ever_accepted() -> None:
    assert proportion_upper(accepted(0.0, 200, rules(), seed=1), 200) < 0.05


def test_significance_alone_keeps_its_error_rate_when_zygotes_differ_more_than_the_least_gain() -> None:
    # Zygotes that scatter by 3 % make gains above 1 % common: only the confidence bound stands in the way.
    runs = 1500
    found = accepted(0.0, runs, rules(), seed=2, between=0.03, pairs=4)
    assert found / runs < 0.003 + 2 * math.sqrt(0.003 * 0.997 / runs)


def test_a_gain_of_five_percent_is_found() -> None:
    assert accepted(0.05, 100, rules(finalists=3), seed=3) >= 95


def test_a_gain_below_what_counts_is_refused() -> None:
    rng = np.random.default_rng(4)
    verdict = through_looks([sample(rng, 0.003, 24, scatter=0.001, between=0.0003)], rules())
    assert verdict.decision is Decision.REJECTED and verdict.reason is RejectReason.GAIN_TOO_SMALL


def test_the_floor_of_a_noisy_machine_raises_what_counts() -> None:
    rng = np.random.default_rng(5)
    whole = sample(rng, 0.03, 12, scatter=0.001, between=0.0003)
    assert through_looks([whole], rules()).decision is Decision.ACCEPTED
    assert through_looks([whole], rules(noise=noise(floor=0.05))).reason is RejectReason.GAIN_TOO_SMALL


def test_a_slower_candidate_is_called_slower() -> None:
    verdict = through_looks([sample(np.random.default_rng(6), -0.05, 24)], rules())
    assert verdict.decision is Decision.REJECTED and verdict.reason is RejectReason.SLOWER


def test_a_loss_at_one_shape_outweighs_a_gain_at_another() -> None:
    rng = np.random.default_rng(7)
    verdict = through_looks([sample(rng, 0.15, 24, workload="w1"), sample(rng, -0.05, 24, workload="w2")], rules())
    assert verdict.decision is Decision.REJECTED and verdict.reason is RejectReason.SHAPE_REGRESSION
    assert [name for name, _ in verdict.per_shape] == ["w1", "w2"]


def test_too_much_noise_is_undecided() -> None:
    verdict = through_looks([sample(np.random.default_rng(8), 0.08, 24, between=0.1)], rules())
    assert verdict.decision is Decision.UNDECIDED and verdict.reason is RejectReason.TOO_NOISY


def test_noise_beyond_what_was_calibrated_widens_bounds_and_floor_by_as_much() -> None:
    whole = ShapeSample(sample(np.random.default_rng(13), 0.12, 24, between=0.05))
    plain, wild = (decide("a", "b", [whole], rules(noise=noise(floor=0.02, scatter_limit=limit)))
                   for limit in (1.0, 0.01))
    assert plain.decision is Decision.ACCEPTED
    assert wild.decision is Decision.UNDECIDED and wild.reason is RejectReason.TOO_NOISY
    times = wild.floor / plain.floor
    assert 3 < times < 8  # 5 % for 1 %
    assert math.log1p(wild.gain) - math.log1p(wild.lower) == pytest.approx(
        times * (math.log1p(plain.gain) - math.log1p(plain.lower))
    )


def test_a_gain_that_towers_over_noise_beyond_what_was_calibrated_is_found() -> None:
    assert accepted(0.5, 50, rules(noise=noise(floor=0.005, scatter_limit=0.02)), seed=15, between=0.05) >= 45


@pytest.mark.parametrize("between", [0.03, 0.1, 0.3])
def test_a_kernel_hardly_ever_beats_itself_on_a_machine_that_has_become_wild(between: float) -> None:
    calibrated = rules(noise=noise(floor=0.005, stretch=1.1, scatter_limit=0.02))
    assert proportion_upper(accepted(0.0, 1000, calibrated, seed=16, between=between, pairs=4), 1000) < 0.01


def test_a_clear_loss_is_slower_on_a_wild_machine_too() -> None:
    whole = sample(np.random.default_rng(7), -0.9, 24, between=0.1)
    verdict = through_looks([whole], rules(noise=noise(scatter_limit=0.02)))
    assert (verdict.decision, verdict.reason) == (Decision.REJECTED, RejectReason.SLOWER)
    assert verdict.zygotes == 6  # and costs no more looks


def test_what_the_means_scatter_more_than_their_zygotes_widens_the_bounds() -> None:
    whole = ShapeSample(sample(np.random.default_rng(14), 0.05, 6))
    plain = decide("a", "b", [whole], rules())
    wide = decide("a", "b", [whole], rules(noise=noise(stretch=2.0)))
    assert math.log1p(wide.gain) - math.log1p(wide.lower) == pytest.approx(
        2 * (math.log1p(plain.gain) - math.log1p(plain.lower))
    )


def test_faster_than_the_hardware_is_audited_and_not_accepted() -> None:
    whole = sample(np.random.default_rng(9), 0.5, 12, seconds=1e-3)
    verdict = decide("a", "b", [ShapeSample(whole, limit_seconds=2e-3)], rules())
    assert verdict.decision is Decision.UNDECIDED and verdict.reason is RejectReason.ABOVE_ROOFLINE
    assert decide("a", "b", [ShapeSample(whole, limit_seconds=0.5e-3)], rules()).decision is Decision.ACCEPTED


def test_more_finalists_and_looks_make_the_bounds_wider() -> None:
    whole = sample(np.random.default_rng(10), 0.05, 6)
    few = decide("a", "b", [ShapeSample(whole)], rules(looks=(6,)))
    many = decide("a", "b", [ShapeSample(whole)], rules(finalists=8))
    assert many.lower < few.lower and many.upper > few.upper


def test_a_few_wild_pairs_do_not_move_the_location() -> None:
    quiet = [0.05 + 0.001 * i for i in range(-15, 15)]
    wild = [*quiet[:-4], 5.0, -7.0, 3.0, 4.0]
    assert abs(hodges_lehmann(wild) - hodges_lehmann(quiet)) < 0.005


def test_one_zygote_shows_nothing() -> None:
    found = interval(zygote_locations(sample(np.random.default_rng(12), 0.2, 1)), 0.05)
    assert found.lower == -math.inf and found.upper == math.inf


def test_quantiles_agree_with_published_tables() -> None:
    assert student_t_quantile(0.975, 4) == pytest.approx(2.776445, abs=1e-5)
    assert student_t_quantile(0.95, 11) == pytest.approx(1.795885, abs=1e-5)
    assert student_t_quantile(0.05, 11) == pytest.approx(-1.795885, abs=1e-5)
    assert incomplete_beta(2, 3, 0.4) == pytest.approx(0.5248, abs=1e-6)
    assert proportion_upper(0, 100) == pytest.approx(1 - 0.05 ** (1 / 100), abs=1e-9)
