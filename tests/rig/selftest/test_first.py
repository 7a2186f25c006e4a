"""Which evidence a finished cell would have shown first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig import records
from rig.comparison import compare
from rig.records import (
    Canaries,
    CanaryOutcome,
    CellResult,
    Comparison,
    Counts,
    Evidence,
    Gates,
    JudgedCanary,
    Pair,
)
from rig.selftest.first import First, first_evidence

N = 200
ONE_TEST = (records.Tested("accuracy/mono", "accuracy", 1.0, 1.0),)


def pairs(
    lost: Collection[int] = (), damaged: Collection[int] = (), failed: Collection[int] = (), n: int = N
) -> list[Pair]:
    """Questions by order of arrival; later ones first, as a list need not be in that order."""
    return [
        Pair(
            f"q{i}",
            f"r{i}",
            f"s{i}",
            "error" if i in failed else "wrong" if i in lost else "correct",
            "correct",
            equal=None if i in failed else i not in damaged,
            first_token=0 if i in damaged else None,
            shift=None if i in failed else 5.0 if i in damaged else 0.1,
            order=i,
        )
        for i in reversed(range(n))
    ]


def canary(order: int, outcome: CanaryOutcome = "right") -> JudgedCanary:
    return JudgedCanary(f"c{order}", f"canary-{order}", "1", None, outcome, order=order)


def cell(name: str, **fields: object) -> CellResult:
    given = {"labels": {}, "kind": "pd", "deployment": "d", "status": "ok", "counts": Counts(N, 0, 0, 0)} | fields
    return CellResult(name, **given)  # type: ignore[arg-type]


def first(
    seen: Sequence[Pair],
    canaries: Sequence[JudgedCanary] = (),
    base_canaries: Canaries | None = None,
    floor: bool = True,
    tests: tuple[records.Tested, ...] = ONE_TEST,
) -> First | None:
    noise = pairs()
    itself: Comparison | None = compare("itself", noise, Gates(), noise=noise) if floor else None
    base = cell("mono", kind="monolithic", noise_floor=itself, evidence=Evidence(None, canaries=base_canaries))
    held = compare("mono", seen, Gates(), noise=noise if floor else None)
    return first_evidence(cell("pd", comparisons=(held,), tests=tests), base, seen, canaries, noise if floor else [])


def test_a_clean_cell_shows_nothing() -> None:
    assert first(pairs(), [canary(i) for i in range(0, 200, 20)], Canaries(50, 0, 0)) is None


def test_accuracy_needs_five_losses_without_a_gain() -> None:
    assert first(pairs(lost=[10, 20, 30, 40])) is None
    assert first(pairs(lost=[10, 20, 30, 40, 50])) == First("accuracy", 51)


def test_the_level_is_that_of_the_cells_share() -> None:
    seen = pairs(lost=range(10, 100, 10))
    assert first(seen, tests=ONE_TEST * 4) == First("accuracy", 71), "seven losses at a quarter of alpha"


def test_divergence_comes_first_where_outputs_are_damaged_before_answers_are_lost() -> None:
    """Against one more round of the baseline, five of five that moved furthest here are more than chance."""
    seen = pairs(lost=[100, 110, 120, 130, 140], damaged=range(2, 11, 2))
    assert first(seen) == First("divergence", 11)
    assert first(seen, floor=False) == First("accuracy", 141), "no noise floor, no threshold"


def test_a_crossed_canary_is_proof_at_once() -> None:
    canaries = [canary(0), canary(7, "crossed"), canary(20, "crossed")]
    found = first(pairs(lost=range(50, 60)), canaries, Canaries(50, 0, 0))
    assert found == First("crossed canary", 8) or found == First("canaries", 8)


def test_wrong_canaries_count_against_the_baselines() -> None:
    canaries = [canary(i, "wrong") for i in range(0, 200, 20)]
    found = first(pairs(), canaries, Canaries(50, 0, 0), tests=ONE_TEST * 4)
    assert found == First("canaries", 21), "one of one might be chance, two of two against none of fifty are not"
    assert first(pairs(), canaries, Canaries(50, 50, 0)) is None, "it never repeats a code"
    assert first(pairs(), canaries) is None, "no baseline was asked any"


def test_canaries_without_an_answer_are_no_evidence() -> None:
    assert first(pairs(), [canary(i, "error") for i in range(0, 200, 20)], Canaries(50, 0, 0)) is None


def test_errors_are_evidence_too() -> None:
    assert first(pairs(failed=range(3, 12)), tests=ONE_TEST * 4) == First("errors", 5)


def test_all_evidence_is_counted_in_requests_canaries_among_them() -> None:
    """A question's own order knows questions alone: two canaries came before the fiftieth here, one after it."""
    seen = pairs(lost=[10, 20, 30, 40, 50])
    between = [canary(0), canary(30), canary(52), canary(54)]
    assert first(seen, between, Canaries(50, 0, 0)) == First("accuracy", 51 + 3)


@given(st.sets(st.integers(0, 119)))
def test_questions_and_canaries_fill_the_places_of_arrival(places: set[int]) -> None:
    """Every question's place, found from its number, is the one that was left free."""
    n = 120 - len(places)
    canaries = [canary(p) for p in places]
    free = [p for p in range(120) if p not in places]
    for k in range(4, n, 17):
        seen = pairs(lost=range(k - 4, k + 1), n=n)
        found = first(seen, canaries, floor=False)
        assert found == First("accuracy", 1 + free[k])


@pytest.mark.parametrize("order", [None, 0])
def test_an_order_that_is_not_known_is_no_reason_to_fall_over(order: int | None) -> None:
    seen = [replace(p, order=order) for p in pairs(lost=range(20))]
    assert first(seen) is not None
