"""Stored baselines for the cells of a sweep: the one that fits each, as if it had just been asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rig import baselines
from rig.concluding import Finished
from rig.matching import differ_text
from rig.planned import CellPlan
from rig.records import CellResult, Reason, TaskInfo
from rig.sides import of_stored


class Shelf:
    """The stored baselines of the folders that a sweep names, read once before anything starts. Raises DataError."""

    def __init__(self, cells: Sequence[CellPlan]) -> None:
        folders = dict.fromkeys(cell.stored for cell in cells if cell.stored is not None)
        self._files = {folder: baselines.read_all(Path(folder)) for folder in folders}
        self.results: dict[str, CellResult] = {}

    def for_cell(self, cell: CellPlan, task: TaskInfo) -> dict[str, Finished]:
        """The baseline that fits a cell's labels and task, by its name; empty where none does."""
        fit = self._fit(cell, task)
        if fit is None or not fit.exact:
            return {}
        side = of_stored(Path(fit.file), self._file(cell, fit.file), fit.stored, None)
        result = replace(side.result, cell_id=f"stored {fit.stored.name}")
        self.results[result.cell_id] = result
        return {result.cell_id: Finished(result, side.judged, side.records, timed=False)}

    def nearest(self, cell: CellPlan, task: TaskInfo) -> Reason | None:
        """Why a cell that wanted a stored baseline has none: there is none, or the nearest one differs."""
        if cell.stored is None:
            return None
        fit = self._fit(cell, task)
        if fit is None:
            text = f"No baseline is stored in {cell.stored} for its model and task; `pdrig baseline save` stores one."
            return Reason("accuracy", text, cell.stored)
        if fit.exact:
            return None
        text = f"The nearest stored baseline, {fit.stored.name}, is not this cell's: {differ_text(fit.differences)}."
        return Reason("accuracy", text, fit.file)

    def _fit(self, cell: CellPlan, task: TaskInfo) -> baselines.Fit | None:
        return None if cell.stored is None else baselines.find(cell.labels, task, self._files[cell.stored])

    def _file(self, cell: CellPlan, name: str) -> baselines.BaselineFile:
        assert cell.stored is not None
        return self._files[cell.stored][name]
