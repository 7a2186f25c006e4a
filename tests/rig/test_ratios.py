"""Speed against a baseline: shown where there are requests enough, held to a bound where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evals.records import RequestError, RequestRecord
from rig import stats_ratio
from rig.metrics import latency_values
from rig.ratios import ratios, slow
from rig.records import Gates
from rig.stats import fisher_excess

MakeRecord = Callable[..., RequestRecord]
BOUNDS = Gates(max_ttft_ratio=1.5, max_tpot_ratio=1.5, max_e2e_ratio=1.5, min_throughput_ratio=0.7)
ALL = {"ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "e2e_p50", "e2e_p99", "requests_per_s"}
GONE = RequestError("decode", "reset", "gone")


@pytest.fixture
def run(make_record: MakeRecord) -> Callable[..., list[RequestRecord]]:
    """n requests one after another: `run(n, slower=1.0, stalled=0, **fields)`."""

    def make(n: int, slower: float = 1.0, stalled: int = 0, **fields: Any) -> list[RequestRecord]:
        records, at = [], 0.0
        for i in range(n):
            first = slower * (0.01 + 0.0001 * (i * 7 % 13)) * (30 if i < stalled else 1)
            end = first + slower * 0.05
            given = {"t_submit": at, "t_first_token": at + first, "t_end": at + end, "completion_tokens": 11} | fields
            records.append(make_record(f"q{i}", **given))
            at += end
        return records

    return make


Run = Callable[..., list[RequestRecord]]


@pytest.mark.parametrize(
    ("n", "base_n", "shown"),
    [
        (500, 500, ALL),
        (499, 500, {m for m in ALL if not m.endswith("p99")}),
        (199, 600, {m for m in ALL if m.endswith("p50")}),
        (600, 49, set()),
        (0, 500, set()),
    ],
)
def test_what_has_too_few_requests_is_absent(run: Run, n: int, base_n: int, shown: set[str]) -> None:
    found = ratios(run(n), run(base_n), Gates(), False, 0)
    assert {r.metric for r in found} == shown
    assert all((r.n, r.base_n) == (n, base_n) for r in found)
    assert all(r.gate is None and r.p_value is None for r in found)


def test_values_are_those_of_the_bootstrap(run: Run) -> None:
    mine, theirs = run(200, slower=1.2), run(200)
    found = {r.metric: r for r in ratios(mine, theirs, BOUNDS, True, 7)}
    estimate = stats_ratio.ratio(latency_values(mine)["ttft"], latency_values(theirs)["ttft"], "p50", 7)
    assert estimate is not None
    shown = found["ttft_p50"]
    assert (shown.value, shown.ci95, shown.p_value) == (estimate.value, estimate.ci95, estimate.p_above(1.5))
    assert shown.value == pytest.approx(1.2) and found["requests_per_s"].value == pytest.approx(1 / 1.2, rel=0.01)


@pytest.mark.parametrize(("slower", "beyond"), [(1.0, False), (1.4, False), (2.0, True)])
def test_beyond_a_bound_is_where_the_p_value_is_small(run: Run, slower: float, beyond: bool) -> None:
    found = ratios(run(600, slower=slower), run(600), BOUNDS, True, 0)
    assert {r.metric for r in found} == ALL
    gates = {"requests_per_s": 0.7}
    for ratio in found:
        assert ratio.gate == gates.get(ratio.metric, 1.5) and ratio.p_value is not None
        assert (ratio.p_value <= 0.001) == beyond, ratio
        assert ratio.ci95[0] <= ratio.value <= ratio.ci95[1]


def test_only_what_has_a_bound_is_tested_and_nothing_where_it_is_not_gated(run: Run) -> None:
    gates = Gates(max_ttft_ratio=1.5)
    found = ratios(run(500, slower=3.0), run(500), gates, True, 0)
    assert {r.metric for r in found if r.p_value is not None} == {"ttft_p50", "ttft_p99"}
    found = ratios(run(500, slower=3.0), run(500), BOUNDS, False, 0)
    assert len(found) == len(ALL) and not [r for r in found if r.gate is not None or r.p_value is not None]


def test_throughput_is_of_questions_that_were_answered_since_the_first_was_asked(
    run: Run, make_record: MakeRecord
) -> None:
    def of(records: list[RequestRecord]) -> float:
        [ratio] = [r for r in ratios(records, run(400), Gates(), False, 0) if r.metric == "requests_per_s"]
        return ratio.value

    sound = run(400)
    canaries = [make_record(f"c{i}", kind="canary", t_submit=i, t_end=i + 1.0) for i in range(400)]
    assert of(sound) == of([*sound, *canaries]) == 1.0
    half = [r if i % 2 else make_record(f"f{i}", error=GONE, t_end=r.t_end) for i, r in enumerate(sound)]
    assert of(half) == pytest.approx(0.5, rel=0.02)


def test_a_stall_of_a_few_shows_as_slow_and_in_no_median(run: Run) -> None:
    gates = Gates(max_ttft_ratio=2.0)
    mine, theirs = run(400, stalled=12), run(400)
    [found] = slow(mine, theirs, gates)
    assert (found.metric, found.factor, found.k, found.n, found.base_k, found.base_n) == ("ttft", 2.0, 12, 400, 0, 400)
    assert found.p_value == fisher_excess(12, 400, 0, 400) < 0.001
    assert found.limit_ms == pytest.approx(2 * 11.2, rel=0.01)
    median = next(r for r in ratios(mine, theirs, gates, True, 0) if r.metric == "ttft_p50")
    assert median.p_value is not None and median.p_value > 0.5


@pytest.mark.parametrize(("n", "gates"), [(99, BOUNDS), (400, Gates())], ids=["too few", "no bound"])
def test_no_word_on_single_requests_without_a_bound_or_enough_of_them(run: Run, n: int, gates: Gates) -> None:
    assert slow(run(n, stalled=9), run(400), gates) == ()


def test_answers_that_came_whole_have_no_time_to_first_token(run: Run) -> None:
    whole = run(400, t_first_token=None)
    assert {r.metric for r in ratios(whole, whole, BOUNDS, True, 0)} == {"e2e_p50", "requests_per_s"}
    assert [s.metric for s in slow(whole, whole, BOUNDS)] == ["e2e"]
