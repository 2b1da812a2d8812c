"""What a calibration makes of its records: parameters from self-comparisons, rates from decisions; and its journal."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from kforge.core.errors import KforgeError
from kforge.core.trial import Decision
from kforge.harness.calibrate import SLOWDOWNS, Journal, Settings, plan
from kforge.harness.judge import Rules, ShapeSample, decide
from kforge.harness.pairs import PairedSample
from kforge.harness.quantiles import proportion_lower, proportion_upper
from kforge.harness.rates import ALL, Decided, Inserted, SelfSample, fit, rates
from kforge.targets.noise import Noise

GROUP = 6
SETTINGS = Settings("t", 2, False, ("a", "b"))


def selves(rng: np.random.Generator, scatter: float, shared: float = 0.0, kernel: str = "a", seconds: float = 1e-5,
           bias: float = 0.0, groups: int = 12) -> list[SelfSample]:
    """``shared``: what all zygotes of a group have in common, as in a bad minute."""
    found = []
    for _ in range(groups):
        centre = bias + shared * rng.standard_normal()
        found.append(SelfSample(kernel, tuple((centre + scatter * rng.standard_normal(GROUP)).tolist()), seconds, 0, 1))
    return found


PAIRS = 4


def drawn(rng: np.random.Generator, gain: float, scatter: float, shared: float, drift: float) -> PairedSample:
    """24 zygotes with heavy-tailed pairs, a drift inside each of them, and a part that every six have in common."""
    logs: list[float] = []
    for zygote in range(24):
        if zygote % GROUP == 0:
            common = shared * rng.standard_normal()
        centre = math.log1p(gain) + common + scatter * rng.standard_normal()
        # A drift has alternating signs in pairs of opposite order.
        signs = np.where(np.arange(PAIRS) % 2, -1.0, 1.0)
        logs += (centre + drift * signs + 0.01 * rng.standard_t(2, PAIRS)).tolist()
    numbers = tuple(z for z in range(24) for _ in range(PAIRS))
    return PairedSample("w", tuple(logs), numbers, (0.0,) * 24, (0.0,) * 24, 1e-5, 1e-5 * (1 + gain))


def cut(whole: PairedSample, zygotes: int) -> PairedSample:
    n = PAIRS * zygotes
    return PairedSample("w", whole.log_ratios[:n], whole.zygotes[:n], (0.0,) * zygotes, (0.0,) * zygotes,
                        whole.seconds, whole.incumbent_seconds)


def share_accepted(gain: float, noise: Noise, runs: int, seed: int, scatter: float = 0.01, shared: float = 0.0,
                   drift: float = 0.0) -> int:
    rng, rules, found = np.random.default_rng(seed), Rules(noise=noise), 0
    for _ in range(runs):
        whole = drawn(rng, gain, scatter, shared, drift)
        for look in rules.looks:
            verdict = decide("a", "b", [ShapeSample(cut(whole, look))], rules)
            if verdict.decision is not Decision.UNDECIDED:
                break
        found += verdict.decision is Decision.ACCEPTED
    return found


@pytest.mark.parametrize(("shared", "drift"), [(0.0, 0.0), (0.0, 0.03), (0.01, 0.0)])
def test_by_fitted_parameters_a_kernel_hardly_ever_beats_itself_and_larger_gains_are_found(
        shared: float, drift: float) -> None:
    noise = fit(selves(np.random.default_rng(1), 0.012, shared, groups=24), 2, "2026-01-01")
    assert proportion_upper(share_accepted(0.0, noise, 1500, 2, shared=shared, drift=drift), 1500) <= 0.01
    assert share_accepted(0.05, noise, 100, 3, shared=shared, drift=drift) >= (40 if shared else 90)


def test_zygotes_that_are_alike_stretch_the_bounds_and_independent_ones_hardly_do() -> None:
    rng = np.random.default_rng(4)
    apart = fit(selves(rng, 0.01, groups=40), 2, "d").at(1e-5)
    alike = fit(selves(rng, 0.01, shared=0.02, groups=40), 2, "d").at(1e-5)
    assert 1.0 <= apart.stretch < 1.4
    assert alike.stretch > 3


def test_a_kernel_that_differs_from_itself_for_good_raises_the_floor() -> None:
    rng = np.random.default_rng(5)
    assert fit(selves(rng, 0.01), 2, "d").at(1e-5).floor < 0.006
    assert fit(selves(rng, 0.01, bias=0.03), 2, "d").at(1e-5).floor > 0.03


def test_classes_without_a_kernel_get_the_worst_of_the_others() -> None:
    rng = np.random.default_rng(6)
    noise = fit([*selves(rng, 0.02), *selves(rng, 0.001, kernel="b", seconds=5e-4)], 2, "d")
    assert noise.at(5e-4).scatter_limit < noise.at(1e-5).scatter_limit == noise.at(0.5).scatter_limit


def decided(number: int, slowdown: float, decision: Decision, kernel: str = "a", gain: float = 0.0) -> Decided:
    return Decided(number, kernel, slowdown, decision.value, "", False, gain, -1, 1, 6, 60, 1e-5, 0.5, 2.0)


def test_rates_count_by_kernel_and_slow_down_with_exact_bounds() -> None:
    some = [decided(i, 0.0, Decision.REJECTED, "ab"[i % 2]) for i in range(40)]
    some += [decided(40 + i, 0.05, Decision.ACCEPTED if i else Decision.UNDECIDED, gain=0.049) for i in range(10)]
    table = {(r.kernel, r.slowdown): r for r in rates(some)}
    assert set(table) == {("a", 0.0), ("b", 0.0), (ALL, 0.0), ("a", 0.05), (ALL, 0.05)}
    null, slow = table[ALL, 0.0], table[ALL, 0.05]
    assert (null.decisions, null.accepted, null.rejected) == (40, 0, 40)
    assert null.upper == pytest.approx(1 - 0.025 ** (1 / 40)) and null.lower == 0.0
    assert (slow.accepted, slow.undecided) == (9, 1) and slow.measured == pytest.approx(0.049)
    assert slow.lower == proportion_lower(9, 10, 0.975) < 0.9 < slow.upper


def test_the_plan_of_fewer_decisions_is_the_beginning_of_that_of_more() -> None:
    few, many = list(plan(["a", "b", "c"], 20)), list(plan(["a", "b", "c"], 200))
    assert many[: len(few)] == few
    assert {s for _, s in many} == {0.0, *SLOWDOWNS}
    for slowdown in SLOWDOWNS:
        assert {k for k, s in many if s == slowdown} == {"a", "b", "c"}


def test_a_killed_calibration_goes_on_with_all_that_was_whole(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    first = Journal(path, SETTINGS, resume=False)
    things = Inserted("a", 1e-4, 0.9e-4, 1.1e-4), SelfSample("a", (0.1, 0.2), 1e-5, 0.5, 1.0), decided(
        0, 0.0, Decision.REJECTED)
    for thing in things:
        first.add(thing)
    first.close()
    with path.open("a") as file:
        file.write('\n{"kind": "decision", "num')
    again = Journal(path, SETTINGS, resume=True)
    assert (again.recorded.inserted, again.recorded.samples, again.recorded.decided) == tuple((t,) for t in things)
    again.add(decided(1, 0.0, Decision.REJECTED))
    again.close()
    third = Journal(path, SETTINGS, resume=True)
    assert [d.number for d in third.recorded.decided] == [0, 1]
    third.close()


def test_another_calibration_is_not_gone_on_with(tmp_path: Path) -> None:
    Journal(tmp_path / "j.jsonl", SETTINGS, resume=False).close()
    with pytest.raises(KforgeError, match="another calibration"):
        Journal(tmp_path / "j.jsonl", Settings("t", 1, False, ("a", "b")), resume=True)
    with pytest.raises(KforgeError, match="no calibration to resume"):
        Journal(tmp_path / "none.jsonl", SETTINGS, resume=True)
