"""The bound on what moved is a bound, whatever the two distributions are; pairs are counted as the records say."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rig import stats
from rig.divergence import FLOOR_NATS, MARGIN, SURE, against_noise, first_difference, shift, summarise, threshold
from rig.records import Divergence
from rig.records_requests import Pair

IDS = st.lists(st.integers(0, 4), max_size=8)
PAIR = Pair("q", "r", "b", "correct", "correct")


@pytest.mark.parametrize(
    ("a", "b", "at"),
    [
        ([], [], None),
        ([1, 2], [1, 2], None),
        ([1, 2], [3, 2], 0),
        ([1, 2, 3], [1, 2, 4], 2),
        ([1, 2], [1, 2, 3], 2),
        ([], [1], 0),
    ],
)
def test_first_difference(a: list[int], b: list[int], at: int | None) -> None:
    assert first_difference(a, b) == at == first_difference(b, a)


@given(IDS, IDS)
def test_first_difference_is_the_first(a: list[int], b: list[int]) -> None:
    at = first_difference(a, b)
    assert at == first_difference(b, a)
    assert (at is None) == (a == b)
    if at is not None:
        assert a[:at] == b[:at] and a[at : at + 1] != b[at : at + 1]


LN = math.log


@pytest.mark.parametrize(
    ("ids_a", "logprobs_a", "ids_b", "logprobs_b", "expected"),
    [
        ([1, 2], [-0.1, -0.2], [1, 2], [-0.1, -0.2], 0.0),
        ([1, 2], [-0.1, -0.2], [1, 2], [-0.4, -0.25], 0.3),
        # A tie that flips: each side may have given the other's token all but the same.
        ([1], [LN(0.5)], [2], [LN(0.5)], 0.0),
        # Both choices less likely than one half: the other one's token may have been as likely.
        ([1], [LN(0.4)], [2], [LN(0.3)], LN(0.4 / 0.3)),
        # Each side sure of its own: B left 1 - 0.9 for A's token at most, A 1 - 0.8 for B's.
        ([1], [LN(0.8)], [2], [LN(0.9)], LN(0.8 / 0.1)),
        ([5, 1], [-0.5, LN(0.8)], [5, 2], [-3.0, LN(0.9)], 2.5),
        # Where one ends nothing is chosen, and only what both have counts.
        ([5, 1], [-0.5, LN(0.9)], [5], [-0.6], 0.1),
        # What comes after the first difference has another context.
        ([1, 7, 7], [LN(0.5), -9.0, -9.0], [2, 7, 7], [LN(0.5), -0.1, -0.1], 0.0),
        # No room left for the other token: float32 says 1 where it is a little less.
        ([1], [0.0], [2], [0.0], -LN(1 - SURE)),
    ],
)
def test_shift(
    ids_a: list[int], logprobs_a: list[float], ids_b: list[int], logprobs_b: list[float], expected: float
) -> None:
    assert shift(ids_a, logprobs_a, ids_b, logprobs_b) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "side",
    [
        (None, None),
        ([1, 2], None),
        (None, [-0.1, -0.2]),
        ([], []),
        ([1, 2], [-0.1]),
        ([1, 2], [-0.1, -0.2, -0.3]),
        ([1, 2], [-0.1, math.nan]),
        ([1, 2], [-math.inf, -0.1]),
        ([1, 2], [-9999.0, -0.1]),
    ],
)
def test_no_shift_without_a_logprob_for_each_token(side: tuple[list[int] | None, list[float] | None]) -> None:
    other = [1, 2], [-0.1, -0.2]
    assert shift(*side, *other) is None
    assert shift(*other, *side) is None


LOGPROBS = st.lists(st.floats(-30, 0), min_size=8, max_size=8)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), LOGPROBS, IDS, LOGPROBS)
def test_shift_is_symmetric_and_never_negative(
    a: list[int], one: list[float], b: list[int], other: list[float]
) -> None:
    first, second = (a, one[: len(a)]), (b, other[: len(b)])
    moved = shift(*first, *second)
    assert moved == shift(*second, *first)
    assert shift(*first, *first) == 0.0
    if b:
        assert moved is not None and moved >= 0


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """In the precision that it is given, as an engine computes it."""
    top = logits - logits.max()
    return np.asarray(top - np.log(np.exp(top).sum()))


@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 40),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.05, 0.5, 2.0, 10.0]),
    st.sampled_from([0.1, 1.0, 5.0, 30.0]),
    st.sampled_from([(np.float64, 1e-9), (np.float32, 0.2)]),
)
def test_no_bound_is_above_the_true_change(
    seed: int, vocabulary: int, steps: int, noise: float, scale: float, precision: tuple[type, float]
) -> None:
    rng = np.random.default_rng(seed)
    ids: tuple[list[int], list[int]] = ([], [])
    logprobs: tuple[list[float], list[float]] = ([], [])
    changes = []
    for _ in range(steps):
        logits = rng.normal(size=vocabulary) * scale
        both: list[np.ndarray] = [
            logits.astype(precision[0]),
            (logits + rng.normal(size=vocabulary) * noise).astype(precision[0]),
        ]
        for side, row in enumerate(map(log_softmax, both)):
            ids[side].append(int(row.argmax()))
            logprobs[side].append(float(row.max()))
        one, other = (log_softmax(row.astype(np.float64)) for row in both)
        changes.append(float(np.abs(one - other).max()))
        if ids[0][-1] != ids[1][-1]:
            break
    moved = shift(ids[0], logprobs[0], ids[1], logprobs[1])
    assert moved is not None
    assert moved <= max(changes) + precision[1]


def test_the_bound_is_reached() -> None:
    """With two tokens each side shows its whole distribution, so the bound is the change itself."""
    p, q = 0.8, 0.9
    change = max(abs(LN(p / (1 - q))), abs(LN((1 - p) / q)))
    assert shift([0], [LN(p)], [1], [LN(q)]) == pytest.approx(change)


def test_threshold() -> None:
    assert threshold([]) == threshold([0.0, 0.3]) == FLOOR_NATS
    assert threshold(iter([0.1, 2.0, 1.0])) == MARGIN * 2.0


def pair(first_token: int | None, moved: float | None = None, equal: bool | None = None) -> Pair:
    return replace(PAIR, first_token=first_token, shift=moved, equal=(first_token is None) if equal is None else equal)


def test_summary() -> None:
    pairs = [pair(None, 0.0), pair(None, 0.2), pair(0, 6.0), pair(3, 2.0), pair(4, 0.1), pair(15), pair(16), pair(90)]
    found = summarise(pairs, 1.0)
    assert found == Divergence(
        n=8,
        equal=2,
        at_zero=1,
        measured=5,
        damaged=2,
        threshold=1.0,
        position={"p10": 1.5, "p50": 9.5, "p90": 53.0},
        shift={"p50": 0.2, "p90": 4.4, "max": 6.0},
        histogram={"0": 1, "1-3": 1, "4-15": 2, "16+": 2},
    )


def test_a_shift_at_the_threshold_is_not_above_it() -> None:
    found = summarise([pair(2, 1.0)], 1.0)
    assert found is not None and found.damaged == 0


def test_nothing_is_damaged_without_a_threshold_or_a_logprob() -> None:
    for pairs, limit in (([pair(0, 9.0)], None), ([pair(0)], 1.0)):
        found = summarise(pairs, limit)
        assert found is not None and found.damaged is None and found.n == 1


def test_equal_outputs_have_no_position() -> None:
    found = summarise([pair(None, 0.1)] * 3, 1.0)
    assert found is not None
    assert (found.n, found.equal, found.at_zero, found.position) == (3, 3, 0, {})
    assert set(found.histogram.values()) == {0}


def test_texts_without_token_ids_say_nothing() -> None:
    unknown, same, other = (replace(PAIR, equal=equal) for equal in (None, True, False))
    assert summarise([], 1.0) is None
    assert summarise([unknown, same, other], 1.0) is None
    # Among pairs with ids, one that differs in text alone and one that failed are not counted.
    found = summarise([unknown, other, same, pair(5, 0.3)], 1.0)
    assert found is not None and (found.n, found.equal) == (2, 1)


def test_equal_texts_may_have_different_tokens() -> None:
    found = summarise([pair(7, 0.1, equal=True)], 1.0)
    assert found is not None and (found.n, found.equal) == (1, 0)


@given(st.lists(st.builds(pair, st.none() | st.integers(0, 200), st.none() | st.floats(0, 20)), max_size=30))
def test_a_summary_adds_up(pairs: list[Pair]) -> None:
    found = summarise(pairs, 1.0)
    if found is None:
        assert all(p.first_token is None and p.shift is None for p in pairs)
        return
    assert found.n == len(pairs)
    assert found.equal + sum(found.histogram.values()) == found.n
    assert found.histogram["0"] == found.at_zero
    assert found.measured == sum(p.shift is not None for p in pairs)
    assert (found.damaged or 0) <= found.measured
    assert list(found.position.values()) == sorted(found.position.values())
    assert list(found.shift.values()) == sorted(found.shift.values())


def noisy(shifts: dict[str, list[float]]) -> list[Pair]:
    """Pairs of a baseline's further rounds with its first, by question."""
    return [
        Pair(sample, f"r{sample}{i}", f"b{sample}", "correct", "correct", repeat=i, equal=True, shift=shift)
        for sample, found in shifts.items()
        for i, shift in enumerate(found)
    ]


def test_the_cell_is_held_against_each_question_s_own_rounds() -> None:
    here = [Pair(s, f"r{s}", f"b{s}", "correct", "correct", equal=True, shift=x) for s, x in
            [("a", 9.0), ("b", 9.0), ("c", 0.2), ("d", 0.2), ("e", 9.0), ("f", 9.0), ("g", 9.0)]]  # fmt: skip
    rounds = noisy({"a": [0.1, 0.1], "b": [0.1, 9.5], "c": [0.1, 3.0], "d": [0.1, 0.0], "e": [9.0, 0.0], "f": [0.1]})
    seen = summarise(here, 1.0)
    assert seen is not None
    held = against_noise(seen, here, rounds)
    # a leads; b and c a round led; d nobody moved; e is a tie; f lacks a round; g has none.
    assert (held.rounds, held.moved, held.led) == (2, 4, 1)


@settings(max_examples=50)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_a_cell_like_any_other_round_leads_no_more_often(rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    led = moved = 0
    for i in range(200):
        # Some questions are far noisier than others: the test must not care.
        scale = 10 ** rng.uniform(-2, 1)
        shifts = [rng.expovariate(1 / scale) for _ in range(rounds + 1)]
        here = [Pair(str(i), "r", "b", "correct", "correct", equal=True, shift=shifts[0])]
        seen = summarise(here, None)
        assert seen is not None
        held = against_noise(seen, here, noisy({str(i): shifts[1:]}))
        assert held.moved is not None and held.led is not None
        moved, led = moved + held.moved, led + held.led
    assert stats.leading(led, moved, rounds) > 1e-6
