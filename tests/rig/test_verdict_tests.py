"""Which tests a cell makes, what they rest on, and what each comes to after correction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rig import records, stats, verdict
from rig import verdict_tests as vt
from rig.comparison import compare
from rig.records import (
    Canaries,
    CellResult,
    Comparison,
    Counts,
    Divergence,
    Evidence,
    Gates,
    Pair,
    Ratio,
    Slow,
    TaskInfo,
)

MakeResult = Callable[..., CellResult]
CLEAN = Evidence(True, transfers=400, failed=0, expired=0)


def versus(b: int = 0, name: str = "mono", **fields: Any) -> Comparison:
    pairs = [Pair(f"q{i}", f"r{i}", f"s{i}", "wrong" if i < b else "correct", "correct") for i in range(400)]
    return replace(compare(name, pairs, Gates()), **fields)


def diverged(led: int | None, moved: int | None, rounds: int | None, measured: int = 400) -> Comparison:
    return versus(first_divergence=Divergence(400, 300, 50, measured, led, 1.0, rounds=rounds, moved=moved, led=led))


def p_of(result: CellResult, base: CellResult, name: str) -> float | None:
    return next((t.p_value for t in vt.tests_of(result, {"mono": base}) if t.name == name), None)


# Which tests are made


def test_a_plain_cell_makes_two(make_result: MakeResult) -> None:
    made = vt.tests_of(make_result(comparisons=(versus(3),)), {"mono": make_result("mono", kind="monolithic")})
    assert [(t.name, t.channel, t.p_adjusted) for t in made] == [
        ("accuracy/mono", "accuracy", None),
        ("errors/mono", "errors", None),
    ]
    assert made[0].p_value == stats.mcnemar_no_drop(3, 0) and made[1].p_value == 1


def test_what_is_held_against_nothing_makes_none(make_result: MakeResult) -> None:
    assert vt.tests_of(make_result(comparisons=(versus(3),)), {}) == ()


@pytest.mark.parametrize(
    ("fields", "base_fields"),
    [
        ({"status": "failed"}, {}),
        ({"evidence": Evidence(False)}, {}),
        ({"status": "interrupted"}, {}),
        ({"error": {"internal": 1}}, {}),
        ({}, {"status": "failed", "failure": "it died"}),
        ({}, {"correct": 0, "wrong": 0, "unparsed": 0, "truncated": 0, "error": {"reset": 9}}),
    ],
    ids=["died", "no transfer", "interrupted", "the rig's fault", "no baseline", "a baseline without answers"],
)
def test_a_cell_or_baseline_that_cannot_speak_is_outside_the_family(
    make_result: MakeResult, fields: dict[str, Any], base_fields: dict[str, Any]
) -> None:
    base = make_result("mono", kind="monolithic", **base_fields)
    assert verdict.tests(make_result(comparisons=(versus(30),), **fields), {"mono": base}) == ()


def test_a_baseline_that_was_scored_otherwise_is_outside_the_family(make_result: MakeResult) -> None:
    def task(sha: str) -> TaskInfo:
        return TaskInfo("gsm8k", "3", "p", "gsm8k-strict", sha, 400)

    base = make_result("mono", kind="monolithic", task=task("a"))
    result = make_result(comparisons=(versus(30),), task=task("b"))
    assert verdict.tests(result, {"mono": base}) == ()
    assert [t.name for t in verdict.tests(replace(result, task=task("a")), {"mono": base})] == [
        "accuracy/mono",
        "errors/mono",
    ]


# What they rest on


@pytest.mark.parametrize(
    ("mine", "theirs", "counted"),
    [
        (Canaries(20, 3, 1, error=2), Canaries(50, 1, 0, error=5), (4, 18, 1, 45)),
        (Canaries(20, 0, 0), Canaries(50, 0, 0), (0, 20, 0, 50)),
        (None, Canaries(50, 0, 0), None),
        (Canaries(20, 3, 1), None, None),
        (Canaries(20, 0, 0, error=20), Canaries(50, 0, 0), None),
        (Canaries(20, 5, 0), Canaries(9, 0, 0, error=9), None),
    ],
    ids=["lost and failed", "all right", "none here", "none there", "none answered here", "none answered there"],
)
def test_wrong_canaries_by_fisher_among_those_answered(
    make_result: MakeResult,
    mine: Canaries | None,
    theirs: Canaries | None,
    counted: tuple[int, int, int, int] | None,
) -> None:
    result = make_result(evidence=replace(CLEAN, canaries=mine))
    base = make_result("mono", kind="monolithic", evidence=Evidence(None, canaries=theirs))
    assert p_of(result, base, "canaries/mono") == (None if counted is None else stats.fisher_excess(*counted))


@pytest.mark.parametrize(
    ("here", "counted"),
    [
        (diverged(12, 14, 1), (12, 14, 1)),
        (diverged(3, 3, 6), (3, 3, 6)),
        (diverged(0, 0, 1), (0, 0, 1)),
        (diverged(None, None, None), None),
        (diverged(0, 0, 0), None),
        (diverged(3, 3, 1, measured=0), None),
        (versus(), None),
    ],
    ids=["moved", "six rounds", "nothing moved", "asked once", "no shift in any round", "no shift here", "no tokens"],
)
def test_damaged_outputs_against_the_noise_of_the_same_questions(
    make_result: MakeResult, here: Comparison, counted: tuple[int, int, int] | None
) -> None:
    base = make_result("mono", kind="monolithic")
    found = p_of(make_result(comparisons=(here,)), base, "divergence/mono")
    assert found == (None if counted is None else stats.leading(*counted))


@pytest.mark.parametrize(
    ("mine", "theirs", "counted"),
    [
        ({"reset": 5}, {"reset": 1}, (5, 405, 1, 401)),
        ({"reset": 5, "internal": 2}, {}, (5, 407, 0, 400)),
        ({}, {}, (0, 400, 0, 400)),
    ],
)
def test_errors_by_fisher_among_all_that_were_asked(
    make_result: MakeResult, mine: dict[str, int], theirs: dict[str, int], counted: tuple[int, int, int, int]
) -> None:
    base = make_result("mono", kind="monolithic", error=theirs)
    assert p_of(make_result(error=mine), base, "errors/mono") == stats.fisher_excess(*counted)


@pytest.mark.parametrize(
    ("here", "there", "tested"), [(6, 5, True), (6, 0, False), (0, 5, False), (None, 5, False), (6, None, False)]
)
@pytest.mark.parametrize("event", ["failed", "expired"])
def test_events_are_counted_against_events(
    make_result: MakeResult, event: str, here: int | None, there: int | None, tested: bool
) -> None:
    """Where the baseline has none, one is too many, and that needs no test."""
    result = make_result(evidence=replace(CLEAN, **{event: here}))  # type: ignore[arg-type]
    base = make_result("mono", evidence=replace(CLEAN, **{event: there}))  # type: ignore[arg-type]
    p = p_of(result, base, f"{event}/mono")
    assert (p is not None) == tested
    if here is not None and there is not None and tested:
        assert p == stats.event_excess(here, 400, there, 400)


@pytest.mark.parametrize(
    ("warmup", "base_warmup", "tested"), [(8, 8, True), (0, 8, False), (8, 0, False), (8, None, False)]
)
def test_the_speed_of_a_cold_cell_or_against_a_cold_one_is_not_tested(
    make_result: MakeResult, warmup: int | None, base_warmup: int | None, tested: bool
) -> None:
    ratios = (Ratio("ttft_p50", 3.0, (2.5, 3.5), 400, 400, 1.2, 0.0001), Ratio("e2e_p50", 3.0, (2.5, 3.5), 400, 400))
    slow = (Slow("ttft", 1.2, 100.0, 40, 400, 0, 400, 1e-9),)
    result = make_result(comparisons=(versus(ratios=ratios, slow=slow),), warmup_requests=warmup)
    made = vt.tests_of(result, {"mono": make_result("mono", warmup_requests=base_warmup)})
    speed = [(t.name, t.channel) for t in made if t.channel in ("latency", "throughput")]
    assert speed == ([("ttft_p50/mono", "latency"), ("slow_ttft/mono", "latency")] if tested else [])


@pytest.mark.parametrize(("metric", "channel"), [("ttft_p50", "latency"), ("requests_per_s", "throughput")])
def test_channels_of_speed(metric: str, channel: str) -> None:
    assert vt.speed_channel(metric) == channel


# Correction


def test_the_share_of_each_is_for_as_many_as_were_planned() -> None:
    [small, large] = vt.share_of_each([records.Tested("a", "accuracy", 0.001), records.Tested("b", "errors", 0.2)], 12)
    assert (small.p_adjusted, large.p_adjusted) == (pytest.approx(0.012), 1.0)


def test_what_alarms_is_the_corrected_value_where_there_is_one(make_result: MakeResult) -> None:
    result, mono = make_result(comparisons=(versus(6),)), make_result("mono", kind="monolithic")
    uncorrected = vt.Tests(result, {"mono": mono})
    assert uncorrected.alarms("accuracy/mono") and not uncorrected.alarms("errors/mono")
    assert uncorrected.shown("accuracy/mono", "McNemar") == "McNemar p = 0.016, level 0.05"
    shared = replace(result, tests=vt.share_of_each(vt.tests_of(result, {"mono": mono}), 12))
    corrected = vt.Tests(shared, {"mono": mono})
    assert not corrected.alarms("accuracy/mono")
    assert corrected.shown("accuracy/mono", "McNemar") == (
        "McNemar p = 0.016, p = 0.19 after correction for all tests of the sweep, level 0.05"
    )


def test_a_test_that_was_not_made_does_not_alarm(make_result: MakeResult) -> None:
    tests = vt.Tests(make_result(), {})
    assert not tests.has("canaries/mono") and not tests.alarms("canaries/mono")


@pytest.mark.parametrize(
    ("p", "text"), [(0.03125, "p = 0.031"), (1.0, "p = 1"), (0.0001, "p = 0.0001"), (0.00009, "p < 0.0001")]
)
def test_p_in_words(p: float, text: str) -> None:
    assert vt.p_text(p) == text


def test_counts() -> None:
    counts = Counts(5, 4, 3, 2, {"reset": 6, "internal": 1})
    assert (vt.scored(counts), vt.asked(counts), vt.failed(counts)) == (14, 21, 6)
    assert (vt.scored(None), vt.asked(None), vt.failed(None)) == (0, 0, 0)
