from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

from rig.records import Counts, Group, Groups, Resumed, RunResult
from rig.report.csv import format_csv

GOLDEN = Path(__file__).with_name("golden") / "summary.csv"
DOCS = Path(__file__).parents[3] / "docs" / "reports.md"


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_one_row_a_cell(every_state: RunResult) -> None:
    assert format_csv(every_state) == GOLDEN.read_text(encoding="utf-8")


def test_missing_values_are_empty_and_never_zero(every_state: RunResult) -> None:
    failed = next(row for row in rows(format_csv(every_state)) if row["cell_id"] == "cell-failed")
    filled = {name for name, value in failed.items() if value}
    assert filled == {
        "run_id", "cell_id", "kind", "deployment", "status", "state", "channel", "reason", "failure", "command",
        "label.model", "label.prefill_tp", "label.decode_tp", "label.async_scheduling",
    }  # fmt: skip


def test_a_second_baseline_has_columns_of_its_own(every_state: RunResult) -> None:
    cell = every_state.cells[1]
    more = replace(cell, comparisons=(*cell.comparisons, replace(cell.comparisons[0], baseline="other", delta=-0.5)))
    row = rows(format_csv(replace(every_state, cells=(more,))))[0]
    assert (row["baseline"], row["baseline_2"], row["change_2"]) == ("mono", "other", "-0.5")


def test_texts_with_every_separator_read_back(every_state: RunResult) -> None:
    odd = 'a,b;"c"\nd\te\r\x0b'
    cells = (replace(every_state.cells[0], labels={"model": "m"}, failure=odd),)
    text = format_csv(replace(every_state, cells=cells))
    assert next(csv.DictReader(io.StringIO(text, newline="")))["failure"] == odd


def test_a_run_without_cells_is_a_header(every_state: RunResult) -> None:
    text = format_csv(replace(every_state, cells=()))
    assert text.startswith("run_id,cell_id,kind,") and text.count("\n") == 1


def test_every_column_is_documented(every_state: RunResult) -> None:
    told = set(re.findall(r"`([a-z0-9_]+(?:\.NAME)?)`", DOCS.read_text(encoding="utf-8")))
    for name in rows(format_csv(every_state))[0]:
        assert name in told or name.startswith("label.") or re.sub(r"_(p50|p90|p99|mean)_ms$", "", name) in told, name


def test_what_was_resumed_groups_and_every_outcome_have_columns(every_state: RunResult) -> None:
    cell = every_state.cells[1]
    counts = Counts(30, 5, 0, 0, {"reset": 2, "empty": 1}, {"decode": {"reset": 2}}, unscored=4)
    groups = Groups("depth", (Group("0 %", 30, 35),))
    cell = replace(cell, counts=counts, groups=groups, resumed=Resumed(12, 3, ("d",), 1.0))
    row = rows(format_csv(replace(every_state, cells=(cell,))))[0]
    assert (row["unscored"], row["errors"], row["errors_by_class"]) == ("4", "3", "decode reset 2, empty 1")
    assert (row["resumed_kept"], row["resumed_again"], row["groups"]) == ("12", "3", "by depth: 0 % 30/35")
    assert row["command"] == "pdrig sweep configs/tiny.yaml --cell cell-pass"
