"""The trend of cells over runs: what is matched, what a window is made of, what is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig.errors import DataError, UsageError
from rig.records import Accuracy, CellResult, RunInfo, RunResult, State, TaskInfo, Verdict
from rig.report.history import (
    FIGURES,
    SHOWN,
    WINDOW,
    Point,
    expected,
    format_history,
    format_history_markdown,
    spark,
    trends,
    window,
)
from rig.reporting import format_trend, read_history
from rig.store import RunFolder

ACCURACY = FIGURES[0]


@pytest.fixture
def nights(make_result: Callable[..., CellResult]) -> Callable[..., list[RunResult]]:
    """Runs, one a night, of one cell: `nights((state, accuracy), ...)`."""

    def make(*seen: tuple[State, float | None], **fields: Any) -> list[RunResult]:
        return [night(i, cell_of(make_result, state, value, **fields)) for i, (state, value) in enumerate(seen)]

    return make


def cell_of(
    make_result: Callable[..., CellResult], state: State, value: float | None, cell_id: str = "pd", **fields: Any
) -> CellResult:
    accuracy = Accuracy("gsm8k-strict", value, None)
    return make_result(cell_id, **({"accuracy": accuracy, "verdict": Verdict(state)} | fields))


def night(i: int, *cells: CellResult) -> RunResult:
    info = RunInfo(f"night-{i:02d}", "n", "n.yaml", "", {}, f"2026-01-{i + 1:02d}T00:00:00Z", None, [], {}, {}, None)
    return RunResult(info, cells)


def points(runs: list[RunResult]) -> tuple[Point, ...]:
    (trend,) = trends(runs)
    return trend.points


def test_cells_are_matched_by_their_labels_not_by_their_ids(make_result: Callable[..., CellResult]) -> None:
    def cells(names: str, i: int) -> RunResult:
        return night(i, *(cell_of(make_result, "pass", 0.9, f"{n}-{i}", labels={"tp": n}) for n in names))

    found = trends([cells("xab", 0), cells("ba", 1)])
    assert [[p.cell.cell_id for p in t.points] for t in found] == [["b-0", "b-1"], ["a-0", "a-1"], ["x-0"]]


def test_a_label_that_is_absent_equals_one_that_is_none(make_result: Callable[..., CellResult]) -> None:
    """A sweep that gets one more axis keeps its trend."""
    runs = [
        night(i, cell_of(make_result, "pass", 0.9, labels=x)) for i, x in enumerate([{"tp": 1}, {"tp": 1, "x": None}])
    ]
    assert [len(t.points) for t in trends(runs)] == [2]


def test_a_repetition_of_a_red_cell_is_no_point(make_result: Callable[..., CellResult]) -> None:
    red = cell_of(make_result, "regression", 0.5)
    again = replace(red, cell_id="pd.rerun", labels={**red.labels, "rerun": True}, rerun_of="pd")
    assert [len(t.points) for t in trends([night(0, red, again)])] == [1]


@pytest.mark.parametrize("bad", ["invalid", "failed", "regression", "xfail"])
def test_what_is_no_sound_measure_never_enters_a_window(nights: Callable[..., list[RunResult]], bad: State) -> None:
    runs = nights(("pass", 0.9), (bad, 0.1), ("inconclusive", 0.8), (bad, 0.0), ("pass", 0.7))
    assert [p.run_id for p in window(points(runs))] == ["night-00", "night-02"]
    assert expected(points(runs), ACCURACY) == (pytest.approx(0.85), 2)
    assert "2 earlier runs were red or could not be judged: not in the median." in format_history(runs)


def test_a_window_is_the_last_sound_runs_before_the_newest(nights: Callable[..., list[RunResult]]) -> None:
    runs = nights(*(("pass", i / 100) for i in range(20)))
    assert [p.run_id for p in window(points(runs))] == [f"night-{i:02d}" for i in range(19 - WINDOW, 19)]
    assert window(()) == window(points(runs[:1])) == ()
    assert expected(points(runs[:1]), ACCURACY) == (None, 0)


def test_runs_that_asked_other_questions_are_not_in_the_window(nights: Callable[..., list[RunResult]]) -> None:
    task = TaskInfo("gsm8k", "3.0", "p", "gsm8k-strict", "s", 400)
    runs = nights(("pass", 0.9), ("pass", 0.8), ("pass", 0.7), task=task)
    other = replace(runs[0].cells[0], task=replace(task, prompt_sha256="q"))
    runs[0] = replace(runs[0], cells=(other,))
    assert [p.run_id for p in window(points(runs))] == ["night-01"]
    assert "1 earlier run asked other questions" in format_history(runs)


@given(st.lists(st.tuples(st.sampled_from(["pass", "invalid", "failed", "regression"]), st.floats(0, 1)), min_size=1))
def test_any_window_is_sound_and_no_longer_than_asked(seen: list[tuple[State, float]]) -> None:
    cells = [CellResult("c", {}, "pd", "d", "ok", accuracy=Accuracy("s", v, None), verdict=Verdict(s)) for s, v in seen]
    found = tuple(Point(str(i), "", cell) for i, cell in enumerate(cells))
    chosen = window(found)
    assert len(chosen) <= WINDOW
    assert all(p.state == "pass" and p is not found[-1] for p in chosen)
    assert len(spark(found, ACCURACY)) == len(seen)
    assert [bar == "·" for bar in spark(found, ACCURACY)] == [s in ("invalid", "failed") for s, _ in seen]


def test_a_spark_goes_from_the_lowest_to_the_highest(nights: Callable[..., list[RunResult]]) -> None:
    runs = nights(("pass", 0.0), ("invalid", 0.9), ("pass", 0.5), ("regression", 1.0), ("pass", None))
    assert spark(points(runs), ACCURACY) == "▁·▅█·"
    assert spark(points(nights(("pass", 0.5), ("pass", 0.5))), ACCURACY) == "▄▄"


def test_the_text_is_this(nights: Callable[..., list[RunResult]]) -> None:
    text = format_history(nights(("pass", 0.9), ("failed", None), ("pass", 0.8), ("regression", 0.4)), ["x: damaged"])
    assert text == "\n".join(
        [
            "4 stored runs, night-00 to night-03, the newest at the right.",
            "",
            "pd",
            "                   newest      median of last 7 sound  trend  lowest  highest",
            "  verdict          regression                          .F.R",
            "  accuracy         0.400       0.850 (2 runs)          █·▇▁   0.400   0.900",
            "  TTFT p50 ms      12.3        12.3 (2 runs)           ▄·▄▄   12.3    12.3",
            "  requests/s       7.89        7.89 (2 runs)           ▄·▄▄   7.89    7.89",
            "  output tokens/s  812         812 (2 runs)            ▄·▄▄   812     812",
            "  1 earlier run was red or could not be judged: not in the median.",
            "",
            "Verdicts: . pass, R regression, F failed. · says nothing.",
            "",
            "left out: x: damaged",
        ]
    )


def test_figures_of_a_run_that_does_not_count_are_not_shown(nights: Callable[..., list[RunResult]]) -> None:
    line = format_history(nights(("pass", 0.9), ("invalid", 0.123))).splitlines()[5]
    assert line.split() == ["accuracy", "-", "0.900", "(1", "run)", "▄·", "0.900", "0.900"]


def test_markdown_has_every_run_and_fits(nights: Callable[..., list[RunResult]]) -> None:
    runs = nights(("pass", 0.9), ("regression", 0.4), labels={"a|b": "@user <b>"})
    text = format_history_markdown(runs, ["y: `z`"])
    assert "| accuracy | 0.400 | 0.900 (1 run) | `█▁` | 0.400 to 0.900 |" in text
    assert "| `night-01` | ❌ regression | 0.400 | 12.3 | 7.89 | 812 |" in text
    assert "- left out: y: \\`z\\`" in text
    short = format_history_markdown(runs, ["y: `z`"], limit=len(text) - 1)
    assert len(short) < len(text)
    assert "Cut to fit" in short


def test_only_the_newest_runs_are_drawn(nights: Callable[..., list[RunResult]]) -> None:
    text = format_history(nights(*[("pass", 0.9)] * (SHOWN + 5)))
    assert f"the last {SHOWN} of a cell are drawn" in text
    assert f" {'.' * SHOWN}\n" in text


def test_nothing_and_a_single_run(nights: Callable[..., list[RunResult]]) -> None:
    assert format_history([]) == "No stored run."
    assert format_history(nights(("pass", 0.9))).startswith("1 stored run, night-00: a trend takes more.")


# Reading


@pytest.fixture
def stored(store_run: Callable[..., RunFolder]) -> list[Path]:
    starts = {"a": "2026-01-03T00:00:00Z", "b": "2026-01-01T00:00:00Z", "c": "2026-01-02T00:00:00Z"}
    folders = [store_run(name, {"pd": {"n": 3}}) for name in starts]
    for folder, at in zip(folders, starts.values(), strict=True):
        folder.write_info(replace(folder.read_info(), started=at))
    return [folder.path for folder in folders]


def test_one_run_stands_for_those_beside_it_in_order_of_time(stored: list[Path]) -> None:
    runs, skipped = read_history(stored[:1])
    assert [r.info.run_id for r in runs] == ["b", "c", "a"]
    assert not skipped
    assert read_history([stored[0].parent])[0] == runs


def test_several_runs_stand_for_themselves(stored: list[Path]) -> None:
    assert [r.info.run_id for r in read_history([*stored[:2], stored[0]])[0]] == ["b", "a"]


def test_a_damaged_run_beside_is_left_out_and_told(stored: list[Path]) -> None:
    (stored[1] / "run.json").write_text("{")
    runs, skipped = read_history(stored[:1])
    assert [r.info.run_id for r in runs] == ["c", "a"]
    assert len(skipped) == 1 and "b/run.json" in skipped[0]
    assert "left out: " in format_trend(stored[:1], "table")
    with pytest.raises(DataError, match=r"run\.json"):
        read_history([stored[0], stored[1]])
    with pytest.raises(DataError, match=r"run\.json"):
        read_history([stored[1]])


def test_what_cannot_be_drawn_is_refused(stored: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--format table"):
        format_trend(stored, "html")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="nor a folder of runs"):
        read_history([tmp_path / "empty"])


def test_the_same_runs_give_the_same_bytes(stored: list[Path]) -> None:
    assert format_trend(stored[:1], "md") == format_trend([stored[0].parent], "md")
