"""The verdicts of a whole sweep once all cells are known: one error rate over all that can alarm. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rig import verdict
from rig.planned import CellPlan, SweepPlan
from rig.records import CellResult, Reason, Verdict
from rig.verdict_tests import corrected

RERUN = ".rerun"
TESTS_OF_A_COMPARISON = 6
"""Accuracy, divergence, canaries, errors, failed transfers, expired leases."""
TESTS_OF_A_BOUND = 3
"""At p50, at p99, and of single slow requests."""


def repetition(cell: CellPlan) -> CellPlan:
    """The plan of a red cell's repetition on fresh servers."""
    labels = {**cell.labels, "rerun": True}
    return replace(cell, id=cell.id + RERUN, labels=labels, rerun=False, rerun_of=cell.id, fresh=True)


def tests_planned(plan: SweepPlan) -> int:
    """The most tests that a sweep can make: what a verdict is corrected for that cannot wait for the others."""
    total = 0
    for cell in plan.cells:
        bounds = (cell.gates.max_ttft_ratio, cell.gates.max_tpot_ratio, cell.gates.max_e2e_ratio)
        each = TESTS_OF_A_COMPARISON + TESTS_OF_A_BOUND * sum(b is not None for b in bounds)
        each += cell.gates.min_throughput_ratio is not None
        total += (len(cell.baselines) + (cell.stored is not None)) * each
    return max(1, total)


def settled(plan: SweepPlan, results: Sequence[CellResult], stored: Mapping[str, CellResult] = {}) -> list[CellResult]:
    """The results with all their tests corrected together and their verdicts taken again.

    `stored` are stored baselines that cells were held against, by the name that their comparisons use.
    """
    plans = {cell.id: cell for cell in plan.cells}
    adjusted = {result.cell_id: result for result in corrected(results)}
    return [_decided(result, plans, {**stored, **adjusted}) for result in adjusted.values()]


def settled_alone(result: CellResult, baselines: Mapping[str, CellResult | None]) -> CellResult:
    """A cell that is a sweep of its own: its tests corrected together, and its verdict."""
    (result,) = corrected([result])
    return replace(result, verdict=verdict.decide(result, baselines, family="this cell"))


def _decided(result: CellResult, plans: Mapping[str, CellPlan], all_: Mapping[str, CellResult]) -> CellResult:
    cell = plans.get(result.rerun_of or result.cell_id)
    if cell is None or not result.tests or result.verdict is None:
        return result
    compared = [c.baseline for c in result.comparisons if c.baseline in all_]
    held_against = {name: all_.get(name) for name in dict.fromkeys([*cell.baselines, *compared])}
    decided = verdict.decide(result, held_against, cell.xfail)
    again = all_.get(result.cell_id + RERUN)
    if decided is not None and again is not None:
        decided = _with_repetition(decided, again)
    return replace(result, verdict=decided)


def _with_repetition(decided: Verdict, again: CellResult) -> Verdict:
    """What came of asking a red cell again; it does not take the alarm back."""
    state = verdict.state_name(again)
    told = (
        "it came out the same, so it repeats"
        if state == decided.state
        else f"it came out as {state}: what was seen comes and goes, or was the chance that the level allows for"
    )
    text = f"Asked again on fresh servers ({again.cell_id}), {told}."
    return replace(decided, reasons=(*decided.reasons, Reason("rig", text, f"cells/{again.cell_id}/cell.json")))
