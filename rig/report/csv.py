"""A run as CSV, one row a cell; pure. The columns are those of `cells_frame`; what is missing is an empty field."""

from __future__ import annotations

from rig.records import RunResult
from rig.report.frames import cells_frame


def format_csv(run: RunResult) -> str:
    """Header and one row a cell, in the order of the plan; lines end with a newline alone."""
    return cells_frame(run).to_csv(index=False, lineterminator="\n")
