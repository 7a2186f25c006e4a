"""Statistics against scipy, statsmodels, brute force, and exact enumeration."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from scipy import stats as oracle
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.rates import test_poisson_2indep as poisson_2indep

from rig import stats

counts = st.integers(0, 60)
rates = st.sampled_from([0.01, 0.05, 0.1])


@given(counts, counts)
def test_mcnemar_equals_scipy_and_statsmodels(b: int, c: int) -> None:
    table = [[5, b], [c, 5]]
    both_ways = min(1, 2 * min(stats.mcnemar_no_drop(b, c), stats.mcnemar_no_gain(b, c)))
    assert both_ways == pytest.approx(mcnemar(table, exact=True).pvalue)
    if b + c:
        assert stats.mcnemar_no_drop(b, c) == pytest.approx(oracle.binomtest(b, b + c, alternative="greater").pvalue)
        assert stats.mcnemar_no_gain(b, c) == pytest.approx(oracle.binomtest(c, b + c, alternative="greater").pvalue)


def test_without_a_flip_nothing_is_rejected() -> None:
    assert stats.mcnemar_no_drop(0, 0) == stats.mcnemar_no_gain(0, 0) == 1


@given(st.integers(1, 2000), st.floats(0, 1), st.sampled_from([0.9, 0.95, 0.99]))
def test_wilson_equals_statsmodels(n: int, share: float, level: float) -> None:
    k = round(share * n)
    interval = stats.wilson(k, n, level)
    assert interval is not None
    assert interval == pytest.approx(proportion_confint(k, n, alpha=1 - level, method="wilson"), abs=1e-12)
    assert 0 <= interval[0] <= k / n <= interval[1] <= 1


def test_wilson_of_nothing_is_missing() -> None:
    assert stats.wilson(0, 0) is None


@given(st.integers(1, 2000), st.floats(0, 1), rates)
def test_binomial_upper_equals_statsmodels(n: int, share: float, alpha: float) -> None:
    k = round(share * n)
    expected = proportion_confint(k, n, alpha=2 * alpha, method="beta")[1]
    assert stats.binomial_upper(k, n, alpha) == pytest.approx(expected)


@given(st.integers(1, 300), st.integers(1, 300), st.floats(0, 1), st.floats(0, 1))
def test_fisher_equals_scipy(n1: int, n0: int, share1: float, share0: float) -> None:
    k1, k0 = round(share1 * n1), round(share0 * n0)
    expected = oracle.fisher_exact([[k1, n1 - k1], [k0, n0 - k0]], alternative="greater").pvalue
    assert stats.fisher_excess(k1, n1, k0, n0) == pytest.approx(expected, abs=1e-9)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 500), st.integers(1, 500))
def test_event_excess_equals_statsmodels(k1: int, k0: int, exposure1: int, exposure0: int) -> None:
    expected = poisson_2indep(k1, exposure1, k0, exposure0, method="exact-cond", alternative="larger").pvalue
    assert stats.event_excess(k1, exposure1, k0, exposure0) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_percentiles_interpolate_linearly(values: list[float]) -> None:
    quarters = statistics.quantiles(values, n=4, method="inclusive")
    assert [stats.percentile(values, q) for q in (25, 50, 75)] == pytest.approx(quarters, abs=1e-6)
    assert stats.percentile(values, 0) == min(values)
    assert stats.percentile(values, 100) == max(values)


# The score interval


def brute_score_z(x: int, y: int, n: int, delta: float) -> float:
    """Tango's statistic with the likelihood maximised numerically instead of in closed form."""

    def loss(q: float) -> float:
        terms = ((x, q + delta), (y, q), (n - x - y, 1 - 2 * q - delta))
        return -sum(k * math.log(max(p, 1e-300)) for k, p in terms if k)

    low, high = max(0.0, -delta), (1 - delta) / 2
    found = optimize.minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-12})
    q = min((low, high, float(found.x)), key=loss)
    return (x - y - n * delta) / math.sqrt(n * (2 * q + delta - delta**2))


@pytest.mark.parametrize(
    ("b", "c", "n"), [(0, 1, 20), (1, 1, 50), (5, 2, 100), (2, 5, 100), (12, 2, 50), (40, 20, 160), (7, 1, 21)]
)
def test_score_interval_ends_where_the_statistic_reaches_z(b: int, c: int, n: int) -> None:
    interval = stats.paired_difference_interval(b, c, n)
    assert interval is not None
    z = oracle.norm.isf(0.025)
    assert brute_score_z(c, b, n, interval[0]) == pytest.approx(z, abs=1e-4)
    assert brute_score_z(c, b, n, interval[1]) == pytest.approx(-z, abs=1e-4)


def test_score_interval_equals_a_published_one() -> None:
    """Airway hyper-responsiveness (Bentur 2009): 1 and 7 discordant of 21; Fagerland, Lydersen and Laake 2014."""
    interval = stats.paired_difference_interval(7, 1, 21)
    assert interval == pytest.approx((-0.517, -0.026), abs=5e-4)


@given(st.integers(1, 500), st.floats(0, 1), st.floats(0, 1))
def test_score_interval_holds_the_estimate_and_is_symmetric(n: int, share: float, split: float) -> None:
    flips = round(share * n)
    b = round(split * flips)
    c = flips - b
    interval, mirrored = stats.paired_difference_interval(b, c, n), stats.paired_difference_interval(c, b, n)
    assert interval is not None and mirrored is not None
    assert -1 <= interval[0] <= (c - b) / n <= interval[1] <= 1
    assert interval == pytest.approx((-mirrored[1], -mirrored[0]), abs=1e-9)


def test_score_interval_without_a_flip_is_not_a_point() -> None:
    interval = stats.paired_difference_interval(0, 0, 400)
    assert interval is not None and interval[0] < -0.005 and interval[1] > 0.005
    assert stats.paired_difference_interval(0, 0, 0) is None


# The upper bound of the drop


@pytest.mark.parametrize(("margin", "needed"), [(0.02, 149), (0.01, 299)])
def test_questions_without_a_flip_until_pass(margin: float, needed: int) -> None:
    assert stats.drop_below(0, 0, needed, margin, 0.05)
    assert not stats.drop_below(0, 0, needed - 1, margin, 0.05)
    assert stats.questions_needed(0, 0, 0, margin, 0.05) == stats.Forecast(needed, "pass")


@given(st.integers(1, 5000), rates)
def test_bound_without_a_flip_is_in_closed_form(n: int, alpha: float) -> None:
    assert stats.drop_upper_bound(0, 0, n, alpha) == pytest.approx(1 - alpha ** (1 / n))


def test_bound_of_nothing_is_missing() -> None:
    assert stats.drop_upper_bound(0, 0, 0, 0.05) is None
    assert not stats.drop_below(0, 0, 0, 0.02, 0.05)


@pytest.mark.parametrize(("n", "alpha"), [(8, 0.05), (14, 0.1)])
def test_bound_covers_every_true_drop(n: int, alpha: float) -> None:
    """Exact: the chance that the bound lies below the true drop, summed over all results, for a grid of truths."""
    results = [(b, c) for b in range(n + 1) for c in range(n + 1 - b)]
    bounds = {r: stats.drop_upper_bound(*r, n, alpha) for r in results}
    ways = np.array([math.comb(n, b) * math.comb(n - b, c) for b, c in results], dtype=float)
    bs, cs = np.array(results, dtype=float).T
    uppers = np.array([bounds[r] for r in results], dtype=float)
    worst = 0.0
    for loss in np.linspace(0, 1, 60):
        for gain in np.linspace(0, 1 - loss, 30):
            chance = ways * loss**bs * gain**cs * max(1 - loss - gain, 0.0) ** (n - bs - cs)
            worst = max(worst, float(chance[uppers < loss - gain - 1e-6].sum()))
    assert worst <= alpha + 1e-6
    assert worst > alpha / 2  # it is not valid by being useless


@pytest.mark.parametrize(("n", "margin"), [(400, 0.02), (1319, 0.01)])
def test_chance_of_a_false_pass_at_the_margin(n: int, margin: float) -> None:
    """Exact: how often a cell whose true drop is the margin passes, for up to 20 expected gains."""
    alpha, top = 0.05, 45
    largest = np.full(top + 1, -1)
    for c in range(top + 1):
        b = int(largest[c - 1]) if c else -1
        b = max(b - 1, -1)
        while stats.drop_below(b + 1, c, n, margin, alpha):
            b += 1
        largest[c] = b
    cs = np.arange(top + 1)
    worst = 0.0
    for gain in np.linspace(0, 20, 200) / n:
        of_losses = oracle.binom.cdf(largest, n - cs, (margin + gain) / (1 - gain))
        worst = max(worst, float((oracle.binom.pmf(cs, n, gain) * of_losses).sum()))
    assert alpha / 2 < worst <= alpha


@pytest.mark.parametrize(
    ("b", "c", "n", "below"),
    [(1, 1, 400, True), (4, 4, 400, True), (10, 10, 400, True), (11, 11, 400, False), (4, 0, 400, False)],
)
def test_flips_both_ways_still_pass(b: int, c: int, n: int, below: bool) -> None:
    assert stats.drop_below(b, c, n, 0.02, 0.05) is below


@pytest.mark.parametrize(("b", "c", "n"), [(8, 8, 150), (20, 20, 400), (26, 26, 1319), (10, 5, 400), (100, 90, 1319)])
def test_bound_is_hardly_above_the_asymptotic_one(b: int, c: int, n: int) -> None:
    exact = stats.drop_upper_bound(b, c, n, 0.05)
    interval = stats.paired_difference_interval(b, c, n, 0.9)
    assert exact is not None and interval is not None
    estimate = (b - c) / n
    assert exact - estimate < 1.12 * (-interval[0] - estimate)


@settings(max_examples=40)
@given(st.integers(2, 1500), st.floats(0, 1), st.floats(0, 1), rates, st.floats(0.005, 0.3))
def test_bound_and_test_agree(n: int, share: float, split: float, alpha: float, margin: float) -> None:
    flips = round(share * n)
    b = round(split * flips)
    upper = stats.drop_upper_bound(b, flips - b, n, alpha)
    assert upper is not None and (2 * b - flips) / n <= upper <= 1
    if abs(upper - margin) > 1e-6:
        assert stats.drop_below(b, flips - b, n, margin, alpha) == (upper < margin)


@pytest.mark.parametrize("c", [0, 1, 3, 10])
def test_bound_grows_with_the_losses(c: int) -> None:
    bounds = [stats.drop_upper_bound(b, c, 200, 0.05) or 0.0 for b in range(12)]
    assert all(low < high + 1e-6 for low, high in pairwise(bounds))


@pytest.mark.parametrize(("b", "c", "n"), [(0, 5, 5), (5, 0, 5), (4, 1, 5), (1, 4, 5), (0, 1, 1), (1, 0, 1)])
def test_bound_at_the_edges(b: int, c: int, n: int) -> None:
    upper = stats.drop_upper_bound(b, c, n, 0.05)
    assert upper is not None and (b - c) / n <= upper <= 1


# Power and forecasts


@given(st.integers(0, 30), st.integers(0, 30), st.sampled_from([100, 400, 1319]), rates)
@settings(max_examples=30)
def test_detectable_drop_has_the_power_it_claims(b: int, c: int, n: int, alpha: float) -> None:
    drop = stats.min_detectable_drop(b, c, n, alpha)
    assert drop is not None
    discordance = oracle.beta.isf(alpha, b + c + 1, n - b - c)
    assert stats.drop_power(drop + 1e-5, discordance, n, alpha) >= 0.8
    assert stats.drop_power(drop - 1e-4, discordance, n, alpha) < 0.8


def test_power_equals_simulation() -> None:
    rng = np.random.default_rng(7)
    drop, discordance, n = 0.02, 0.04, 500
    loss, gain = (discordance + drop) / 2, (discordance - drop) / 2
    draws = rng.multinomial(n, [loss, gain, 1 - discordance], size=20_000)
    pairs, times = np.unique(draws[:, :2], axis=0, return_counts=True)
    rejected = sum(t for (b, c), t in zip(pairs, times, strict=True) if stats.mcnemar_no_drop(int(b), int(c)) <= 0.05)
    assert stats.drop_power(drop, discordance, n, 0.05) == pytest.approx(rejected / 20_000, abs=0.012)


def test_detectable_drop_without_a_flip_is_not_nothing() -> None:
    """Five losses and no gain are the fewest that McNemar rejects at 0.05."""
    drop = stats.min_detectable_drop(0, 0, 400, 0.05)
    assert drop is not None and oracle.binom.sf(4, 400, drop) == pytest.approx(0.8, abs=0.01)
    assert stats.min_detectable_drop(0, 0, 4, 0.05) is None
    assert stats.min_detectable_drop(0, 0, 0, 0.05) is None
    assert stats.drop_power(0.0, 0.0, 100, 0.05) == 0


@pytest.mark.parametrize(
    ("b", "c", "n", "towards"),
    [(0, 0, 100, "pass"), (2, 1, 150, "pass"), (5, 3, 150, "regression"), (5, 1, 150, "regression"), (3, 0, 100, None)],
)
def test_forecast_is_the_first_total_that_decides(b: int, c: int, n: int, towards: str | None) -> None:
    forecast = stats.questions_needed(b, c, n, 0.02, 0.05)
    assert forecast is not None and forecast.more >= 1
    assert towards is None or forecast.towards == towards
    total = n + forecast.more
    if forecast.towards == "pass":
        assert stats.drop_below(math.ceil(b * total / n), math.floor(c * total / n), total, 0.02, 0.05)
    else:
        assert stats.mcnemar_no_drop(math.floor(b * total / n), math.ceil(c * total / n)) <= 0.05


def test_forecast_gives_up_beyond_the_cap() -> None:
    assert stats.questions_needed(0, 0, 0, 0.02, 0.05, cap=148) is None
    assert stats.questions_needed(0, 0, 0, 0.02, 0.05, cap=149) == stats.Forecast(149, "pass")


@pytest.mark.parametrize(("led", "moved", "rounds"), [(3, 3, 6), (5, 9, 1), (0, 0, 2), (2, 40, 4)])
def test_leading_is_the_binomial_tail(led: int, moved: int, rounds: int) -> None:
    expected = oracle.binomtest(led, moved, 1 / (rounds + 1), alternative="greater").pvalue if moved else 1.0
    assert stats.leading(led, moved, rounds) == pytest.approx(expected)
