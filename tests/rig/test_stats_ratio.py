"""Ratios against scipy's bootstrap, and their coverage, size and power by simulation."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as oracle

from rig import stats
from rig.stats_ratio import MIN_REQUESTS, RatioEstimate, Statistic, ratio, stalls, throughput

Floats = npt.NDArray[np.float64]
STATISTICS: list[Statistic] = ["p50", "p90", "p99", "mean"]


def latencies(n: int, seed: int, scale: float = 1.0, spread: float = 0.4) -> list[float]:
    return list(scale * np.random.default_rng(seed).lognormal(0, spread, n))


def estimate(cell: list[float], base: list[float], statistic: Statistic, seed: int = 0) -> RatioEstimate:
    found = ratio(cell, base, statistic, seed)
    assert found is not None
    return found


def quantity(statistic: Statistic, values: Floats, axis: int = -1) -> Floats:
    if statistic == "mean":
        return np.asarray(np.mean(values, axis=axis))
    return np.asarray(np.percentile(values, float(statistic[1:]), axis=axis))


@pytest.mark.parametrize("statistic", STATISTICS)
def test_interval_equals_scipy(statistic: Statistic) -> None:
    n = MIN_REQUESTS[statistic]
    cell, base = latencies(n, 1, 1.3), latencies(n + 10, 2)
    found = estimate(cell, base, statistic)

    def of_both(x: Floats, y: Floats, axis: int = -1) -> Floats:
        return quantity(statistic, x, axis) / quantity(statistic, y, axis)

    expected = oracle.bootstrap(
        (cell, base), of_both, method="percentile", n_resamples=4000, batch=500, rng=np.random.default_rng(3)
    )
    width = expected.confidence_interval.high - expected.confidence_interval.low
    assert found.value == pytest.approx(float(of_both(np.array(cell), np.array(base))))
    assert found.ci95 == pytest.approx(tuple(expected.confidence_interval), abs=0.08 * width)
    assert oracle.ks_2samp(found.resampled, expected.bootstrap_distribution).pvalue > 1e-3


def test_drawn_quantiles_are_those_of_resamples_with_ties() -> None:
    """Few distinct values, so that interpolation between equal and unequal neighbours both come up."""
    cell, base = [1.0, 2.0, 2.0, 3.0, 5.0] * 10, [1.0] * 60
    found = estimate(cell, base, "p50")
    rows = np.random.default_rng(4).choice(cell, size=(40_000, 50))
    direct = np.median(rows, axis=1)
    values = np.unique(np.concatenate([found.resampled, direct]))
    assert set(values) <= {1.0, 1.5, 2.0, 2.5, 3.0}
    for value in values:
        expected = float((direct == value).mean())
        assert float((found.resampled == value).mean()) == pytest.approx(expected, abs=0.035)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_too_few_requests_give_no_number(statistic: Statistic) -> None:
    n = MIN_REQUESTS[statistic]
    assert ratio(latencies(n - 1, 1), latencies(n, 2), statistic, 0) is None
    assert ratio(latencies(n, 1), latencies(n - 1, 2), statistic, 0) is None
    assert ratio(latencies(n, 1), latencies(n, 2), statistic, 0) is not None
    assert ratio([], [], statistic, 0) is None


def test_smallest_sizes() -> None:
    assert MIN_REQUESTS == {"p50": 50, "p90": 100, "p99": 500, "mean": 50}


@pytest.mark.parametrize("statistic", STATISTICS)
def test_a_seed_gives_one_answer(statistic: Statistic) -> None:
    cell, base = latencies(600, 1), latencies(600, 2)
    first, again, other = (estimate(cell, base, statistic, seed) for seed in (5, 5, 6))
    assert first == again and np.array_equal(first.resampled, again.resampled)
    assert first.value == other.value and not np.array_equal(first.resampled, other.resampled)
    assert estimate(cell[::-1], base, statistic, 5) == first


@settings(max_examples=25)
@given(st.integers(50, 120), st.floats(0.1, 10), st.integers(0, 1000), st.sampled_from(["p50", "mean"]))
def test_a_ratio_does_not_depend_on_the_unit(n: int, unit: float, seed: int, statistic: Statistic) -> None:
    cell, base = latencies(n, seed), latencies(n, seed + 1)
    plain = estimate(cell, base, statistic)
    scaled = estimate([unit * x for x in cell], [unit * x for x in base], statistic)
    assert scaled.value == pytest.approx(plain.value)
    assert scaled.ci95 == pytest.approx(plain.ci95)


def test_p_values_count_the_resamples_on_the_wrong_side() -> None:
    found = RatioEstimate(1.0, (0.9, 1.1), np.array([0.8, 0.9, 1.0, 1.0]))
    assert found.p_above(1.0) == 1 and found.p_above(0.9) == pytest.approx(3 / 5) and found.p_above(0.5) == 0.2
    assert found.p_below(1.0) == pytest.approx(3 / 5) and found.p_below(0.8) == 1 and found.p_below(2.0) == 0.2


@given(st.floats(0.5, 2), st.floats(0.5, 2))
def test_p_values_are_monotone_in_the_gate(one: float, two: float) -> None:
    found = estimate(latencies(60, 1, 1.1), latencies(60, 2), "p50")
    low, high = min(one, two), max(one, two)
    assert found.p_above(low) <= found.p_above(high)
    assert found.p_below(low) >= found.p_below(high)


@pytest.mark.parametrize(("statistic", "resamples"), [("p50", 40_000), ("p99", 40_000), ("mean", 4_000)])
def test_the_smallest_p_value(statistic: Statistic, resamples: int) -> None:
    found = estimate(latencies(500, 1, 3.0), latencies(500, 2), statistic)
    assert found.p_above(1.1) == 1 / (resamples + 1)


def test_p_value_agrees_with_the_interval() -> None:
    found = estimate(latencies(200, 1, 1.2), latencies(200, 2), "p50")
    assert found.p_above(found.ci95[0]) == pytest.approx(0.025, abs=0.001)
    assert found.p_below(found.ci95[1]) == pytest.approx(0.025, abs=0.001)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_what_is_no_latency_is_refused(bad: float) -> None:
    good = latencies(100, 1)
    for one, two in (([*good, bad], good), (good, [*good, bad])):
        with pytest.raises(ValueError, match="finite and not negative"):
            ratio(one, two, "p50", 0)
        with pytest.raises(ValueError, match="finite and not negative"):
            stalls(one, two, 2)
        with pytest.raises(ValueError, match="finite and not negative"):
            throughput(one, two, 0)


def test_no_ratio_to_nothing() -> None:
    """Gaps between tokens that came together are 0, and so may their median be; of a cell it may."""
    mostly, some = [0.0] * 80 + [1.0] * 20, latencies(100, 1)
    assert ratio(some, mostly, "p50", 0) is None
    assert ratio(some, [0.0] * 48 + [1.0] * 52, "p50", 0) is None
    assert estimate(mostly, some, "p50").value == 0
    assert ratio([0.0] * 100, [0.0] * 100, "mean", 0) is None


@pytest.mark.parametrize("statistic", STATISTICS)
def test_twenty_thousand_values_are_no_burden(statistic: Statistic) -> None:
    """Resampled at once, the mean alone would take 600 MiB a side."""
    cell, base = latencies(20_000, 1, 1.1), latencies(20_000, 2)
    tracemalloc.start()
    found = estimate(cell, base, statistic)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.ci95[0] < 1.1 < found.ci95[1] or abs(found.value - 1.1) < 0.05
    assert peak < 64 * 2**20


@pytest.mark.parametrize(("statistic", "n"), [("p50", 50), ("p90", 100), ("p99", 500), ("mean", 50)])
def test_coverage_and_size_at_the_smallest_sizes(statistic: Statistic, n: int) -> None:
    """Of 250 intervals about 95 % hold the true ratio, and the test of it rejects about 5 % of the time."""
    covered, above, below = [], [], []
    for seed in range(250):
        found = estimate(latencies(n, 2 * seed, 1.25), latencies(n, 2 * seed + 1), statistic, seed)
        covered.append(found.ci95[0] <= 1.25 <= found.ci95[1])
        above.append(found.p_above(1.25) <= 0.05)
        below.append(found.p_below(1.25) <= 0.05)
    assert 0.90 <= np.mean(covered) <= 0.99
    assert 0.01 <= np.mean(above) <= 0.09
    assert 0.01 <= np.mean(below) <= 0.09


def test_a_slow_cell_is_seen() -> None:
    found = [
        estimate(latencies(200, 2 * s, 1.5), latencies(200, 2 * s + 1), "p50", s).p_above(1.2) <= 0.01
        for s in range(40)
    ]
    assert np.mean(found) > 0.9


# Throughput


def closed_loop(n: int, workers: int, scale: float, seed: int) -> list[float]:
    """Completion times of a closed loop: each worker starts its next request when the last one is done."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(scale * rng.lognormal(0, 0.4, (workers, 2 * n // workers + 1)), axis=1).ravel()
    return list(np.sort(ends)[:n])


def test_throughput_of_a_steady_run() -> None:
    """One request a second against one every two; the interval is a point, the value exact."""
    found = throughput([float(i) for i in range(1, 401)], [2.0 * i for i in range(1, 301)], 0)
    assert found is not None
    assert found.value == pytest.approx(2) and found.ci95 == pytest.approx((2, 2))


def test_throughput_interval_equals_a_bootstrap_of_slices() -> None:
    """Of 201 completions all are used: 20 slices of 10 gaps."""
    cell, base = closed_loop(201, 4, 1.2, 1), closed_loop(201, 4, 1.0, 2)
    found = throughput(cell, base, 0)
    assert found is not None
    assert found.value == pytest.approx((base[-1] - base[0]) / (cell[-1] - cell[0]))
    mine, theirs = np.diff(cell[::10]), np.diff(base[::10])
    expected = oracle.bootstrap(
        (theirs, mine),
        lambda x, y, axis=-1: np.mean(x, axis=axis) / np.mean(y, axis=axis),
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(3),
    ).confidence_interval
    assert found.ci95 == pytest.approx(tuple(expected), abs=0.08 * (expected.high - expected.low))


def test_throughput_needs_200_completions_and_some_time() -> None:
    assert throughput(closed_loop(199, 4, 1, 1), closed_loop(400, 4, 1, 2), 0) is None
    assert throughput(closed_loop(400, 4, 1, 1), closed_loop(199, 4, 1, 2), 0) is None
    assert throughput(closed_loop(200, 4, 1, 1), closed_loop(200, 4, 1, 2), 0) is not None
    assert throughput([1.0] * 300, closed_loop(300, 4, 1, 2), 0) is None
    assert throughput(closed_loop(300, 4, 1, 2), [1.0] * 300, 0) is None


@pytest.mark.parametrize(("n", "workers"), [(200, 4), (400, 16), (1319, 32)])
def test_coverage_and_size_of_throughput(n: int, workers: int) -> None:
    covered, below = [], []
    for seed in range(200):
        found = throughput(closed_loop(n, workers, 1.25, 2 * seed), closed_loop(n, workers, 1, 2 * seed + 1), seed)
        assert found is not None
        covered.append(found.ci95[0] <= 0.8 <= found.ci95[1])
        below.append(found.p_below(0.8) <= 0.05)
    assert 0.90 <= np.mean(covered) <= 1
    assert np.mean(below) <= 0.09


# Stalls


@pytest.mark.parametrize(("n", "seed"), [(200, 1), (400, 2), (1319, 3)])
def test_stalls_of_a_few_requests_are_seen_where_the_median_sees_nothing(n: int, seed: int) -> None:
    base, cell = latencies(n, seed), latencies(n, seed + 100)
    stalled = [10 * x if i % 20 == 0 else x for i, x in enumerate(cell)]
    found = stalls(stalled, base, 2)
    assert found is not None and found.p_value < 0.01
    assert found.limit == pytest.approx(2 * float(np.percentile(base, 99)))
    assert (found.cell_n, found.base_n) == (n, n)
    assert found.cell_slow == sum(x > found.limit for x in stalled) >= 0.04 * n
    assert found.base_slow == sum(x > found.limit for x in base) == 0
    assert found.p_value == stats.fisher_excess(found.cell_slow, n, 0, n)
    assert estimate(stalled, base, "p50").p_above(1.2) > 0.05


def test_stalls_need_100_requests_a_side() -> None:
    assert stalls(latencies(99, 1), latencies(100, 2), 2) is None
    assert stalls(latencies(100, 1), latencies(99, 2), 2) is None
    assert stalls(latencies(100, 1), latencies(100, 2), 2) is not None


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("tail", ["lognormal", "pareto"])
def test_a_limit_taken_from_the_baseline_raises_no_false_alarm(factor: float, tail: str) -> None:
    """Both sides alike, the tail light or heavy: Fisher's p-value is at most 0.05 at most 5 % of the time."""
    rng = np.random.default_rng(9)
    alarms = []
    for _ in range(1500):
        draws = rng.lognormal(0, 0.6, (2, 300)) if tail == "lognormal" else 1 + rng.pareto(1.5, (2, 300))
        found = stalls(list(draws[0]), list(draws[1]), factor)
        assert found is not None
        alarms.append(found.p_value <= 0.05)
    assert np.mean(alarms) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)
