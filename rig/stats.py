"""The tests and intervals behind the verdicts; pure.

Throughout, n questions were put to a baseline and to a cell; b counts those that only the baseline
answered right, c those that only the cell did; the drop is D = P(b) - P(c), a share of questions.
docs/statistics.md says why each method was chosen and proves the bound of the drop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

POWER = 0.8
"""The chance of being detected that makes a drop count as detectable."""

QUESTIONS_CAP = 20_000
"""Beyond this many questions a forecast of what a decision needs is no help to anybody."""

_GAMMA_SHARE = 1e-3  # of alpha, spent on bounding the rate of gains (Berger and Boos 1994)
_TAIL = 1e-12  # probability outside the summed window, added back so that the bound stays valid
_TINY = 1e-12  # a rate of gains that stands for the limit at 0


def mcnemar_no_drop(b: int, c: int) -> float:
    """One-sided exact McNemar p-value of "the cell does not do worse": P(X >= b), X ~ Bin(b + c, 1/2)."""
    return float(stats.binom.sf(b - 1, b + c, 0.5))


def mcnemar_no_gain(b: int, c: int) -> float:
    """One-sided exact McNemar p-value of "the cell does not do better"."""
    return mcnemar_no_drop(c, b)


def wilson(k: int, n: int, level: float = 0.95) -> tuple[float, float] | None:
    """Wilson score interval of k successes in n; None when n is 0. Source: Wilson 1927."""
    if n == 0:
        return None
    z = float(stats.norm.isf((1 - level) / 2))
    centre = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    # The ends are exact where rounding would leave them a hair off.
    return (0.0 if k == 0 else centre - half, 1.0 if k == n else centre + half)


def binomial_upper(k: int, n: int, alpha: float) -> float:
    """One-sided Clopper-Pearson upper bound of a rate at level 1 - alpha; 1 - alpha^(1/n) for k = 0."""
    return 1.0 if k >= n else float(special.betaincinv(k + 1, n - k, 1 - alpha))


def fisher_excess(k1: int, n1: int, k0: int, n0: int) -> float:
    """One-sided Fisher exact p-value of "k1 of n1 is no higher a rate than k0 of n0"."""
    return float(stats.hypergeom.sf(k1 - 1, n1 + n0, k1 + k0, n1))


def event_excess(k1: int, exposure1: float, k0: int, exposure0: float) -> float:
    """One-sided p-value of "events came no faster", two Poisson counts over their exposures.

    Given their sum, the first is Bin(k1 + k0, exposure1 / (exposure1 + exposure0)) (Przyborowski and Wilenski 1940).
    """
    return float(stats.binom.sf(k1 - 1, k1 + k0, exposure1 / (exposure1 + exposure0)))


def leading(led: int, moved: int, rounds: int) -> float:
    """One-sided p-value of "the cell is no likelier to have the largest shift than each of `rounds` others".

    Of `moved` questions it has it in `led`: given exchangeable askings P(X >= led), X ~ Bin(moved, 1 / (rounds + 1)),
    at most, as ties count for the others. It asks nothing of how shifts are distributed over questions.
    """
    return float(stats.binom.sf(led - 1, moved, 1 / (rounds + 1)))


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile (0 to 100) by linear interpolation between order statistics, numpy's default."""
    return float(np.percentile(np.asarray(values, dtype=np.float64), q))


# The score interval of a paired difference


def _score_z(x: npt.ArrayLike, y: npt.ArrayLike, n: int, delta: float) -> Floats:
    """Tango's statistic of H0: P(x) - P(y) = delta, for counts x and y of the two kinds of discordant pairs.

    (x - y - n delta) / sqrt(n (2 q + delta (1 - delta))), q the maximum likelihood estimate of P(y) under H0.
    Source: Tango 1998, Statistics in Medicine 17, 891-908. Where the variance is 0 the statistic is 0 or infinite.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    minus_b = xs + ys - (2 * n - xs + ys) * delta
    minus_c = ys * delta * (1 - delta)
    q = (np.sqrt(np.maximum(minus_b**2 + 8 * n * minus_c, 0)) + minus_b) / (4 * n)
    variance = np.maximum(n * (2 * q + delta * (1 - delta)), 0)
    gap = xs - ys - n * delta
    with np.errstate(divide="ignore", invalid="ignore"):
        z = gap / np.sqrt(variance)
    return np.where(np.abs(gap) < 1e-12, 0.0, z)


def _score_upper(x: int, y: int, n: int, alpha: float) -> float:
    """One-sided score limit: the largest delta whose statistic is not below -z(alpha)."""
    z = float(stats.norm.isf(alpha))
    estimate = (x - y) / n
    if estimate >= 1:
        return 1.0
    low, high = estimate + 1e-13, 1 - 1e-13

    def excess(delta: float) -> float:
        return float(_score_z(x, y, n, delta)) + z

    if excess(high) > 0:
        return 1.0
    return float(optimize.brentq(excess, low, high, xtol=1e-13))


def paired_difference_interval(b: int, c: int, n: int, level: float = 0.95) -> tuple[float, float] | None:
    """Tango's two-sided score interval of delta = (c - b) / n; None when n is 0. A drop is negative."""
    if n == 0:
        return None
    tail = (1 - level) / 2
    return (-_score_upper(b, c, n, tail), _score_upper(c, b, n, tail))


# The upper bound of the drop


@dataclass(frozen=True)
class _Region:
    """All results with at least one gain that look no worse than the one observed, within a window of c.

    A result (x, y) belongs when x <= limit[y]; `low` and `high` bound the rate of gains.
    """

    n: int
    gains: Ints
    limit: Ints
    low: float
    high: float
    gamma: float

    def probability(self, drop: float) -> float:
        """Largest chance of the region given a gain, over the rates of gains that remain possible."""
        high = min(self.high, (1 - drop) / 2)
        if high <= 0 or self.low > high:
            return 0.0
        # sqrt(n p) has a standard deviation near 1/2 whatever p is, so an even grid on it misses no bump.
        left, right = math.sqrt(self.n * min(max(self.low, _TINY), high)), math.sqrt(self.n * high)
        grid = np.linspace(left, right, max(3, math.ceil((right - left) / 0.1)))
        values = self._chance(drop, grid**2 / self.n)
        best = int(values.argmax())

        def negative(root: float) -> float:
            return -float(self._chance(drop, np.array([root * root / self.n]))[0])

        around = (float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)]))
        refined = optimize.minimize_scalar(negative, bounds=around, method="bounded")
        return max(float(values[best]), -float(refined.fun)) + _TAIL

    def _chance(self, drop: float, gain_rates: Floats) -> Floats:
        rate = gain_rates[:, None]
        loss_given_no_gain = np.clip((drop + rate) / (1 - rate), 0, 1)
        of_gains = stats.binom.pmf(self.gains[None, :], self.n, rate) / -np.expm1(self.n * np.log1p(-rate))
        trials = (self.n - self.gains)[None, :]
        of_losses = special.bdtr(np.maximum(self.limit, 0)[None, :].astype(np.float64), trials, loss_given_no_gain)
        return np.asarray((of_gains * np.where(self.limit < 0, 0.0, of_losses)).sum(axis=1), dtype=np.float64)


def _gain_rate_bounds(c: int, n: int, gamma: float) -> tuple[float, float]:
    """Two-sided exact bounds of the rate of gains at level 1 - gamma, given that there is at least one."""

    def any_gain(p: float) -> float:
        return -math.expm1(n * math.log1p(-p))

    def too_low(p: float) -> float:
        return float(stats.binom.sf(c - 1, n, p)) / any_gain(p) - gamma / 2

    def too_high(p: float) -> float:
        return 1 - float(stats.binom.sf(c, n, p)) / any_gain(p) - gamma / 2

    top = 1 - 1e-12
    low = 0.0 if c == 1 else float(optimize.brentq(too_low, _TINY, top, xtol=1e-15))
    high = 1.0 if c == n else float(optimize.brentq(too_high, _TINY, top, xtol=1e-15))
    return low, high


def _region(b: int, c: int, n: int, alpha: float) -> _Region:
    """Results (x, y), y >= 1, whose score limit is no higher than that of (b, c)."""
    gamma = alpha * _GAMMA_SHARE
    low, high = _gain_rate_bounds(c, n, gamma)
    first = max(1, int(stats.binom.ppf(_TAIL / 2, n, low)))
    last = n if high == 1 else int(stats.binom.isf(_TAIL / 2, n, high))
    gains = np.arange(min(first, c), max(last, c) + 1, dtype=np.int64)
    observed = _score_upper(b, c, n, alpha)
    # The limit of (x, y) is no higher than `observed` exactly when its statistic there is no higher, and the
    # statistic grows with x: bisect for the largest x of every y.
    cut = float(_score_z(b, c, n, observed)) + 1e-9
    inside, outside = np.full(gains.shape, -1, dtype=np.int64), n - gains + 1
    while bool(np.any(outside - inside > 1)):
        middle = (inside + outside) // 2
        fits = (middle < 0) | (_score_z(np.maximum(middle, 0), gains, n, observed) <= cut)
        inside, outside = np.where(fits, middle, inside), np.where(fits, outside, middle)
    return _Region(n, gains, np.maximum(inside, np.where(gains == c, b, -1)), low, high, gamma)


def drop_upper_bound(b: int, c: int, n: int, alpha: float) -> float | None:
    """One-sided upper bound of the drop at level 1 - alpha, exact over every rate of flips; None when n is 0.

    Without a gain (c = 0) it is the Clopper-Pearson bound of the losses, 1 - alpha^(1/n) when b is 0 too;
    with one, Buehler's bound for the order of Tango's limit, over the rates of gains not ruled out
    (docs/statistics.md). It may be negative, and is never below the observed drop.
    """
    if n == 0:
        return None
    if c == 0:
        return binomial_upper(b, n, alpha)
    region = _region(b, c, n, alpha)
    level = alpha - region.gamma

    def excess(drop: float) -> float:
        return region.probability(drop) - level

    low, high = max((b - c) / n, _TINY - 1), 1 - _TINY
    if excess(low) <= 0:
        return (b - c) / n
    if excess(high) >= 0:
        return 1.0
    return float(optimize.brentq(excess, low, high, xtol=1e-7))


def drop_below(b: int, c: int, n: int, margin: float, alpha: float) -> bool:
    """Whether the upper bound of the drop is below `margin`; the same answer as the bound, for less work."""
    if n == 0 or (b - c) / n >= margin:
        return False
    if c == 0:
        return binomial_upper(b, n, alpha) < margin
    region = _region(b, c, n, alpha)
    return region.probability(margin) < alpha - region.gamma


# What a comparison could have seen, and what it still needs


def drop_power(drop: float, discordance: float, n: int, alpha: float) -> float:
    """Chance that exact McNemar rejects "no drop" at `alpha` over n questions.

    `discordance` is the share of questions that flip either way; a drop larger than it is all losses.
    """
    share = max(discordance, drop)
    if share == 0:
        return 0.0
    flips = np.arange(n + 1)
    critical = stats.binom.isf(alpha, flips, 0.5) + 1
    loss_share = (share + drop) / (2 * share)
    return float((stats.binom.pmf(flips, n, share) * stats.binom.sf(critical - 1, flips, loss_share)).sum())


def min_detectable_drop(b: int, c: int, n: int, alpha: float, power: float = POWER) -> float | None:
    """Smallest true drop that n such questions would show with chance `power`; None when none would.

    The discordance is taken at its Clopper-Pearson upper bound at level 1 - alpha, never as observed.
    """
    if n == 0:
        return None
    discordance = binomial_upper(b + c, n, alpha)

    def missing(drop: float) -> float:
        return drop_power(drop, discordance, n, alpha) - power

    if missing(1.0) < 0:
        return None
    return float(optimize.brentq(missing, 0.0, 1.0, xtol=1e-6))


@dataclass(frozen=True)
class Forecast:
    """How many more questions would decide, and which way, if the flips keep coming at the observed rates."""

    more: int
    towards: Literal["pass", "regression"]


def questions_needed(b: int, c: int, n: int, margin: float, alpha: float, cap: int = QUESTIONS_CAP) -> Forecast | None:
    """Fewest further questions until pass or regression at the observed rates; None when `cap` is not enough.

    For a comparison that is undecided now. Losses and gains are scaled with the questions and rounded
    against the decision in question; with nothing observed it is the fewest for a run without a flip.
    """
    asked = max(n, 1)

    def passes(total: int) -> bool:
        losses, gains = math.ceil(b * total / asked - 1e-9), math.floor(c * total / asked + 1e-9)
        return drop_below(losses, gains, total, margin, alpha)

    def regresses(total: int) -> bool:
        losses, gains = math.floor(b * total / asked + 1e-9), math.ceil(c * total / asked - 1e-9)
        return mcnemar_no_drop(losses, gains) <= alpha

    options: list[Forecast] = []
    if (b - c) / asked < margin:
        total = _first(passes, n + 1, cap)
        options += [Forecast(total - n, "pass")] if total else []
    if b > c:
        total = _first(regresses, n + 1, cap)
        options += [Forecast(total - n, "regression")] if total else []
    return min(options, key=lambda option: option.more, default=None)


def _first(decided: Callable[[int], bool], low: int, cap: int) -> int | None:
    """Smallest total from `low` to `cap` that decides, taking `decided` to stay true once it is (to rounding)."""
    step, high = max(1, low // 8), low
    while not decided(high):
        if high >= cap:
            return None
        low, high = high + 1, min(high + step, cap)
        step *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) else (middle + 1, high)
    return low
