"""A sweep finds the stored baseline that fits, names the one that nearly does, and says where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rig.errors import DataError
from rig.planned import CellPlan
from rig.records import CellResult
from rig.saving import save
from rig.store import RunFolder
from rig.stored import Shelf

StoreRun = Callable[..., RunFolder]


@pytest.fixture
def saved(store_run: StoreRun, tmp_path: Path) -> tuple[RunFolder, CellResult, Path]:
    """A run whose sound cells are stored, one of them, and where."""
    run = store_run("run", {"pd": {"n": 40, "wrong": [3], "state": "pass"}})
    folder = tmp_path / "baselines"
    list(save(run, folder, None))
    cell = next(c for c in run.read().cells if c.verdict is not None and c.verdict.state == "pass")
    return run, cell, folder


def plan_of(cell: CellResult, folder: Path, **labels: Any) -> CellPlan:
    task: Any = None
    return CellPlan(cell.cell_id, {**cell.labels, **labels}, "pd", "d", task, cell.gates, stored=str(folder))


def test_the_baseline_that_fits_stands_as_if_it_had_been_asked(saved: tuple[RunFolder, CellResult, Path]) -> None:
    run, cell, folder = saved
    assert cell.task is not None
    plan = plan_of(cell, folder)
    shelf = Shelf([plan])
    ((name, found),) = shelf.for_cell(plan, cell.task).items()
    stored = shelf.results[name]
    assert name == f"stored {cell.cell_id}" and stored.counts == cell.counts and stored.task == cell.task
    asked = {j.sample_id: j.outcome for j in run.read_judged(cell.cell_id)}
    assert found.outcomes() == asked
    assert found.first() == [], "it has no times of its own"
    assert shelf.nearest(plan, cell.task) is None


def test_one_that_nearly_fits_is_named_with_the_difference(saved: tuple[RunFolder, CellResult, Path]) -> None:
    _, cell, folder = saved
    assert cell.task is not None
    plan = plan_of(cell, folder, decode_tp=16)
    shelf = Shelf([plan])
    assert shelf.for_cell(plan, cell.task) == {}
    why = shelf.nearest(plan, cell.task)
    assert why is not None and "decode_tp (16 here" in why.text
    other = replace(cell.task, scorer="robust", scorer_sha256="0" * 64)
    why = shelf.nearest(plan_of(cell, folder), other)
    assert why is not None and "task scorer (robust here" in why.text


def test_none_for_the_model_and_task_is_said(saved: tuple[RunFolder, CellResult, Path]) -> None:
    _, cell, folder = saved
    assert cell.task is not None
    plan = plan_of(cell, folder, model="another")
    why = Shelf([plan]).nearest(plan, cell.task)
    assert why is not None and "No baseline is stored" in why.text and "pdrig baseline save" in why.text


def test_cells_that_want_none_get_none(saved: tuple[RunFolder, CellResult, Path]) -> None:
    _, cell, folder = saved
    assert cell.task is not None
    plan = replace(plan_of(cell, folder), stored=None)
    shelf = Shelf([plan])
    assert shelf.for_cell(plan, cell.task) == {} and shelf.nearest(plan, cell.task) is None


def test_a_damaged_file_is_found_before_anything_starts(saved: tuple[RunFolder, CellResult, Path]) -> None:
    _, cell, folder = saved
    file = next(folder.glob("*.json"))
    file.write_text(file.read_text()[:-40])
    with pytest.raises(DataError, match=file.name):
        Shelf([plan_of(cell, folder)])
