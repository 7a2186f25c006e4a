"""One row a case: what was done, what the rig said, and what a fixed tolerance would have said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rig import verdict
from rig.comparison import compare
from rig.faults.control import Hit
from rig.records import Canaries, CellResult, Channel, Evidence, Finding, Gates, Pair
from rig.selftest.cases import DAMAGE, Case
from rig.selftest.rows import Row, row_of
from rig.verdict_tests import share_of_each

CASE = Case("zeroed", 200, 10, 1, fault="late_zeroing", rate=0.1, channels=DAMAGE)
CLEAN = Case("clean-1", 200, 10, 1)
MOVED = Evidence(True, transfers=200, failed=0, expired=0)
MONO = CellResult("mono", {}, "monolithic", "m", "ok", gates=Gates())


def pairs(lost: int, gained: int = 0) -> list[Pair]:
    return [
        Pair(
            f"q{i}",
            f"r{i}",
            f"s{i}",
            "wrong" if i < lost else "correct",
            "wrong" if lost <= i < lost + gained else "correct",
            order=i,
        )
        for i in range(200)
    ]


def hits(*numbers: int) -> list[Hit]:
    return [Hit("late_zeroing", f"q{i}", f"r{i}", 0.0, 1) for i in numbers]


@pytest.fixture
def judged(make_result: Callable[..., CellResult]) -> Callable[..., tuple[CellResult, CellResult, list[Pair]]]:
    """A case's result with its verdict, its baseline, its pairs: `judged(lost, gained=0, planned=6, **fields)`."""

    def make(lost: int, gained: int = 0, planned: int = 6, **fields: Any) -> tuple[CellResult, CellResult, list[Pair]]:
        base = make_result("mono", kind="monolithic", correct=200, wrong=0, unparsed=0, truncated=0)
        seen = pairs(lost, gained)
        counts = {"correct": 200 - lost, "wrong": lost, "unparsed": 0, "truncated": 0}
        result = make_result("case", comparisons=(compare("mono", seen, Gates()),), **(counts | fields))
        result = replace(result, tests=share_of_each(verdict.tests(result, {"mono": base}), planned))
        return replace(result, verdict=verdict.decide(result, {"mono": base})), base, seen

    return make


Judge = Callable[..., tuple[CellResult, CellResult, list[Pair]]]


def row(judge: Judge, case: Case = CASE, struck: list[Hit] | None = None, **fields: Any) -> Row:
    result, base, seen = judge(**fields)
    return row_of(case, result, base, seen, [], struck or [], [])


def test_a_fault_that_was_caught(judged: Judge) -> None:
    found = row(judged, struck=hits(0, 1, 2, 150, 199, 0), lost=12)
    assert (found.struck, found.struck_lost) == (5, 3), "questions, each once; of those the lost ones"
    assert (found.state, found.channels, found.as_expected) == ("regression", ("accuracy",), True)
    assert found.change == pytest.approx(-0.06) and found.gate is True
    assert found.first is not None and found.first.evidence == "accuracy"
    assert (found.questions, found.accuracy) == (200, 0.94) and "Accuracy is worse than on mono" in found.why


def test_damage_that_a_fixed_tolerance_lets_through(judged: Judge) -> None:
    found = row(judged, struck=hits(0), lost=10)
    assert found.gate is False and found.state == "regression"


def test_strikes_on_other_requests_than_questions_are_not_counted(judged: Judge) -> None:
    found = row(judged, struck=[Hit("late_zeroing", "canary-0001", "r", 0.0, 1), *hits(3)], lost=12)
    assert (found.struck, found.struck_lost) == (1, 1)


def test_a_fault_that_was_missed(judged: Judge) -> None:
    found = row(judged, struck=hits(0, 1), lost=2)
    assert (found.state, found.channels, found.first, found.as_expected) == ("inconclusive", (), None, False)


@pytest.mark.parametrize(("lost", "good"), [(0, True), (1, True), (20, False)])
def test_a_clean_run(judged: Judge, lost: int, good: bool) -> None:
    assert row(judged, CLEAN, lost=lost).as_expected == good


def test_a_cell_that_died_has_no_numbers() -> None:
    dead = CellResult("case", {}, "pd", "d", "failed", failure="decode-0 ended")
    found = row_of(CASE, dead, MONO, [], [], [], [])
    assert (found.state, found.accuracy, found.change, found.gate, found.first) == (None, None, None, None, None)
    assert not found.as_expected and found.why == "decode-0 ended"


@pytest.mark.parametrize(
    ("fields", "channels"),
    [
        ({"lost": 12}, ("accuracy",)),
        ({"lost": 12, "evidence": replace(MOVED, canaries=Canaries(10, 0, 2))}, ("damage", "accuracy")),
        ({"lost": 0, "evidence": replace(MOVED, failed=3)}, ("transfer",)),
        ({"lost": 0, "evidence": replace(MOVED, expired=1)}, ("transfer",)),
        (
            {"lost": 12, "evidence": replace(MOVED, findings=(Finding("transfer", "x", "log", "damage"),))},
            ("transfer", "accuracy"),
        ),
        ({"lost": 0, "error": {"reset": 20}}, ("errors",)),
        ({"lost": 0}, ()),
        ({"lost": 5}, ()),
        ({"lost": 30, "evidence": Evidence(False)}, ()),
    ],
    ids=[
        "accuracy",
        "crossed",
        "failed",
        "expired",
        "a finding",
        "errors",
        "none",
        "too few after correction",
        "invalid",
    ],
)
def test_channels_that_alarm(judged: Judge, fields: dict[str, Any], channels: tuple[Channel, ...]) -> None:
    found = row(judged, **fields)
    assert found.channels == channels and (found.state == "regression") == bool(channels)
