"""One error rate over a whole sweep: what an alarm of one cell comes to among the tests of all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rig import settling, verdict
from rig.comparison import compare
from rig.planned import CellPlan, Expectation, SweepPlan, TaskPlan
from rig.records import Canaries, CellResult, Comparison, Divergence, Evidence, Gates, Pair, Ratio, Slow
from rig.settling import repetition, settled, settled_alone
from rig.stats import fisher_excess, mcnemar_no_drop
from rig.verdict_tests import share_of_each

MakeResult = Callable[..., CellResult]
TASK = TaskPlan("t", "gsm-tiny", 400, 2, 64, 8, True, 0)
XFAIL = Expectation("KV is zeroed after arrival", "vllm #42182")
N = 400


def cell_plan(name: str, baselines: Sequence[str] = ("mono",), **fields: object) -> CellPlan:
    given = {"labels": {"n": name}, "kind": "pd", "deployment": "d", "task": TASK, "gates": Gates()} | fields
    return CellPlan(id=name, baselines=tuple(baselines), **given)  # type: ignore[arg-type]


def sweep_of(*cells: CellPlan) -> SweepPlan:
    mono = cell_plan("mono", (), kind="monolithic")
    return SweepPlan("s", "s.yaml", (), (mono, *cells), {})


@cache
def versus(b: int, c: int) -> Comparison:
    pairs = [
        Pair(f"q{i}", f"r{i}", f"s{i}", "wrong" if i < b else "correct", "wrong" if b <= i < b + c else "correct")
        for i in range(N)
    ]
    return compare("mono", pairs, Gates())


def judged(plan: SweepPlan, results: Sequence[CellResult]) -> list[CellResult]:
    """The verdicts as they are taken while the sweep runs, each test with its share of alpha."""
    known = {r.cell_id: r for r in results}
    cells = {c.id: c for c in plan.cells}
    done = []
    for result in results:
        cell = cells[result.rerun_of or result.cell_id]
        held: Mapping[str, CellResult | None] = {name: known[name] for name in cell.baselines}
        with_tests = replace(result, tests=share_of_each(verdict.tests(result, held), settling.tests_planned(plan)))
        done.append(replace(with_tests, verdict=verdict.decide(with_tests, held, cell.xfail)))
    return done


def states(results: Sequence[CellResult]) -> dict[str, str]:
    return {r.cell_id: r.verdict.state for r in results if r.verdict is not None}


def flat(make_result: MakeResult, losses: Mapping[str, int]) -> tuple[SweepPlan, list[CellResult]]:
    """A sweep whose cells lost so many questions against one baseline, and gained none."""
    plan = sweep_of(*(cell_plan(name) for name in losses))
    results = [make_result(name, comparisons=(versus(b, 0),)) for name, b in losses.items()]
    return plan, judged(plan, [make_result("mono", kind="monolithic"), *results])


def test_a_small_p_alone_is_an_alarm_and_among_many_is_none(make_result: MakeResult) -> None:
    assert mcnemar_no_drop(5, 0) == pytest.approx(0.031, abs=0.001)
    alone = [make_result("a", comparisons=(versus(5, 0),))]
    plan = sweep_of(cell_plan("a"))
    [only] = [r for r in settled(plan, judged(plan, [make_result("mono", kind="monolithic"), *alone])) if r.tests]
    assert [t.name for t in only.tests] == ["accuracy/mono", "errors/mono"]
    assert only.verdict is not None and only.verdict.state == "inconclusive", "two tests, and 2 x 0.031 is above 0.05"
    losses = {"a": 9, **dict.fromkeys("bcdefghij", 0)}
    assert mcnemar_no_drop(9, 0) * 20 < 0.05 < mcnemar_no_drop(8, 0) * 20
    assert states(settled(*flat(make_result, losses)))["a"] == "regression"
    assert states(settled(*flat(make_result, losses | {"a": 8})))["a"] == "inconclusive"


def test_holm_finds_what_the_share_of_each_cell_alone_could_not(make_result: MakeResult) -> None:
    """The smallest p-value leaves the family once it is rejected, and so do tests that were never made."""
    plan, results = flat(make_result, {"a": 9, "b": 0, "c": 7})
    assert settling.tests_planned(plan) == 18
    before, after = states(results), states(settled(plan, results))
    assert (before["a"], before["c"]) == ("regression", "inconclusive")
    assert (after["a"], after["c"]) == ("regression", "regression")


def test_channels_share_the_rate_as_cells_do(make_result: MakeResult) -> None:
    """An error count that would alarm by itself is no alarm among the other channels' tests."""
    mono = make_result(
        "mono",
        kind="monolithic",
        evidence=Evidence(None, canaries=Canaries(40, 0, 0)),
        noise_floor=replace(versus(0, 0), first_divergence=Divergence(N, N, 0, N, 0, 1.0, rounds=1, moved=0, led=0)),
    )
    five = {"correct": 385, "error": {"reset": 5}}
    assert fisher_excess(5, N, 0, N) == pytest.approx(0.031, abs=0.001)
    diverging = replace(versus(0, 0), first_divergence=Divergence(N, N, 0, N, 0, 1.0, rounds=1, moved=0, led=0))
    canaries = Evidence(True, transfers=400, failed=0, expired=0, canaries=Canaries(20, 0, 0))
    plan = sweep_of(cell_plan("a"))
    result = make_result("a", comparisons=(diverging,), evidence=canaries, **five)
    [_, after] = settled(plan, judged(plan, [mono, result]))
    assert {t.channel for t in after.tests} == {"accuracy", "damage", "errors"} and len(after.tests) == 4
    assert after.verdict is not None and after.verdict.state == "pass"
    [told] = [r.text for r in after.verdict.reasons if r.channel == "errors"]
    assert told == (
        "5 of 400 questions failed here (reset 5), 0 of 400 on mono: no more than chance explains (one-sided Fisher "
        "exact p = 0.031, p = 0.12 after correction for all tests of the sweep, level 0.05)."
    )


def test_the_verdict_shows_both_p_values_and_the_corrected_one_decides(make_result: MakeResult) -> None:
    plan, results = flat(make_result, {"a": 9, **dict.fromkeys("bcdefghij", 0)})
    after = {r.cell_id: r for r in settled(plan, results)}["a"]
    assert after.verdict is not None
    [test] = [t for t in after.tests if t.channel == "accuracy"]
    assert test.p_adjusted == pytest.approx(20 * test.p_value)
    assert (
        "(one-sided exact McNemar p = 0.002, p = 0.039 after correction for all tests of the sweep, level 0.05)"
        in after.verdict.reasons[0].text
    )


def test_a_cell_alone_says_that_its_tests_are_its_own(make_result: MakeResult) -> None:
    plan, results = flat(make_result, {"a": 9})
    mono, result = results
    alone = settled_alone(result, {"mono": mono})
    assert alone.verdict is not None and "after correction for all tests of this cell, level" in (
        alone.verdict.reasons[0].text
    )
    assert alone.tests == settled(plan, results)[1].tests


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 4, 5, 6, 7, 8, 9, 10, 12]),
            st.sampled_from([0, 1]),
            st.integers(0, 12),
            st.integers(0, 8),
        ),
        min_size=1,
    ),
    st.sampled_from([None, XFAIL]),
)
def test_an_alarm_raised_during_the_sweep_stands_after_it(
    make_result: MakeResult, cells: list[tuple[int, int, int, int]], xfail: Expectation | None
) -> None:
    cells = cells[:8]
    plan = sweep_of(*(cell_plan(f"c{i}", xfail=xfail) for i in range(len(cells))))
    results = [make_result("mono", kind="monolithic", evidence=Evidence(None, canaries=Canaries(40, 0, 0)))]
    for i, (b, c, failed, lost) in enumerate(cells):
        proof = Evidence(True, transfers=400, failed=0, expired=0, canaries=Canaries(20, lost, 0))
        counts = {"correct": 390 - failed, "error": {"reset": failed} if failed else {}}
        results.append(make_result(f"c{i}", comparisons=(versus(b, c),), evidence=proof, **counts))
    during = judged(plan, results)
    after = settled(plan, during)
    alarm = "xfail" if xfail else "regression"
    for name, state in states(during).items():
        if state == alarm:
            assert states(after)[name] == alarm, "a share of alpha is never more than Holm's"
    early = {(r.cell_id, t.name): t.p_adjusted for r in during for t in r.tests}
    for result in after:
        for test in result.tests:
            held = early[result.cell_id, test.name]
            assert test.p_adjusted is not None and held is not None and test.p_adjusted <= held


def test_settling_twice_changes_nothing(make_result: MakeResult) -> None:
    plan, results = flat(make_result, {"a": 9, "b": 6, "c": 0})
    once = settled(plan, results)
    assert settled(plan, once) == once


@pytest.mark.parametrize(
    ("b", "state"), [(9, "xfail"), (0, "xpass"), (7, "inconclusive")], ids=["fails", "passes", "open"]
)
def test_expected_failures_after_correction(make_result: MakeResult, b: int, state: str) -> None:
    names = ["a", *"bcdefghij"]
    plan = sweep_of(*(cell_plan(name, xfail=XFAIL if name == "a" else None) for name in names))
    cells = [make_result(name, comparisons=(versus(b if name == "a" else 0, 0),)) for name in names]
    results = judged(plan, [make_result("mono", kind="monolithic"), *cells])
    assert states(settled(plan, results))["a"] == state


# Repetitions of red cells


def rerun(make_result: MakeResult, b: int) -> tuple[SweepPlan, list[CellResult]]:
    """A red cell `a`, a sound `b`, and what came of asking `a` again."""
    plan = sweep_of(cell_plan("a"), cell_plan("b"))
    again = replace(make_result("a.rerun", comparisons=(versus(b, 0),)), rerun_of="a")
    cells = [make_result("a", comparisons=(versus(30, 0),)), make_result("b", comparisons=(versus(5, 0),))]
    return plan, judged(plan, [make_result("mono", kind="monolithic"), *cells, again])


def test_a_repetition_has_its_own_name_and_is_not_repeated() -> None:
    again = repetition(cell_plan("a", rerun=True))
    assert (again.id, again.rerun, again.rerun_of, again.labels) == ("a.rerun", False, "a", {"n": "a", "rerun": True})
    assert again.task == TASK and again.baselines == ("mono",)


@pytest.mark.parametrize(
    ("b", "told"),
    [
        (30, "Asked again on fresh servers (a.rerun), it came out the same, so it repeats."),
        (
            0,
            "Asked again on fresh servers (a.rerun), it came out as pass: what was seen comes and goes, or was the "
            "chance that the level allows for.",
        ),
    ],
)
def test_a_repetition_is_told_and_does_not_take_the_alarm_back(make_result: MakeResult, b: int, told: str) -> None:
    plan, results = rerun(make_result, b)
    after = {r.cell_id: r for r in settled(plan, results)}
    first = after["a"].verdict
    assert first is not None and first.state == "regression" and first.reasons[-1].text == told
    assert first.reasons[-1].evidence == "cells/a.rerun/cell.json"
    assert verdict.exit_code(list(after.values())) == 1
    assert settled(plan, list(after.values())) == list(after.values()), "told once"


@pytest.mark.parametrize("b", [0, 30])
def test_a_repetition_is_outside_the_family(make_result: MakeResult, b: int) -> None:
    plan, results = rerun(make_result, b)
    with_it, without = settled(plan, results), settled(plan, [r for r in results if r.rerun_of is None])
    adjusted = {r.cell_id: r.tests for r in with_it}
    assert {name: adjusted[name] for name in ("mono", "a", "b")} == {r.cell_id: r.tests for r in without}
    assert adjusted["a.rerun"] == results[-1].tests, "it keeps the share that it was judged by"


def test_a_red_repetition_of_a_cell_that_correction_cleared_does_not_count(make_result: MakeResult) -> None:
    plan, results = rerun(make_result, 30)
    cleared = [r for r in results if r.cell_id != "a"]
    assert verdict.exit_code(settled(plan, cleared)) == 0


# How many tests a sweep can make


@pytest.mark.parametrize(
    ("gates", "baselines", "most"),
    [
        (Gates(), 1, 6),
        (Gates(), 2, 12),
        (Gates(), 0, 1),
        (Gates(max_ttft_ratio=1.2), 1, 9),
        (Gates(max_ttft_ratio=1.2, max_tpot_ratio=1.2, max_e2e_ratio=1.2, min_throughput_ratio=0.9), 2, 32),
    ],
)
def test_the_most_tests_that_a_sweep_can_make(gates: Gates, baselines: int, most: int) -> None:
    cell = cell_plan("a", [f"m{i}" for i in range(baselines)], gates=gates)
    assert settling.tests_planned(SweepPlan("s", "", (), (cell,), {})) == most


def test_no_cell_makes_more_tests_than_were_planned(make_result: MakeResult) -> None:
    """With everything that can be known on both sides, and a bound for every metric."""
    gates = Gates(max_ttft_ratio=1.2, max_tpot_ratio=1.2, max_e2e_ratio=1.2, min_throughput_ratio=0.9)
    everything = _everything(versus(0, 0))
    proof = Evidence(True, transfers=400, failed=3, expired=3, canaries=Canaries(20, 0, 0))
    base = make_result("mono", evidence=proof, warmup_requests=8, noise_floor=everything)
    result = make_result("a", evidence=proof, warmup_requests=8, comparisons=(everything,), gates=gates)
    made = verdict.tests(result, {"mono": base})
    assert len(made) == settling.tests_planned(SweepPlan("s", "", (), (cell_plan("a", gates=gates),), {})) == 16
    assert len({t.name for t in made}) == 16


def _everything(comparison: Comparison) -> Comparison:
    metrics = [f"{m}_{q}" for m in ("ttft", "tpot", "e2e") for q in ("p50", "p99")]
    ratios = [Ratio(m, 1.0, (0.9, 1.1), N, N, 1.2, 0.5) for m in (*metrics, "requests_per_s")]
    slow = [Slow(m, 1.2, 100.0, 0, N, 0, N, 1.0) for m in ("ttft", "tpot", "e2e")]
    diverged = Divergence(N, N, 0, N, 0, 1.0, rounds=1, moved=0, led=0)
    return replace(comparison, ratios=tuple(ratios), slow=tuple(slow), first_divergence=diverged)
