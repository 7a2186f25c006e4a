from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from textwrap import dedent

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rig.evidence_common import LEFT_OUT
from rig.metrics import METRIC_FORMULAS
from rig.records import CellResult, Comparison, Counts, Evidence, Finding, RunResult
from rig.report import looks, rows
from rig.report.table import format_table

ANSI = re.compile(r"\x1b\[\d+m")


def block(text: str, start: str) -> str:
    """The paragraph that begins with `start`, its lines without what is right of the last column."""
    return next(part for part in text.split("\n\n") if part.startswith(start))


def test_one_row_a_cell(run: RunResult) -> None:
    expected = """\
        served  prefill  async       accuracy              invalid  errors  same    requests  output    TTFT ms   TPOT ms   change, points         verdict
                tp       scheduling  [95 %]                                 output  /s        tokens/s  p50/p99   p50/p99   [95 %]
        ------  -------  ----------  --------------------  -------  ------  ------  --------  --------  --------  --------  ---------------------  ----------
        whole   -        on          0.975 [0.955, 0.986]  2 (1+1)  0       -       7.89      812       12.3/346  12.3/346  -                      baseline
        P/D     1        off         0.975 [0.955, 0.986]  2 (1+1)  0       99.0 %  7.89      812       12.3/346  12.3/346  -0.25 [-1.58, +0.95]   pass
        P/D     1        on          0.877 [0.841, 0.906]  4 (3+1)  1       90.0 %  7.89      812       12.3/346  12.3/346  -9.50 [-12.89, -6.75]  regression
        P/D     2        on          -                     -        -       -       -         -         -         -         -                      failed"""  # noqa: E501
    assert block(format_table(run, "runs/id"), "served") == dedent(expected)


def test_the_rest_of_the_text(run: RunResult) -> None:
    text = format_table(run, "runs/id")
    assert text.startswith("tiny (configs/tiny.yaml), 2026-01-31T10:00:00Z to 2026-01-31T10:20:00Z\n")
    assert block(text, "Every") == "Every cell that has it: model tiny"
    assert "  pd-off: gsm8k-strict 0.975 (decides), robust 0.980" in block(text, "Accuracy by scorer").splitlines()
    assert "    accuracy: No worse by 2.00 points. [judged.jsonl]" in block(text, "Verdicts").splitlines()
    assert "    errors: decode-0 ended with code -9 [CUDA error]" in block(text, "Verdicts").splitlines()
    assert block(text, "Reference").splitlines() == [
        "Reference",
        "model  accuracy  labels.tp",
        "-----  --------  ---------",
        "big    0.865     4",
    ]
    assert f"  TTFT: {METRIC_FORMULAS['TTFT']}" in block(text, "How").splitlines()
    assert text.splitlines()[-2:] == [
        "4 cells: 1 baseline, 1 failed, 1 pass, 1 regression. Look at: pd-on (regression, accuracy), "
        "pd-dead (failed, errors)",
        "Run: runs/id",
    ]


def test_retries_and_errors_are_told_by_leg(run: RunResult) -> None:
    counts = Counts(390, 6, 1, 0, {"reset": 3}, {"decode": {"reset": 2}, "prefill": {"reset": 1}})
    cells = (run.cells[0], replace(run.cells[1], retried=2, counts=counts), *run.cells[3:])
    expected = "pd-off: 400 questions; 2 took more than one attempt to connect; errors: decode reset 2, prefill reset 1"
    assert " ".join(block(format_table(replace(run, cells=cells), "x"), "Requests").split()) == f"Requests {expected}"


def test_a_server_that_a_router_left_out_is_told_of_a_baseline_too(run: RunResult) -> None:
    proof = Evidence(True, findings=(Finding("transfer", "the router left out decode-1: nothing ended", LEFT_OUT),))
    cells = (replace(run.cells[0], evidence=proof), *run.cells[1:])
    text = format_table(replace(run, cells=cells), "x")
    assert block(text, "Notes").splitlines()[1:] == ["  mono: the router left out decode-1: nothing ended"]
    assert "Notes" not in format_table(run, "x")


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_nothing_is_wider_than_asked_or_cut(run: RunResult, width: int) -> None:
    text = format_table(run, "runs/id", width)
    assert max(len(line) for line in text.splitlines()[:-2]) <= max(width, 76)
    for cell in run.cells:
        state = cell.verdict.state if cell.verdict else "baseline"
        assert re.search(rf"{state}$", text, re.MULTILINE)
        for reason in cell.verdict.reasons if cell.verdict else ():
            assert " ".join(looks.reason_text(reason).split()) in " ".join(text.split())


def test_labels_stand_in_both_tables_where_one_is_too_wide(run: RunResult) -> None:
    text = format_table(run, "runs/id", 120)
    assert text.count("served  prefill  async") == 2


def test_numbers_stand_for_labels_where_even_that_is_too_wide(run: RunResult) -> None:
    text = format_table(run, "runs/id", 80)
    assert "#2  pd-off: served P/D, prefill_tp 1, async_scheduling off" in text.splitlines()
    assert text.count("\n2  ") == 2


def test_missing_values_are_never_zero(run: RunResult) -> None:
    row = next(line for line in format_table(run, "runs/id").splitlines() if line.endswith("  failed"))
    assert "0" not in row


def test_color_changes_nothing_but_color(run: RunResult) -> None:
    plain, painted = format_table(run, "runs/id"), format_table(run, "runs/id", color=True)
    assert not ANSI.search(plain)
    assert "\x1b[31mregression" in painted
    assert [x.rstrip() for x in ANSI.sub("", painted).splitlines()] == plain.splitlines()


def test_a_single_cell_and_none_at_all(run: RunResult) -> None:
    alone = format_table(replace(run, cells=run.cells[1:2], reference=()), "runs/id")
    assert block(alone, "cell").splitlines()[-1].startswith("pd-off  0.975")
    nothing = format_table(replace(run, cells=(), reference=()), "runs/id")
    assert nothing.splitlines()[-2:] == ["0 cells: nothing ran", "Run: runs/id"]


def test_an_unfinished_run_says_so(run: RunResult) -> None:
    text = format_table(replace(run, info=replace(run.info, ended=None)), "runs/id")
    assert text.splitlines()[0].endswith(", not finished")


def test_cells_that_labels_do_not_tell_apart_show_their_ids(make_result: Callable[..., CellResult]) -> None:
    columns = rows.label_columns([make_result("a"), make_result("b")])
    assert [(c.title, c.texts) for c in columns] == [("cell", ("a", "b"))]


def test_several_baselines_have_a_line_each(make_result: Callable[..., CellResult]) -> None:
    two = (
        Comparison("mono", -0.01, None, None, 4, 0, 400, None, None),
        Comparison("off", None, None, None, 0, 0, 0, None, None),
    )
    change = rows.verdict_columns([make_result(comparisons=two)])[0]
    assert change.texts == ("-1.00\n-",)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0.00"), (1.234, "1.23"), (12.34, "12.3"), (345.6, "346"), (12345.6, "12346")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert rows.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "on"), (False, "off"), (2, "2"), ({"b": [1]}, '{"b": [1]}'), ("a\n b", "a b")],
)
def test_labels(value: object, text: str) -> None:
    assert rows.label_text(value) == text


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.text(max_size=40), st.none() | st.booleans() | st.integers() | st.text(max_size=80), max_size=5),
    st.integers(40, 200),
)
def test_any_labels_can_be_shown(run: RunResult, labels: dict[str, object], width: int) -> None:
    cells = (replace(run.cells[0], labels=labels), *run.cells[1:])
    assert "Run: runs/id" in format_table(replace(run, cells=cells), "runs/id", width)


def test_the_commands_of_what_needs_a_look_stand_on_lines_of_their_own(every_state: RunResult) -> None:
    text = format_table(every_state, "runs/id", width=60)
    states = ("regression", "inconclusive", "no_baseline", "invalid", "failed", "xpass", "interrupted")
    commands = [f"  pdrig sweep configs/tiny.yaml --cell cell-{state}" for state in states]
    assert block(text, "To run them again").splitlines()[1:] == commands
