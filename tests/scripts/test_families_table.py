"""The table of what ran: made from results, nothing in it that no run says."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rig.faults.control import ENVIRONMENT
from rig.records import (
    CellResult,
    Comparison,
    Reason,
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
    # Its dataclass looks for the names of its annotations there.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


LABELS = {
    **{"model": "m", "engine": "e", "connector": "NixlConnector"},
    **{"prefill_tp": 1, "decode_tp": 2, "prefill_instances": 1, "decode_instances": 1},
    **{"task": "words", "async_scheduling": True, "concurrency": 4, "schedule": None, "pass": None},
}


def store(
    folder: Path,
    started: str = "2026-01-31T00:00:00Z",
    version: str | None = "0.32.0",
    env: dict[str, str] | None = None,
    **fields: Any,
) -> Path:
    """A run with one hand-off cell; `fields` of the cell differ, `env` is its servers'."""
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
            server_env={"d": {"decode-0": env or {}}},
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
ROW = "| hybrid | m | NixlConnector | 1 x TP 1 / 1 x TP 2 |  | vLLM 0.32.0 | CPU | words | 60 | 95.0 % | pass |  |"


def printed(script: ModuleType, capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    """The rows that the script prints."""
    assert script.main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out.splitlines()[2:]


def test_a_row_says_what_the_run_says(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path / "deep" / "a")
    assert printed(script, capsys, tmp_path) == [ROW]


def test_the_newest_run_of_a_cell_counts(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path / "a", "2026-02-02T00:00:00Z", verdict=Verdict("failed"), task=None, comparisons=())
    store(tmp_path / "b", "2026-02-01T00:00:00Z")
    (line,) = printed(script, capsys, tmp_path)
    assert line.endswith("| CPU | words | none | not known | failed |  |")


@pytest.mark.parametrize(
    ("labels", "columns"),
    [
        ({"async_scheduling": False}, "| 1 x TP 1 / 1 x TP 2 | async off |"),
        ({"pass": 2, "prefill_instances": 0}, "| one server, TP 2 | pass 2 |"),
        ({"both.args.block-size": 32, "decode.args.dtype": None}, "| 1 x TP 1 / 1 x TP 2 | block-size 32 |"),
        ({"both.args.spec": '{"a":"/tmp/m/x","b":1}', "x.hma": True}, '| spec {"a":"x","b":1}, hma true |'),
    ],
)
def test_cells_that_differ_have_rows_that_differ(
    script: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    labels: dict[str, Any],
    columns: str,
) -> None:
    store(tmp_path / "a")
    store(tmp_path / "b", labels={**LABELS, **labels})
    lines = printed(script, capsys, tmp_path)
    assert len(lines) == 2
    assert ROW in lines
    assert any(columns in line for line in lines), lines


def test_a_multi_connector_says_what_is_in_it(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = {"connectors": [{"kv_connector": "NixlConnector"}, {"kv_connector": "OffloadingConnector"}]}
    config = json.dumps({"kv_connector": "MultiConnector", "kv_connector_extra_config": inside})
    commands = {"proxy": ["python"], "decode-0": ["vllm", "serve", "--kv-transfer-config", config]}
    store(tmp_path / "a", labels={**LABELS, "connector": "MultiConnector"}, commands=commands)
    (line,) = printed(script, capsys, tmp_path)
    assert "| MultiConnector (NixlConnector, OffloadingConnector) |" in line


def test_what_is_no_pass_says_why_and_names_no_folder_of_the_machine(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = (
        "Expected to fail: it | cannot.",
        "ValueError in /tmp/x/model.py\nof vllm/a.py. (log: /tmp/x/decode-0.log)",
    )
    store(tmp_path / "a", verdict=Verdict("xfail", tuple(Reason("errors", text) for text in (*texts, "More."))))
    (line,) = printed(script, capsys, tmp_path)
    assert line.endswith("| xfail | Expected to fail: it \\| cannot. ValueError in model.py of vllm/a.py. |")


def test_runs_with_planted_faults_are_left_out(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path / "a", env={ENVIRONMENT: "/tmp/faults.json"})
    assert printed(script, capsys, tmp_path) == []


def test_rows_that_are_stored_come_back_and_newer_runs_replace_them(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.json"
    store(tmp_path / "old" / "a")
    store(tmp_path / "old" / "b", labels={**LABELS, "model": "n"})
    both = printed(script, capsys, tmp_path / "old", "--rows", rows)
    assert len(both) == 2
    assert printed(script, capsys, "--rows", rows) == both
    store(tmp_path / "new" / "a", "2026-02-01T00:00:00Z", verdict=Verdict("regression"))
    changed = printed(script, capsys, tmp_path / "new", "--rows", rows)
    assert len(changed) == 2
    assert "regression" in changed[0]
    assert changed[1] == both[1]
    assert printed(script, capsys, tmp_path / "old", "--rows", rows) == changed, "an older run replaced a newer row"
    for broken in ("{", '[{"family": "f"}]', "[1]"):
        rows.write_text(broken)
        assert script.main(["--rows", str(rows)]) == 2
        assert rows.read_text() == broken
        assert "no list of rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    "fields", [{"kind": "monolithic"}, {"verdict": None}, {"version": None}, {"version": "simulated, pdrig 1"}]
)
def test_what_is_no_judged_hand_off_of_a_real_engine_is_left_out(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any]
) -> None:
    store(tmp_path / "a", **fields)
    assert script.main([str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_one_server_with_a_connector_has_a_row_and_its_baseline_has_none(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = {**LABELS, "connector": "OffloadingConnector", "pass": 2, "prefill_instances": 0}
    store(tmp_path / "a", kind="monolithic", labels=labels)
    store(tmp_path / "b", kind="monolithic", labels={**labels, "connector": None})
    (line,) = printed(script, capsys, tmp_path)
    assert "| OffloadingConnector | one server, TP 2 | pass 2 |" in line


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


def test_the_documents_table_is_that_of_the_stored_rows(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    root = SCRIPT.parents[1]
    page = (root / "docs" / "families.md").read_text(encoding="utf-8")
    stored = json.loads((root / "results" / "what_ran.json").read_text(encoding="utf-8"))
    rows = script.newest(script.Row(**line) for line in stored)
    assert page.split(script.BEGIN)[1].split(script.END)[0].strip() == script.table(rows)
    assert rows
