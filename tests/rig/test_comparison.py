"""A cell against one baseline, from pairs to the figures that verdicts rest on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from rig import stats
from rig.comparison import compare
from rig.records import Gates, Outcome, Pair
from rig.stats_sequential import Sequential

GATES = Gates()


def pairs(
    n: int, lost: Collection[int] = (), gained: Collection[int] = (), failed: Collection[int] = (), repeat: int = 0
) -> list[Pair]:
    """n questions by number: lost to the baseline, gained on it, failed here."""

    def outcome(i: int) -> Outcome:
        return "error" if i in failed else "wrong" if i in lost else "correct"

    return [
        Pair(f"q{i}", f"r{i}.{repeat}", f"b{i}.{repeat}", outcome(i), "wrong" if i in gained else "correct", repeat)
        for i in range(n)
    ]


def test_counts_and_figures() -> None:
    found = compare("mono", pairs(10, lost=[1, 2], gained=[4]), GATES)
    assert (found.b, found.c, found.n) == (2, 1, 10)
    assert found.delta == pytest.approx(-0.1)
    assert found.p_value == pytest.approx(stats.mcnemar_no_drop(2, 1))
    assert found.ci95 == stats.paired_difference_interval(2, 1, 10)
    assert found.upper_drop == stats.drop_upper_bound(2, 1, 10, 0.05)
    assert found.more_questions and found.output_agreement is None and found.first_divergence is None


def test_errors_on_either_side_leave_the_pair_out() -> None:
    asked = pairs(10, lost=[0, 3], failed=[1, 2])
    asked[3] = replace(asked[3], baseline_outcome="error")
    found = compare("mono", asked, GATES)
    assert (found.b, found.c, found.n) == (1, 0, 7)


def test_agreement_is_the_share_of_equal_texts_where_they_are_known() -> None:
    asked = pairs(4)
    asked[0], asked[1] = replace(asked[0], equal=True), replace(asked[1], equal=False)
    assert compare("mono", asked, GATES).output_agreement == 0.5


def test_nothing_in_common_is_missing_not_zero() -> None:
    found = compare("mono", pairs(3, failed=[0, 1, 2]), GATES)
    assert (found.n, found.delta, found.p_value, found.upper_drop) == (0, None, None, None)
    assert found.more_questions == 149


def test_repeats_count_by_question_and_the_figures_are_of_the_first() -> None:
    asked = [*pairs(40, lost=[1]), *pairs(40, lost=[1, 2, 3], repeat=1), *pairs(40, lost=[1, 4, 5], repeat=2)]
    found = compare("mono", asked, GATES)
    assert (found.b, found.c, found.n, found.repeats) == (1, 0, 40, 3)
    assert found.p_value == pytest.approx(stats.mcnemar_no_drop(5, 0)), "five questions did worse over the repeats"


def test_noise_gives_divergence_its_threshold() -> None:
    def shifted(shift: float) -> list[Pair]:
        return [replace(p, equal=True, shift=shift if i < 3 else 0.1) for i, p in enumerate(pairs(20))]

    alone = compare("mono", shifted(4.0), GATES).first_divergence
    assert alone is not None and (alone.threshold, alone.damaged) == (None, None)
    held = compare("mono", shifted(4.0), GATES, noise=shifted(0.2)).first_divergence
    assert held is not None and (held.threshold, held.damaged, held.measured) == (1.0, 3, 20)
    noisy = compare("mono", shifted(4.0), GATES, noise=shifted(3.0)).first_divergence
    assert noisy is not None and (noisy.threshold, noisy.damaged) == (4.5, 0)


def test_an_early_end_has_figures_that_hold_at_any_time() -> None:
    decider = Sequential()
    for i in range(300):
        decider.add("loss" if i in (5, 9) else "tie")
    found = compare("mono", pairs(300, lost=[5, 9]), GATES, decider=decider)
    assert found.p_value == decider.p_no_drop > stats.mcnemar_no_drop(2, 0)
    assert found.upper_drop == decider.upper_drop(0.05)
