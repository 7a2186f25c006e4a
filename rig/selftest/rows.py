"""The outcome of each case as a row. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rig.faults.control import Hit
from rig.records import CellResult, Channel, JudgedCanary, Pair, State
from rig.selftest.cases import Case
from rig.selftest.first import First, first_evidence

FIXED_TOLERANCE = 0.05
"""The gate that teams use by hand: red when accuracy falls by more than this."""


@dataclass(frozen=True)
class Row:
    """One case. `struck` counts the questions that the engine says it damaged, `struck_lost` those of
    them that only the baseline got right.

    `gate` is what a fixed tolerance of 5 points would have said of the same answers, those without a word being wrong.
    """

    case: str
    fault: str | None
    rate: float
    seed: int
    questions: int
    struck: int
    struck_lost: int
    accuracy: float | None
    change: float | None
    state: State | None
    channels: tuple[Channel, ...]
    first: First | None
    gate: bool | None
    as_expected: bool
    why: str


def row_of(
    case: Case,
    result: CellResult,
    base: CellResult,
    pairs: Sequence[Pair],
    canaries: Sequence[JudgedCanary],
    hits: Sequence[Hit],
    noise: Sequence[Pair],
) -> Row:
    """What the rig said of a case, beside what was done to it."""
    struck = {h.sample_id for h in hits}
    comparison = next((c for c in result.comparisons if c.baseline == base.cell_id), None)
    verdict = result.verdict
    alarms = (verdict.alarms or ()) if verdict else ()
    change = comparison.delta if comparison else None
    lost = [p for p in pairs if p.sample_id in struck and p.outcome != "correct" == p.baseline_outcome]
    return Row(
        case=case.name,
        fault=case.fault,
        rate=case.rate,
        seed=case.seed,
        questions=len(pairs),
        struck=sum(p.sample_id in struck for p in pairs),
        struck_lost=len(lost),
        accuracy=result.accuracy.value if result.accuracy else None,
        change=change,
        state=verdict.state if verdict else None,
        channels=alarms,
        first=first_evidence(result, base, pairs, canaries, noise)
        if verdict and verdict.state == "regression"
        else None,
        gate=_fixed_gate(pairs),
        as_expected=case.as_expected(verdict.state if verdict else None, alarms),
        why=verdict.reasons[0].text if verdict and verdict.reasons else result.failure or "",
    )


def _fixed_gate(pairs: Sequence[Pair]) -> bool | None:
    """Whether the share of right answers fell by more than the tolerance; None where nothing was asked."""
    if not pairs:
        return None
    here = sum(p.outcome == "correct" for p in pairs)
    there = sum(p.baseline_outcome == "correct" for p in pairs)
    return here < there - FIXED_TOLERANCE * len(pairs)
