from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from rig.records import RunResult
from rig.report.data import CellData, RunData
from rig.report.frames import CELL_COLUMNS, COMPARISON_COLUMNS, PAIR_COLUMNS, REQUEST_COLUMNS, cells_frame, load

DOCS = Path(__file__).parents[3] / "docs" / "reports.md"


def test_frames_of_a_run(detailed: RunData) -> None:
    def kinds(frame: pd.DataFrame) -> dict[str, str]:
        return {str(name): str(kind) for name, kind in frame.dtypes.items()}

    def wanted(columns: Mapping[str, str]) -> dict[str, str]:
        return {name: kind.removesuffix("[python]") for name, kind in columns.items()}

    run = load(detailed)
    assert list(run.cells.cell_id) == ["mono", "pd-off", "pd-on", "pd-dead"]
    assert kinds(run.requests) == wanted(REQUEST_COLUMNS)
    assert kinds(run.pairs) == wanted(PAIR_COLUMNS)
    labels = {f"label.{name}": "string" for name in ("model", "prefill_tp", "async_scheduling")}
    assert kinds(run.cells) == wanted({**CELL_COLUMNS, **COMPARISON_COLUMNS}) | labels
    assert run.cells.set_index("cell_id").loc["pd-on", ["state", "change", "errors"]].tolist() == [
        "regression",
        -0.095,
        1,
    ]


def test_requests_stand_beside_their_baselines(detailed: RunData) -> None:
    requests = load(detailed).requests.set_index("request_id")
    lost = requests.loc["q-0010-on"]
    assert (lost.outcome, lost.baseline_outcome, lost.first_token, lost["equal"]) == ("wrong", "correct", 9, False)
    assert "it is 99" in lost.text and "it is 18" in lost.baseline_text
    assert (lost.order, lost.e2e_ms, lost.ttft_ms) == (10, pytest.approx(150), pytest.approx(20))
    failed = requests.loc["q-0030-on"]
    assert (failed.outcome, failed.error_leg, failed.error_class) == ("error", "decode", "stream_cut")
    for name in ("text", "e2e_ms", "ttft_ms", "tpot_ms", "equal", "first_token"):
        assert failed[name] is pd.NA, name
    canary = requests.loc["canary-0002-on"]
    assert (canary.kind, canary.outcome, canary.answer, canary.target) == ("canary", "crossed", "K0", "K2")
    assert canary.order is pd.NA and canary.baseline is pd.NA
    assert (requests.kind == "warmup").sum() == 3
    derived = requests.loc["q-0010-off"]
    assert (derived.baseline, derived.baseline_outcome, derived["equal"]) == ("mono", "correct", True)


def test_pairs_with_every_baseline_have_a_row(detailed: RunData) -> None:
    on = detailed.cells["pd-on"]
    both = replace(on, pairs={**on.pairs, "itself": on.pairs["mono"][:5]})
    pairs = load(RunData(detailed.results, {**detailed.cells, "pd-on": both})).pairs
    assert pairs.groupby(["cell_id", "baseline"]).size().to_dict() == {
        ("pd-off", "mono"): 40,
        ("pd-on", "mono"): 40,
        ("pd-on", "itself"): 5,
    }
    assert pairs.loc[pairs.request_id == "q-0010-on", "shift"].tolist() == [2.5]


def test_large_whole_numbers_with_gaps_stay_whole(every_state: RunResult) -> None:
    cells = list(every_state.cells)
    evidence = cells[1].evidence
    assert evidence
    cells[1] = replace(cells[1], evidence=replace(evidence, bytes=2**53 + 1))
    frame = cells_frame(replace(every_state, cells=tuple(cells)))
    assert frame.bytes[1] == 2**53 + 1 and frame.bytes[0] is pd.NA


def test_a_run_that_asked_nothing_has_empty_frames_with_every_column(run: RunResult) -> None:
    frames = load(RunData(run, {"mono": CellData()}))
    assert list(frames.requests.columns) == list(REQUEST_COLUMNS) and frames.requests.empty
    assert list(frames.pairs.columns) == list(PAIR_COLUMNS) and frames.pairs.empty


def test_every_column_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for part, columns in (("### `requests`", REQUEST_COLUMNS), ("### `pairs`", PAIR_COLUMNS)):
        told = set(re.findall(r"`([a-z0-9_]+)`", text.split(part)[1].split("\n### ")[0]))
        assert set(columns) <= told, part
