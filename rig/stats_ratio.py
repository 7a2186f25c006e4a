"""How much slower, by bootstrap: ratios of latencies and of throughput to the baseline's; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from rig import stats

Floats = npt.NDArray[np.float64]
Statistic = Literal["p50", "p90", "p99", "mean"]

RESAMPLES = 40_000
"""Of percentiles and throughput, which are cheap: the smallest p-value still alarms in a family of 2,000 tests."""

RESAMPLES_OF_MEANS = 4000
"""Of the mean, where one costs as much as there are values."""

MIN_REQUESTS: dict[Statistic, int] = {"p50": 50, "p90": 100, "p99": 500, "mean": 50}
"""Requests a side below which a statistic has no interval worth the name: 5 lie beyond a p99 of 500."""

MIN_REQUESTS_STALLS = 100
MIN_REQUESTS_THROUGHPUT = 200
SLICES = 20
"""Batches of one run, few and long because neighbours depend on each other (Schmeiser 1982, Operations Research 30)."""

_CHUNK = 1 << 20  # values resampled at a time: 8 MiB
_QUANTILES: dict[Statistic, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class RatioEstimate:
    """A ratio to the baseline, its 95 % percentile bootstrap interval, and its resampled values in rising order."""

    value: float
    ci95: tuple[float, float]
    resampled: Floats = field(repr=False, compare=False)

    def p_above(self, gate: float) -> float:
        """One-sided bootstrap p-value of "the true ratio is at most `gate`"; never below 1 / (resamples + 1)."""
        return float((1 + np.searchsorted(self.resampled, gate, side="right")) / (len(self.resampled) + 1))

    def p_below(self, gate: float) -> float:
        """One-sided bootstrap p-value of "the true ratio is at least `gate`"; never below 1 / (resamples + 1)."""
        reached = len(self.resampled) - np.searchsorted(self.resampled, gate, side="left")
        return float((1 + reached) / (len(self.resampled) + 1))


@dataclass(frozen=True)
class Stalls:
    """Requests slower than `limit`: `cell_slow` of `cell_n`, `base_slow` of `base_n`.

    `p_value` is Fisher's, one-sided, of "the cell stalls no more often".
    """

    limit: float
    cell_slow: int
    cell_n: int
    base_slow: int
    base_n: int
    p_value: float


def ratio(cell: Sequence[float], base: Sequence[float], statistic: Statistic, seed: int) -> RatioEstimate | None:
    """The cell's statistic over the baseline's, both of latencies in one unit; the two sides are resampled apart.

    None with fewer than MIN_REQUESTS a side, or where the baseline's statistic is or may be 0. Percentiles
    interpolate between order statistics (`stats.percentile`). Raises ValueError for a latency that is negative
    or not finite. Source: Efron and Tibshirani 1993, chapter 13 (percentile interval).
    """
    cells, bases = _latencies(cell), _latencies(base)
    if min(len(cells), len(bases)) < MIN_REQUESTS[statistic]:
        return None
    rng = np.random.default_rng(seed)
    if statistic == "mean":
        resampled, of_base = (_means(values, RESAMPLES_OF_MEANS, rng) for values in (cells, bases))
        return _estimate(float(cells.mean()), float(bases.mean()), resampled, of_base)
    q = _QUANTILES[statistic]
    resampled, of_base = (_quantiles(values, q, rng) for values in (cells, bases))
    return _estimate(stats.percentile(cell, 100 * q), stats.percentile(base, 100 * q), resampled, of_base)


def throughput(cell_ends: Sequence[float], base_ends: Sequence[float], seed: int) -> RatioEstimate | None:
    """The cell's requests/s over the baseline's, from the times (seconds) at which requests were completed.

    A closed-loop run is one number, so its spread is taken from within: SLICES consecutive slices of equal
    numbers of completions, whose durations are resampled (batch means). What is left over, less than a slice,
    is dropped at the start, where the load ramps up. None with fewer than MIN_REQUESTS_THROUGHPUT completions a
    side, or where a side's took no time. Raises ValueError for a time that is negative or not finite.
    """
    cells, bases = _latencies(cell_ends), _latencies(base_ends)
    if min(len(cells), len(bases)) < MIN_REQUESTS_THROUGHPUT:
        return None
    rng = np.random.default_rng(seed)
    mine, theirs = _gaps(cells), _gaps(bases)
    if not theirs.any():
        return None
    return _estimate(
        float(theirs.mean()), float(mine.mean()), _means(theirs, RESAMPLES, rng), _means(mine, RESAMPLES, rng)
    )


def stalls(cell: Sequence[float], base: Sequence[float], factor: float) -> Stalls | None:
    """How many requests of each side took longer than `factor` times the baseline's p99; None with fewer than 100.

    Sees what a median cannot: a stall that hits a few of a hundred requests.
    """
    cells, bases = _latencies(cell), _latencies(base)
    if min(len(cells), len(bases)) < MIN_REQUESTS_STALLS:
        return None
    limit = factor * stats.percentile(base, 99)
    slow, slow_base = int((cells > limit).sum()), int((bases > limit).sum())
    p_value = stats.fisher_excess(slow, len(cells), slow_base, len(bases))
    return Stalls(limit, slow, len(cells), slow_base, len(bases), p_value)


def _latencies(values: Sequence[float]) -> Floats:
    found = np.sort(np.asarray(values, dtype=np.float64))
    if not np.all(np.isfinite(found)) or np.any(found < 0):
        raise ValueError("latencies and times must be finite and not negative")
    return found


def _gaps(ends: Floats) -> Floats:
    """Seconds that each completion took, on average over each of the slices."""
    size = (len(ends) - 1) // SLICES
    edges = ends[::-1][: size * SLICES + 1 : size][::-1]
    return np.diff(edges) / size


def _estimate(value: float, base: float, resampled: Floats, resampled_base: Floats) -> RatioEstimate | None:
    if base <= 0 or bool(np.any(resampled_base <= 0)):
        return None
    ratios = np.sort(resampled / resampled_base)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return RatioEstimate(value / base, (float(low), float(high)), ratios)


def _means(values: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Means of `count` resamples, a chunk at a time so that memory does not grow with the values."""
    rows = max(1, _CHUNK // len(values))
    parts = [
        values[rng.integers(0, len(values), size=(min(rows, count - start), len(values)))].mean(axis=1)
        for start in range(0, count, rows)
    ]
    return np.concatenate(parts)


def _quantiles(values: Floats, q: float, rng: np.random.Generator) -> Floats:
    """Quantiles of resamples of sorted values, drawn without resampling.

    A resample takes the values at floor(n U) for n uniform U, and sorting the U sorts it: the k-th smallest value
    stands at floor(n U(k)), with U(k) ~ Beta(k, n + 1 - k), and given it 1 - U(k+1) is 1 - U(k) times a
    Beta(n - k, 1).
    """
    n = len(values)
    place = q * (n - 1)
    k = int(place) + 1
    first = rng.beta(k, n + 1 - k, size=RESAMPLES)
    second = 1 - (1 - first) * rng.beta(n - k, 1, size=RESAMPLES)
    lower, upper = (values[np.minimum((u * n).astype(np.int64), n - 1)] for u in (first, second))
    return np.asarray(lower + (place - int(place)) * (upper - lower), dtype=np.float64)
