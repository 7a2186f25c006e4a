"""The table of what ran: made from results, nothing in it that no run says."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rig.records import (
    CellResult,
    Comparison,
    RunInfo,
    TaskInfo,
    Verdict,
)
from rig.store import RunFolder

SCRIPT = Path(__file__).parents[2] / "scripts" / "families_table.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("families_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LABELS = {
    **{"model": "m", "engine": "e", "connector": "NixlConnector"},
    **{"prefill_tp": 1, "decode_tp": 2, "prefill_instances": 1, "decode_instances": 1},
}


def store(folder: Path, started: str = "2026-01-31T00:00:00Z", version: str | None = "0.32.0", **fields: Any) -> Path:
    """A run with one hand-off cell; `fields` of the cell differ."""
    run = RunFolder(folder)
    config = {"models": {"m": {"family": "hybrid"}}, "engines": {"e": {"device": "cpu"}}}
    run.write_info(
        RunInfo(
            run_id=folder.name,
            name="s",
            config_file="x.yaml",
            config_text="",
            resolved={"cells": [{"id": "c"}], "config": config},
            started=started,
            ended=None,
            argv=[],
            versions={},
            host={"gpus": []},
            git=None,
            engines={"e": {"vllm": version}},
        )
    )
    run.write_cell(replace(CELL, **fields))
    return folder


CELL = CellResult(
    cell_id="c",
    labels=LABELS,
    kind="pd",
    deployment="d",
    status="ok",
    task=TaskInfo("gsm-tiny", "1", "p", "s", "h", 60, {}),
    commands={},
    comparisons=(Comparison("b", 0.0, None, None, 0, 0, 60, None, 0.95),),
    verdict=Verdict("pass"),
)
ROW = "| hybrid | m | NixlConnector | 1 x TP 1 / 1 x TP 2 | vLLM 0.32.0 | CPU | 60 | 95.0 % | pass |"


def test_a_row_says_what_the_run_says(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path / "deep" / "a")
    assert script.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [ROW]


def test_the_newest_run_of_a_cell_counts(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path / "a", "2026-02-02T00:00:00Z", verdict=Verdict("failed"), task=None, comparisons=())
    store(tmp_path / "b", "2026-02-01T00:00:00Z")
    script.main([str(tmp_path)])
    (line,) = capsys.readouterr().out.splitlines()[2:]
    assert line.endswith("| CPU | none | not known | failed |")


@pytest.mark.parametrize(
    "fields", [{"kind": "monolithic"}, {"verdict": None}, {"version": None}, {"version": "simulated, pdrig 1"}]
)
def test_what_is_no_judged_hand_off_of_a_real_engine_is_left_out(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any]
) -> None:
    store(tmp_path / "a", **fields)
    assert script.main([str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_it_replaces_what_stands_between_the_markers(script: ModuleType, tmp_path: Path) -> None:
    store(tmp_path / "a")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n")
    for _ in range(2):
        assert script.main([str(tmp_path), "--write", str(page)]) == 0
    text = page.read_text()
    assert text.startswith(f"before\n{script.BEGIN}\n| family |")
    assert text.endswith(f"{ROW}\n{script.END}\nafter\n")
    assert "old" not in text
    page.write_text("no markers")
    assert script.main([str(tmp_path), "--write", str(page)]) == 2
    assert page.read_text() == "no markers"


def test_no_run_and_a_damaged_one_are_said(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main([str(tmp_path)]) == 1
    assert "no run is in" in capsys.readouterr().err
    (tmp_path / "run.json").write_text("{}")
    assert script.main([str(tmp_path)]) == 2


def test_the_documents_table_has_the_scripts_head(script: ModuleType) -> None:
    page = (SCRIPT.parents[1] / "docs" / "families.md").read_text(encoding="utf-8")
    table = page.split(script.BEGIN)[1].split(script.END)[0].strip().splitlines()
    assert table[:2] == script.table([]).splitlines()
