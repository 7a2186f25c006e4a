"""Decisions on paired outcomes that stay valid however often one looks; pure.

Each of the two null hypotheses has an e-process: a non-negative quantity that starts at 1 and, were the hypothesis
true, would exceed 1 / alpha at any time at all with chance at most alpha (Ville 1939). docs/statistics.md has the
proof, the choice of weights, and what looking all the time costs beside a test at a fixed number of questions.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

Floats = npt.NDArray[np.float64]
Outcome = Literal["loss", "gain", "tie"]

# Weight of "every flip is a loss"; the rest is even over all shares of losses from 1/2 to 1. With it 5 losses without
# a gain are proof at 0.05 and 7 at 0.05 / 4, as for exact McNemar at a fixed number of questions.
_ONLY_LOSSES = 0.6

# The boldest bet passes a run without a flip in 197 questions at a margin of 0.02; the timid ones bear flips.
_BETS = np.array([0.9, 0.6, 0.4, 0.25, 0.15, 0.08])  # shares of the largest bet
_WEIGHTS = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])


def log_e_no_drop(b: npt.ArrayLike, c: npt.ArrayLike) -> Floats:
    """Log of the e-process of "losses are no likelier than gains" after b losses and c gains, elementwise.

    A mixture over the share p of losses among flips, against 1/2, of the likelihood ratios (2 p)^b (2 - 2 p)^c:
    an atom at p = 1 and, in closed form with the incomplete beta function, the uniform on [1/2, 1]
    (Robbins 1970, Annals of Mathematical Statistics 41).
    """
    losses, gains = np.asarray(b, dtype=np.float64), np.asarray(c, dtype=np.float64)
    with np.errstate(divide="ignore"):
        upper_half = np.log(special.betainc(gains + 1, losses + 1, 0.5))
        even = (losses + gains + 1) * math.log(2) + special.betaln(losses + 1, gains + 1) + upper_half
        only = np.where(gains > 0, -np.inf, losses * math.log(2))
        mixed = np.logaddexp(math.log(_ONLY_LOSSES) + only, math.log(1 - _ONLY_LOSSES) + even)
    return np.asarray(mixed, dtype=np.float64)


def log_e_drop(b: npt.ArrayLike, c: npt.ArrayLike, n: npt.ArrayLike, margin: float) -> Floats:
    """Log of the e-process of "the drop is `margin` or more" after n questions with b losses and c gains, elementwise.

    A mixture of bets 1 + lambda (margin - x) on every question, x = 1 for a loss, -1 for a gain, else 0, and
    lambda a share of its largest value 1 / (1 - margin) (Waudby-Smith and Ramdas 2024, JRSS B 86). It grows with
    `margin`, which lies between -1 and 1.
    """
    losses, gains = np.asarray(b, dtype=np.float64)[..., None], np.asarray(c, dtype=np.float64)[..., None]
    ties = np.asarray(n, dtype=np.float64)[..., None] - losses - gains
    bets = _BETS / (1 - margin)
    logs = losses * np.log1p(-_BETS) + ties * np.log1p(bets * margin) + gains * np.log1p(bets * (1 + margin))
    return np.asarray(np.logaddexp.reduce(logs + np.log(_WEIGHTS), axis=-1), dtype=np.float64)


class Sequential:
    """Paired outcomes, taken one at a time, and what they prove so far.

    The questions must come in an order that was drawn at random before the first answer.
    """

    def __init__(self) -> None:
        self.losses = self.gains = self.n = 0
        self._last: Outcome | None = None
        # Counts where a run of equal outcomes ended: within a run each part of a mixture grows or shrinks by a
        # constant factor, so the mixture is convex and its largest value stands at an end.
        self._ends: list[tuple[int, int, int]] = [(0, 0, 0)]

    def add(self, outcome: Outcome) -> None:
        """Take the next pair: right only on the baseline (loss), only on the cell (gain), or the same on both."""
        if outcome != self._last:
            self._ends.append((self.losses, self.gains, self.n))
            self._last = outcome
        self.losses += outcome == "loss"
        self.gains += outcome == "gain"
        self.n += 1

    def _looks(self) -> npt.NDArray[np.int64]:
        return np.array([*self._ends, (self.losses, self.gains, self.n)], dtype=np.int64).T

    @property
    def p_no_drop(self) -> float:
        """Anytime-valid p-value of "no drop": the smallest 1 / E so far, at most 1. It never rises."""
        b, c, _ = self._looks()
        return math.exp(-max(0.0, float(log_e_no_drop(b, c).max())))

    def _evidence_below(self, margin: float) -> float:
        b, c, n = self._looks()
        return float(log_e_drop(b, c, n, margin).max())

    def passes(self, margin: float, alpha: float) -> bool:
        """Whether "the drop is `margin` or more" has been rejected at `alpha`; once it has, it stays so."""
        return self._evidence_below(margin) >= -math.log(alpha)

    def upper_drop(self, alpha: float) -> float | None:
        """Upper bound of the drop, valid at all times together with chance 1 - alpha; None before the first pair.

        The smallest margin that passes. It never rises.
        """
        if self.n == 0:
            return None
        low, high = -1 + 1e-9, 1 - 1e-9
        if not self.passes(high, alpha):
            return 1.0

        def excess(margin: float) -> float:
            return self._evidence_below(margin) + math.log(alpha)

        return float(optimize.brentq(excess, low, high, xtol=1e-9))

    def decided(
        self, alpha_regression: float, alpha_pass: float, margin: float
    ) -> Literal["regression", "pass"] | None:
        """What has been proved: a drop, or that it is below `margin`; None while neither. A drop comes first."""
        if self.p_no_drop <= alpha_regression:
            return "regression"
        return "pass" if self.passes(margin, alpha_pass) else None
