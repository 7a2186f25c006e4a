"""Which cells somebody has to look at, and all the reasons that are told of one; pure."""

from __future__ import annotations

from collections.abc import Sequence

from rig.explain import sound_beside
from rig.labels import label_text
from rig.records import CellResult, Reason, RunResult
from rig.secrets import masked_line
from rig.verdict import UNJUDGED_STATES, state_name

LOOK_AT = ("regression", "xpass", "failed", "invalid", "not judged", "inconclusive", "no_baseline")
"""States that somebody has to look at, the worst first."""

MOST_CELLS_NAMED = 6
"""So many cells are named in a sentence."""


def first_of(names: Sequence[str]) -> str:
    """The first names of cells, and how many more there are."""
    more = f" and {len(names) - MOST_CELLS_NAMED} more" if len(names) > MOST_CELLS_NAMED else ""
    return ", ".join(names[:MOST_CELLS_NAMED]) + more


def needs_a_look(cell: CellResult) -> bool:
    """Whether a cell is red, undecided or without a verdict."""
    return state_name(cell) in LOOK_AT


def to_look_at(cells: Sequence[CellResult]) -> list[CellResult]:
    """Cells that are red or undecided, the worst first; a repetition stands with the cell that it repeats."""
    ids = {cell.cell_id for cell in cells}
    found = [c for c in cells if state_name(c) in LOOK_AT and c.rerun_of not in ids]
    return sorted(found, key=lambda c: LOOK_AT.index(state_name(c)))


def deciding_channel(cell: CellResult) -> str | None:
    """The channel that decided, of a cell that needs a look; accuracy alone does not tell why it does."""
    reasons = cell.verdict.reasons if cell.verdict else ()
    return reasons[0].channel if reasons and needs_a_look(cell) else None


def without_result(run: RunResult) -> list[str]:
    """Planned cells that have none: the sweep goes on, or was stopped before it came to them.

    A self-test has the cells of its cases, not those of its plan.
    """
    if "selftest" in run.info.resolved:
        return []
    known = {cell.cell_id for cell in run.cells}
    return [str(cell["id"]) for cell in run.info.planned if cell.get("id", "") not in known | {""}]


def without_result_text(run: RunResult) -> str | None:
    """The same in a sentence; None where every planned cell has a result."""
    found = without_result(run)
    if not found:
        return None
    return f"No result yet, so nothing is known of {len(found)} of the planned cells: {first_of(found)}."


def beside_text(cell: CellResult, cells: Sequence[CellResult]) -> str | None:
    """What one would have to change of a red cell to have a sound one; None where no sound cell is that near."""
    if state_name(cell) not in {"regression", *UNJUDGED_STATES} or cell.rerun_of is not None:
        return None
    near = [
        f"{name} {' or '.join(label_text(value) for value in values)}"
        for name, values in sound_beside(cell, cells).items()
    ]
    return f"sound with {', or with '.join(near)}, all else the same" if near else None


def reason_text(reason: Reason) -> str:
    """Channel, sentence, and where it can be looked up."""
    return f"{reason.channel}: {reason.text}" + (f" [{reason.evidence}]" if reason.evidence else "")


def reason_texts(cell: CellResult, cells: Sequence[CellResult]) -> list[str]:
    """Every reason of a verdict, then why the cell failed where none says so, then what sound cell stands beside it.

    Secrets in quoted logs are masked. `cells` are all of the sweep.
    """
    texts = [reason_text(reason) for reason in (cell.verdict.reasons if cell.verdict else ())]
    if cell.failure and not any(cell.failure in text for text in texts):
        texts.append(cell.failure)
    beside = beside_text(cell, cells)
    texts += [f"beside: {beside}"] if beside else []
    return [masked_line(text) for text in texts] if cell.status == "failed" else texts
