"""Sequential decisions: one-step supermartingales, quadrature, brute force over prefixes, and simulated paths."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from rig import stats
from rig.stats_sequential import Outcome, Sequential, log_e_drop, log_e_no_drop

Ints = npt.NDArray[np.int64]

outcomes = st.lists(st.sampled_from(["loss", "gain", "tie", "tie", "tie", "tie"]), max_size=60)
flips = st.integers(0, 40)
margins = st.floats(-0.5, 0.5)

PATHS, LOOKS = 20_000, 600
SLACK = 3 * math.sqrt(0.05 * 0.95 / PATHS)


def fed(seen: list[Outcome]) -> Sequential:
    sequential = Sequential()
    for outcome in seen:
        sequential.add(outcome)
    return sequential


def prefixes(seen: list[Outcome]) -> list[tuple[int, int, int]]:
    """Losses, gains and questions after none, one, two ... of the outcomes."""
    steps = {"loss": (1, 0, 1), "gain": (0, 1, 1), "tie": (0, 0, 1)}
    return list(
        accumulate((steps[o] for o in seen), lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] + b[2]), initial=(0, 0, 0))
    )


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (0, 3), (5, 1), (12, 9), (9, 12), (40, 20)])
def test_no_drop_equals_quadrature(b: int, c: int) -> None:
    even, _ = integrate.quad(lambda p: 2 * (2 * p) ** b * (2 - 2 * p) ** c, 0.5, 1, epsabs=0, epsrel=1e-10)
    only = 2.0**b if c == 0 else 0.0
    assert math.exp(float(log_e_no_drop(b, c))) == pytest.approx(0.6 * only + 0.4 * even)


def test_far_counts_stay_finite_or_are_nothing() -> None:
    assert float(log_e_no_drop(20_000, 0)) == pytest.approx(20_000 * math.log(2) + math.log(0.6), rel=1e-6)
    assert math.isfinite(float(log_e_no_drop(20_000, 15_000)))
    assert float(log_e_no_drop(0, 20_000)) < -5
    assert math.isfinite(float(log_e_drop(5_000, 100, 20_000, 0.02)))


@given(flips, flips, st.floats(0, 0.5), st.floats(0, 1))
def test_no_drop_is_a_supermartingale(b: int, c: int, gain: float, part: float) -> None:
    """The expected next value is no larger than the present one, whatever has been seen, wherever loss <= gain."""
    loss = gain * part
    now, lost, won = (float(v) for v in np.exp(log_e_no_drop([b, b + 1, b], [c, c, c + 1])))
    assert loss * lost + gain * won + (1 - loss - gain) * now <= now * (1 + 1e-9)


@given(flips, flips, st.integers(0, 400), margins, st.floats(0, 1), st.floats(0, 1))
def test_drop_is_a_supermartingale(b: int, c: int, ties: int, margin: float, extra: float, gains: float) -> None:
    """The same wherever P(loss) - P(gain) >= margin, and exactly fair where they are equal."""
    drop = margin + extra * (1 - margin)
    gain = max(0.0, -drop) + gains * (1 - abs(drop)) / 2
    loss = gain + drop
    n = b + c + ties
    values = np.exp(log_e_drop([b, b + 1, b, b], [c, c, c + 1, c], [n, n + 1, n + 1, n + 1], margin))
    now, lost, won, tied = (float(v) for v in values)
    expected = loss * lost + gain * won + (1 - loss - gain) * tied
    assert expected <= now * (1 + 1e-9)
    if extra == 0:
        assert expected == pytest.approx(now)


@given(outcomes, margins)
def test_both_are_largest_over_every_look(seen: list[Outcome], margin: float) -> None:
    sequential, looks = fed(seen), prefixes(seen)
    largest = max(float(log_e_no_drop(b, c)) for b, c, _ in looks)
    assert sequential.p_no_drop == pytest.approx(math.exp(-max(0.0, largest)))
    evidence = max(float(log_e_drop(b, c, n, margin)) for b, c, n in looks)
    for alpha in (math.exp(-evidence) * 1.001, math.exp(-evidence) * 0.999):
        if alpha < 1:
            assert sequential.passes(margin, alpha) is (alpha >= math.exp(-evidence))
    assert (sequential.losses, sequential.gains, sequential.n) == looks[-1]


@settings(max_examples=40)
@given(outcomes, st.sampled_from([0.01, 0.05, 0.2]), margins)
def test_the_bound_is_the_smallest_margin_that_passes_and_nothing_is_taken_back(
    seen: list[Outcome], alpha: float, margin: float
) -> None:
    sequential = Sequential()
    bounds, p_values = [1.0], [1.0]
    for outcome in seen:
        sequential.add(outcome)
        upper = sequential.upper_drop(alpha)
        assert upper is not None
        if abs(upper - margin) > 1e-6:
            assert sequential.passes(margin, alpha) is (upper < margin)
        bounds.append(upper)
        p_values.append(sequential.p_no_drop)
    assert all(later <= earlier + 1e-7 for earlier, later in pairwise(bounds))
    assert all(later <= earlier for earlier, later in pairwise(p_values))


def test_before_the_first_pair_nothing_is_known() -> None:
    sequential = Sequential()
    assert sequential.upper_drop(0.05) is None
    assert sequential.p_no_drop == 1
    assert sequential.decided(0.05, 0.05, 0.02) is None


def test_a_run_without_a_flip_passes_after_197_questions() -> None:
    sequential = fed(["tie"] * 196)
    assert sequential.decided(0.05, 0.05, 0.02) is None
    sequential.add("tie")
    assert sequential.decided(0.05, 0.05, 0.02) == "pass"
    upper = sequential.upper_drop(0.05)
    assert upper is not None and 0.0199 < upper <= 0.02


@pytest.mark.parametrize(("alpha", "needed"), [(0.05, 5), (0.025, 6), (0.0125, 7)])
def test_losses_alone_are_proof_as_soon_as_at_a_fixed_number(alpha: float, needed: int) -> None:
    assert stats.mcnemar_no_drop(needed, 0) <= alpha < stats.mcnemar_no_drop(needed - 1, 0)
    assert fed(["loss"] * (needed - 1)).decided(alpha, 0.05, 0.02) is None
    assert fed(["loss"] * needed).decided(alpha, 0.05, 0.02) == "regression"


@pytest.mark.parametrize(
    ("flips", "sequential", "at_once"), [(0, 197, 149), (1, 284, 237), (4, 513, 310), (10, 748, 391)]
)
def test_price_of_a_pass_is_the_documented_one(flips: int, sequential: int, at_once: int) -> None:
    for n, passes in ((sequential, True), (sequential - 1, False)):
        assert (float(log_e_drop(flips, flips, n, 0.02)) >= math.log(20)) is passes
    assert stats.drop_below(flips, flips, at_once, 0.02, 0.05)
    assert not stats.drop_below(flips, flips, at_once - 1, 0.02, 0.05)


@pytest.mark.parametrize(("gains", "sequential", "at_once"), [(0, 5, 5), (1, 11, 7), (2, 14, 9), (4, 19, 12)])
def test_price_of_a_regression_is_the_documented_one(gains: int, sequential: int, at_once: int) -> None:
    for losses, proved in ((sequential, True), (sequential - 1, False)):
        assert (float(log_e_no_drop(losses, gains)) >= math.log(20)) is proved
    assert stats.mcnemar_no_drop(at_once, gains) <= 0.05 < stats.mcnemar_no_drop(at_once - 1, gains)


def test_a_drop_is_said_before_that_it_is_small() -> None:
    """Ties after the losses can prove that a drop is below the margin; it stays a drop."""
    seen: list[Outcome] = ["loss"] * 6 + ["tie"] * 3000
    sequential = fed(seen)
    assert sequential.passes(0.02, 0.05)
    assert sequential.decided(0.05, 0.05, 0.02) == "regression"


# Type-I error under continuous looking


def first_pass(losses: int, gains: int, looks: int, margin: float, alpha: float) -> Ints:
    """Fewest questions after which so many losses and gains pass, [losses, gains]; looks + 1 where none is enough."""
    b, c, n = np.meshgrid(np.arange(losses + 1), np.arange(gains + 1), np.arange(looks + 1), indexing="ij")
    enough = (log_e_drop(b, c, np.maximum(n, b + c), margin) >= -math.log(alpha)) & (n >= b + c)
    return np.where(enough.any(axis=2), enough.argmax(axis=2), looks + 1)


def counts(seen: npt.NDArray[np.int8]) -> tuple[Ints, Ints]:
    """Losses and gains so far at every look, from [path, look] with 1 for a loss and -1 for a gain."""
    losses = np.cumsum(seen == 1, axis=1, dtype=np.int16)
    return losses.astype(np.int64), np.cumsum(seen == -1, axis=1, dtype=np.int16).astype(np.int64)


def ever_alarms(seen: npt.NDArray[np.int8], alpha: float) -> float:
    losses, gains = counts(seen)
    b, c = np.meshgrid(np.arange(losses.max() + 1), np.arange(gains.max() + 1), indexing="ij")
    proof = log_e_no_drop(b, c) >= -math.log(alpha)
    return float(proof[losses, gains].any(axis=1).mean())


def ever_passes(seen: npt.NDArray[np.int8], margin: float, alpha: float) -> float:
    losses, gains = counts(seen)
    needed = first_pass(int(losses.max()), int(gains.max()), seen.shape[1], margin, alpha)
    return float((needed[losses, gains] <= np.arange(1, seen.shape[1] + 1)).any(axis=1).mean())


def paths(loss: float, gain: float, seed: int, looks: int = LOOKS) -> npt.NDArray[np.int8]:
    draws = np.random.default_rng(seed).random((PATHS, looks), dtype=np.float32)
    return (draws < loss).astype(np.int8) - ((draws >= loss) & (draws < loss + gain)).astype(np.int8)


@pytest.mark.parametrize("flip", [0.02, 0.5])
def test_no_drop_is_rejected_at_any_time_at_most_alpha_of_the_time(flip: float) -> None:
    found = ever_alarms(paths(flip / 2, flip / 2, 11), 0.05)
    assert 0.005 < found <= 0.05 + SLACK


@pytest.mark.parametrize("gain", [0.0, 0.01, 0.04])
def test_a_drop_of_the_margin_passes_at_any_time_at_most_alpha_of_the_time(gain: float) -> None:
    found = ever_passes(paths(0.02 + gain, gain, 12), 0.02, 0.05)
    assert (0.005 if gain < 0.02 else 0.0) < found <= 0.05 + SLACK


def test_the_same_holds_for_a_finite_set_in_random_order() -> None:
    """A set of 500 whose losses and gains are fixed, only the order drawn: what a repeat of one task does."""
    rng = np.random.default_rng(13)
    fixed = np.zeros(500, dtype=np.int8)
    fixed[:20], fixed[20:40] = 1, -1
    order = rng.permuted(np.broadcast_to(fixed, (PATHS, 500)), axis=1)
    assert ever_alarms(order, 0.05) <= 0.05
    fixed[:] = 0
    fixed[:10] = 1
    order = rng.permuted(np.broadcast_to(fixed, (PATHS, 500)), axis=1)
    assert ever_passes(order, 0.02, 0.05) <= 0.05


def test_looking_at_mcnemar_all_the_time_would_not_be_safe() -> None:
    """The simulation can fail: the fixed-n test under continuous looking alarms far more often than alpha."""
    losses, gains = counts(paths(0.25, 0.25, 14, looks=300))
    b, c = np.meshgrid(np.arange(losses.max() + 1), np.arange(gains.max() + 1), indexing="ij")
    table = np.vectorize(stats.mcnemar_no_drop)(b, c) <= 0.05
    assert float(table[losses, gains].any(axis=1).mean()) > 0.15


def test_simulated_looks_are_those_of_the_class() -> None:
    """The vectorised paths above and `Sequential` decide alike."""
    for row in paths(0.05, 0.01, 15, looks=200)[:40]:
        names: dict[int, Outcome] = {1: "loss", -1: "gain", 0: "tie"}
        sequential = fed([names[int(x)] for x in row])
        one = row[None, :]
        assert (sequential.p_no_drop <= 0.05) is bool(ever_alarms(one, 0.05))
        assert sequential.passes(0.1, 0.05) is bool(ever_passes(one, 0.1, 0.05))
