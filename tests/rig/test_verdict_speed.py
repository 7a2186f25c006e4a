"""Latencies and throughput: only what has a bound is judged, never a cold cell, and never P/D against one server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rig import verdict
from rig.comparison import compare
from rig.records import CellResult, Gates, Pair, Ratio, Slow, Verdict
from rig.verdict_tests import share_of_each

MakeResult = Callable[..., CellResult]
GATES = Gates(max_ttft_ratio=1.2, min_throughput_ratio=0.9)
SLOWER = Ratio("ttft_p50", 1.5, (1.4, 1.6), 400, 400, gate=1.2, p_value=0.0002)
FEWER = Ratio("requests_per_s", 0.7, (0.65, 0.75), 400, 400, gate=0.9, p_value=0.0002)
SHOWN = Ratio("e2e_p50", 9.0, (8.0, 10.0), 400, 400)
STALLED = Slow("ttft", 1.2, 240.4, 12, 400, 0, 400, 0.0002)
PAIRS = [Pair(f"q{i}", f"r{i}", f"s{i}", "correct", "correct") for i in range(400)]


def decided(
    make_result: MakeResult,
    *,
    ratios: tuple[Ratio, ...] = (),
    slow: tuple[Slow, ...] = (),
    warmup: int | None = 8,
    base_warmup: int | None = 8,
    tests_planned: int = 1,
    gates: Gates = GATES,
) -> Verdict:
    comparison = compare("off", PAIRS, gates, ratios=ratios, slow=slow)
    result = make_result("on", comparisons=(comparison,), gates=gates, warmup_requests=warmup)
    base: dict[str, CellResult | None] = {"off": make_result("off", warmup_requests=base_warmup)}
    result = replace(result, tests=share_of_each(verdict.tests(result, base), tests_planned))
    found = verdict.decide(result, base)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("given", "channel", "text"),
    [
        (
            {"ratios": (SLOWER,)},
            "latency",
            "TTFT (p50) is 1.50 times that of off (95 % interval 1.40 to 1.60), above the bound of 1.2 (one-sided "
            "bootstrap p = 0.0002, p = 0.0002 after correction for all tests of the sweep, level 0.05).",
        ),
        (
            {"ratios": (FEWER,)},
            "throughput",
            "Throughput (requests/s) is 0.70 times that of off (95 % interval 0.65 to 0.75), below the bound of 0.9 "
            "(one-sided bootstrap p = 0.0002, p = 0.0002 after correction for all tests of the sweep, level 0.05).",
        ),
        (
            {"slow": (STALLED,)},
            "latency",
            "12 of 400 requests had a TTFT above 240 ms, 1.2 times the p99 of off, where 0 of 400 had (one-sided "
            "Fisher exact p = 0.0002, p = 0.0002 after correction for all tests of the sweep, level 0.05).",
        ),
    ],
    ids=["latency", "throughput", "stalls"],
)
def test_beyond_a_bound_is_a_regression(
    make_result: MakeResult, given: dict[str, Any], channel: str, text: str
) -> None:
    found = decided(make_result, **given)
    assert found.state == "regression"
    assert (found.reasons[0].channel, found.reasons[0].text) == (channel, text)
    assert found.reasons[0].evidence == "requests.jsonl"


def test_without_a_bound_nothing_is_said(make_result: MakeResult) -> None:
    found = decided(make_result, ratios=(SHOWN,), gates=Gates())
    assert found.state == "pass" and not [r for r in found.reasons if r.channel in ("latency", "throughput")]


def test_a_bound_that_cannot_be_held_is_told(make_result: MakeResult) -> None:
    found = decided(make_result, ratios=(SHOWN,))
    assert found.state == "pass" and [r.text for r in found.reasons if r.channel == "latency"] == [
        "ttft_p50, requests_per_s cannot be held to a bound against off: too few requests, or no times are known."
    ]


def test_the_error_rate_of_speed_is_that_of_the_sweep(make_result: MakeResult) -> None:
    assert decided(make_result, ratios=(SLOWER,), tests_planned=200).state == "regression"
    assert decided(make_result, ratios=(SLOWER,), tests_planned=300).state == "pass"


@pytest.mark.parametrize(("warmup", "base_warmup"), [(0, 8), (8, 0), (None, 8), (0, 0)])
@pytest.mark.parametrize("given", [{"ratios": (SLOWER, FEWER)}, {"slow": (STALLED,)}])
def test_a_cold_side_is_told_and_never_judged(
    make_result: MakeResult, warmup: int | None, base_warmup: int | None, given: dict[str, Any]
) -> None:
    found = decided(make_result, warmup=warmup, base_warmup=base_warmup, **given)
    assert found.state == "pass"
    assert [r.text for r in found.reasons if r.channel in ("latency", "throughput")] == [
        "Its speed is not judged against off: one of the two was cold (no warm-up)."
    ]


def test_a_cold_cell_with_nothing_to_judge_needs_no_excuse(make_result: MakeResult) -> None:
    found = decided(make_result, ratios=(SHOWN,), warmup=0, gates=Gates())
    assert not [r for r in found.reasons if r.channel == "latency"]


def test_a_baseline_that_cannot_be_used_says_nothing_about_speed(make_result: MakeResult) -> None:
    comparison = compare("off", PAIRS, GATES, ratios=(SLOWER,))
    result = make_result("on", comparisons=(comparison,), gates=GATES, warmup_requests=8)
    found = verdict.decide(result, {"off": None})
    assert found is not None and found.state == "invalid"
    assert not [r for r in found.reasons if r.channel == "latency"]
