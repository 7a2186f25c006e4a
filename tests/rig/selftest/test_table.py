"""The rows of a self-test as people read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rig.selftest.first import First
from rig.selftest.rows import Row
from rig.selftest.table import format_rows, grouped, summary

CAUGHT = Row(
    case="late_zeroing-10pc-seed1",
    fault="late_zeroing",
    rate=0.1,
    seed=1,
    questions=200,
    struck=20,
    struck_lost=19,
    accuracy=0.9,
    change=-0.095,
    state="regression",
    channels=("damage", "accuracy"),
    first=First("divergence", 34),
    gate=True,
    as_expected=True,
    why="12 of 20 canaries lost.",
)
CLEAN = replace(
    CAUGHT,
    case="clean-1",
    fault=None,
    rate=0.0,
    questions=400,
    struck=0,
    struck_lost=0,
    accuracy=0.98,
    change=0.0,
    state="pass",
    channels=(),
    first=None,
    gate=False,
    why="Accuracy is shown not to be worse.",
)


def fault(seed: int, **fields: Any) -> Row:
    return replace(CAUGHT, case=f"late_zeroing-10pc-seed{seed}", seed=seed, **fields)


MISSED = fault(2, state="inconclusive", channels=(), first=None, change=-0.01, gate=False, as_expected=False)
DEAD = fault(3, state=None, accuracy=None, change=None, gate=None, channels=(), first=None, as_expected=False)
ROWS = [replace(CLEAN, case="control"), CLEAN, CAUGHT, MISSED]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([], "0 of 0 planted faults caught; of 0 clean runs 0 alarmed and 0 passed"),
        ([CLEAN, CAUGHT], "1 of 1 planted faults caught; of 1 clean runs 0 alarmed and 1 passed"),
        (
            ROWS,
            "1 of 2 planted faults caught; of 2 clean runs 0 alarmed and 2 passed. Not as expected: "
            "late_zeroing-10pc-seed2",
        ),
        (
            [replace(CLEAN, state="regression", as_expected=False), replace(CLEAN, state="inconclusive")],
            "0 of 0 planted faults caught; of 2 clean runs 1 alarmed and 0 passed. Not as expected: clean-1",
        ),
    ],
)
def test_summary(rows: list[Row], line: str) -> None:
    assert summary(rows) == line


def test_a_clean_run_that_could_not_be_judged_did_not_alarm() -> None:
    rows = [replace(CLEAN, state="invalid", as_expected=False), replace(CLEAN, state=None, as_expected=False)]
    assert summary(rows).startswith(
        "0 of 0 planted faults caught; of 2 clean runs 0 alarmed and 0 passed. Not as expected: clean-1"
    )


def test_groups_are_a_fault_a_variant_and_a_rate() -> None:
    part = replace(CAUGHT, case="late_zeroing-state-only-100pc-seed1", rate=1.0)
    names = [(name, len(rows)) for name, rows in grouped([*ROWS, part])]
    assert names == [("clean", 2), ("late_zeroing-10pc", 2), ("late_zeroing-state-only-100pc", 1)]


def test_plain() -> None:
    text = format_rows([*ROWS, fault(5, first=First("canaries", 12))], "table", {})
    lines = text.splitlines()
    assert lines[0].split() == (
        [
            "planted",
            "runs",
            "asked",
            "struck",
            "lost",
            "points",
            "verdicts",
            "channels",
            "first",
            "evidence",
            "5-point",
            "gate",
        ]
    )
    assert lines[2].split() == [
        "clean",
        "2",
        "800",
        "0",
        "0",
        "+0.0",
        "pass",
        "-",
        "-",
        *["red", "in", "0", "of", "2"],
    ]
    assert "late_zeroing-10pc  3     600    60" in lines[3]
    assert "-9.5 to -1.0" in lines[3] and "regression 2, inconclusive 1" in lines[3]
    assert "divergence 1, canaries 1, after 12 to 34" in lines[3] and lines[3].endswith("red in 2 of 3")
    assert "late_zeroing-10pc-seed2: inconclusive. 12 of 20 canaries lost." in lines
    assert lines[-1] == summary([*ROWS, fault(5)])
    assert not [line for line in lines if line != line.rstrip()]


def test_markdown() -> None:
    machine = {"machine": "x86_64", "cpus": 2, "memory_gib": None, "kernel": "6.1", "hostname": "secret-host"}
    text = format_rows(ROWS, "md", machine)
    assert text.startswith(f"{summary(ROWS)}.\n\n- machine: x86_64\n- cpus: 2\n- kernel: 6.1\n\n| planted |")
    assert "secret-host" not in text, "only what says how fast the machine is"
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert "| clean-1 | 400 | 0 | 0 | 0.980 | pass | - | - | yes |" in tables
    assert "| late_zeroing-10pc-seed2 | 200 | 20 | 19 | 0.900 | inconclusive | - | - | **no** |" in tables
    caught = "| late_zeroing-10pc-seed1 | 200 | 20 | 19 | 0.900 | regression | damage, accuracy | "
    assert f"{caught}divergence after 34 | yes |" in tables
    widths = [line.count("|") for line in tables]
    assert set(widths[:4]) == {11} and set(widths[4:]) == {10}, "as many cells as titles"


def test_what_was_not_measured_is_a_dash_and_never_a_zero() -> None:
    [*_, line] = format_rows([DEAD], "md", {}).strip().splitlines()
    assert line == "| late_zeroing-10pc-seed3 | 200 | 20 | 19 | - | - | - | - | **no** |"
    [group] = [row for row in format_rows([DEAD], "md", {}).splitlines() if row.startswith("| late_zeroing-10pc |")]
    assert group == "| late_zeroing-10pc | 1 | 200 | 20 | 19 | - | - | - | - | - |"
    assert "late_zeroing-10pc-seed3: no result." in format_rows([DEAD], "table", {})
