"""How often the verdict rule alarms for nothing, and what it finds, by simulation.

    python -m benchmarks.operating_characteristics

Prints the tables of docs/operating.md, which says how to read them and how the pairs are drawn.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats as distributions

from rig import stats
from rig.stats_family import holm
from rig.stats_sequential import log_e_drop, log_e_no_drop

Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int16]
Bools = npt.NDArray[np.bool_]

SEED = 20_250
SWEEPS = 10_000
CELLS = 4
ALPHA = 0.05
MARGIN = 0.02
TOLERANCE = 0.05
ACCURACY = 0.87
SIZES = (100, 200, 400, 1319)
FLIPS = (0.0, 0.01, 0.02, 0.04, 0.08)
DROPS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.10)
_CHUNK = 500  # sweeps whose single questions are held in memory at a time


@dataclass(frozen=True)
class Setting:
    """n questions; a share `flips` of them changes on repeat; the first cell loses `drop` more."""

    n: int
    flips: float
    drop: float = 0.0

    def rng(self, rule: int) -> np.random.Generator:
        """Its own stream, so that one setting can be repeated without the others."""
        return np.random.default_rng([SEED, rule, self.n, round(1000 * self.flips), round(1000 * self.drop)])

    @property
    def kinds(self) -> tuple[float, float, float, float]:
        """Shares of questions: unstable and right on the baseline, unstable and wrong, always right, always wrong."""
        return self.flips, self.flips, ACCURACY - self.flips, 1 - ACCURACY - self.flips

    @property
    def damage(self) -> float:
        """Chance that the damaged cell turns an always right question wrong."""
        return self.drop / (ACCURACY - self.flips)


@dataclass(frozen=True)
class Fixed:
    """Shares of sweeps at a fixed n, for the paired rule, the tolerance and the z-test in that order.

    `alarms`: some cell alarms; `named`: the first cell does. `passes`: the first cell passes; `all_pass`: all do.
    """

    alarms: tuple[float, float, float]
    named: tuple[float, float, float]
    passes: float
    all_pass: float


@dataclass(frozen=True)
class Stopped:
    """Under continuous looking: shares of sweeps, and the mean number of questions of the first cell."""

    alarms: float
    named: float
    passes: float
    questions: float


def draw(setting: Setting, sweeps: int) -> tuple[Ints, Ints, Ints]:
    """Losses and gains [sweep, cell], and right answers of the baseline [sweep]."""
    rng = setting.rng(0)
    kinds = rng.multinomial(setting.n, setting.kinds, size=sweeps)
    losses = rng.binomial(kinds[:, 0, None], 0.5, size=(sweeps, CELLS))
    gains = rng.binomial(kinds[:, 1, None], 0.5, size=(sweeps, CELLS))
    losses[:, 0] += rng.binomial(kinds[:, 2], setting.damage)
    return losses, gains, kinds[:, 0] + kinds[:, 2]


@functools.cache
def mcnemar(b: int, c: int) -> float:
    return stats.mcnemar_no_drop(b, c)


@functools.cache
def most_losses(n: int, c: int) -> int:
    """The most losses that pass beside c gains, -1 for none; the bound of the drop grows with the losses."""
    b = most_losses(n, c - 1) if c else -1
    while stats.drop_below(b + 1, c, n, MARGIN, ALPHA):
        b += 1
    return b


def paired_alarms(losses: Ints, gains: Ints) -> Bools:
    """Cells [sweep, cell] whose exact McNemar p-value, Holm-adjusted over the sweep, is at most ALPHA."""
    width = int(gains.max()) + 1
    pairs, place = np.unique(losses * width + gains, return_inverse=True)
    p_values = np.array([mcnemar(*divmod(int(pair), width)) for pair in pairs])[place].reshape(losses.shape)
    alarms = np.zeros(losses.shape, dtype=np.bool_)
    # An adjusted p-value is never below the plain one, so most sweeps need no adjusting.
    for sweep in np.flatnonzero(p_values.min(axis=1) <= ALPHA):
        alarms[sweep] = [p <= ALPHA for p in holm(dict(enumerate(p_values[sweep].tolist()))).values()]
    return alarms


def unpaired_alarms(right: Ints, base: Ints, n: int) -> Bools:
    """One-sided z-test of two independent shares with the pooled variance, at ALPHA in every cell."""
    pooled = (right + base) / (2 * n)
    spread = np.sqrt(pooled * (1 - pooled) * 2 / n)
    gap = (base - right) / n
    return np.asarray(gap > distributions.norm.isf(ALPHA) * spread, dtype=np.bool_)


@functools.cache
def fixed(setting: Setting, sweeps: int = SWEEPS) -> Fixed:
    """What the rules say after all n questions."""
    losses, gains, right = draw(setting, sweeps)
    base = np.broadcast_to(right[:, None], losses.shape)
    paired = paired_alarms(losses, gains)
    tolerance: Bools = np.asarray((losses - gains) / setting.n > TOLERANCE)
    unpaired = unpaired_alarms(base - losses + gains, base, setting.n)
    limits = np.array([most_losses(setting.n, c) for c in range(int(gains.max()) + 1)])
    passes: Bools = np.asarray((losses <= limits[gains]) & ~paired)
    return Fixed(
        alarms=(_share(paired.any(axis=1)), _share(tolerance.any(axis=1)), _share(unpaired.any(axis=1))),
        named=(_share(paired[:, 0]), _share(tolerance[:, 0]), _share(unpaired[:, 0])),
        passes=_share(passes[:, 0]),
        all_pass=_share(passes.all(axis=1)),
    )


def _share(sweeps: Bools | np.bool_) -> float:
    return float(sweeps.mean())


# Stopping as soon as the verdict is decided


def questions_to_pass(b: Ints, c: Ints, n: int) -> Ints:
    """Fewest questions that pass, elementwise; n + 1 where n are not enough. The evidence grows with each tie."""
    low, high = b + c, np.full(b.shape, n + 1)
    while bool(np.any(low < high)):
        middle = (low + high) // 2
        enough = log_e_drop(b, c, np.maximum(middle, b + c), MARGIN) >= -math.log(ALPHA)
        low, high = np.where(enough | (low >= high), low, middle + 1), np.where(enough, middle, high)
    return high


def paths(setting: Setting, cells: int, sweeps: int) -> Iterator[tuple[Counts, Counts]]:
    """Losses and gains so far [sweep, cell, question], a chunk of sweeps at a time; the baseline is shared."""
    rng = setting.rng(1)
    unstable_right, unstable, always_right = np.cumsum(setting.kinds[:3], dtype=np.float32)
    for start in range(0, sweeps, _CHUNK):
        kind = rng.random((min(_CHUNK, sweeps - start), 1, setting.n), dtype=np.float32)
        draws = rng.random((len(kind), cells, setting.n), dtype=np.float32)
        heads = draws < 0.5
        lost, won = heads & (kind < unstable_right), heads & (kind >= unstable_right) & (kind < unstable)
        right = (kind[:, 0] >= unstable) & (kind[:, 0] < always_right)
        lost[:, 0] |= right & (draws[:, 0] < setting.damage)
        yield lost.cumsum(axis=2, dtype=np.int16), won.cumsum(axis=2, dtype=np.int16)


def stopped(setting: Setting, cells: int = CELLS, sweeps: int = SWEEPS) -> Stopped:
    """What the sequential rule says of up to n questions, each cell of a sweep of CELLS at its share of ALPHA."""
    alarms, named, passes, questions = 0, 0, 0, 0
    asked = np.arange(1, setting.n + 1, dtype=np.int16)
    for losses, gains in paths(setting, cells, sweeps):
        b, c = np.meshgrid(np.arange(losses.max() + 1), np.arange(gains.max() + 1), indexing="ij")
        proof = log_e_no_drop(b, c) >= -math.log(ALPHA / CELLS)
        needed = questions_to_pass(b, c, setting.n).astype(np.int16)
        seen = losses * np.int32(b.shape[1]) + gains
        regression = _first_true(proof.ravel()[seen])
        passed = _first_true(needed.ravel()[seen] <= asked)
        alarm = (regression <= passed) & (regression <= setting.n)
        alarms += int(alarm.any(axis=1).sum())
        named += int(alarm[:, 0].sum())
        passes += int((passed < regression)[:, 0].sum())
        questions += int(np.minimum(np.minimum(regression, passed), setting.n)[:, 0].sum())
    return Stopped(alarms / sweeps, named / sweeps, passes / sweeps, questions / sweeps)


def _first_true(found: Bools) -> Ints:
    """Number, from 1, of the first look that is true along the last axis; one more than there are where none is."""
    first: Ints = np.where(found.any(axis=-1), found.argmax(axis=-1) + 1, found.shape[-1] + 1)
    return first


# The tables


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def row(*entries: str) -> str:
    return f"| {' | '.join(entries)} |"


def clean_row(n: int, flips: float) -> str:
    """Sweeps without a true difference."""
    found = fixed(Setting(n, flips))
    shares = (*found.alarms, found.passes, found.all_pass)
    return row(str(n), f"{100 * flips:g} %", *map(percent, shares))


def damage_rows(n: int, flips: float) -> list[str]:
    """How often the damaged cell is named by each rule, and how often it passes."""
    found = [fixed(Setting(n, flips, drop)) for drop in DROPS]
    kinds = [
        ("paired, Holm", [f.named[0] for f in found]),
        ("tolerance 0.05", [f.named[1] for f in found]),
        ("unpaired z", [f.named[2] for f in found]),
        ("*passes*", [f.passes for f in found]),
    ]
    return [row(f"{100 * flips:g} %", kind, *map(percent, shares)) for kind, shares in kinds]


def stopped_row(flips: float, drop: float) -> str:
    """The sequential rule over at most the largest n, and the fixed rule at that n."""
    setting = Setting(SIZES[-1], flips, drop)
    found = stopped(setting, cells=1) if drop else stopped(setting)
    at_once = fixed(setting)
    alarms = "" if drop else f"{percent(found.alarms)} ({percent(at_once.alarms[0])})"
    named, passes = (
        f"{percent(mine)} ({percent(other)})"
        for mine, other in ((found.named, at_once.named[0]), (found.passes, at_once.passes))
    )
    return row(f"{100 * flips:g} %", f"{100 * drop:g}", named, passes, f"{found.questions:.0f}", alarms)


def header(*entries: str) -> str:
    return f"{row(*entries)}\n{'|---' * len(entries)}|"


def tables() -> Iterator[str]:
    """Lines of the three parts of docs/operating.md that this script makes."""
    yield header("n", "flips", "paired, Holm", "tolerance 0.05", "unpaired z", "a cell passes", "all four pass")
    for n in SIZES:
        yield from (clean_row(n, flips) for flips in FLIPS)
    for n in SIZES:
        yield f"\nn = {n}\n"
        yield header("flips", "rule", *(f"{100 * drop:g} points" for drop in DROPS))
        for flips in FLIPS:
            yield from damage_rows(n, flips)
    yield ""
    yield header("flips", "drop, points", "regression", "pass", "questions, mean", "any of four alarms")
    for flips in FLIPS:
        yield from (stopped_row(flips, drop) for drop in DROPS)


if __name__ == "__main__":
    for line in tables():
        print(line, flush=True)
