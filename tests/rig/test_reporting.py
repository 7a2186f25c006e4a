"""Reports of a run folder: read, written, appended to GitHub's summary."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

import rig
from evals.records import RequestRecord
from evals.sink import JsonlWriter
from rig.cli import main
from rig.errors import DataError
from rig.records import CellResult, Judged, JudgedCanary, Pair, RunInfo, Verdict
from rig.reporting import append_step_summary, read_data, write_reports
from rig.store import RunFolder


@pytest.fixture
def folder(
    tmp_path: Path, make_result: Callable[..., CellResult], make_record: Callable[..., RequestRecord]
) -> RunFolder:
    """A run of a cell with one question and one canary, and of one that never came up."""
    folder = RunFolder.create(tmp_path, "x")
    resolved = {"cells": [{"id": "pd"}, {"id": "gone"}]}
    started = "2026-01-31T10:00:00Z"
    folder.write_info(RunInfo("x", "x", "x.yaml", "name: x", resolved, started, None, ["pdrig"], {}, {}, None))
    folder.write_cell(make_result("pd", verdict=Verdict("inconclusive")))
    folder.write_cell(CellResult("gone", {}, "pd", "d", "failed", verdict=Verdict("failed")))
    folder.write_judged("pd", [Judged("r-q1", "q1", "strict", "18", "18", "correct")])
    folder.write_pairs("pd", "mono", [Pair("q1", "r-q1", "b", "correct", "wrong", order=0)])
    folder.write_canaries("pd", [JudgedCanary("r-c1", "canary-0000", "K1", "K1", "right")])
    with JsonlWriter(folder.requests("pd")) as writer:
        writer.append_record(make_record("q1", text="<b>18</b>"))
        writer.append_record(make_record("c1", kind="canary", text="K1"))
    return folder


def test_everything_of_a_cell_is_read(folder: RunFolder) -> None:
    data = read_data(folder)
    cell = data.cell("pd")
    assert ([len(x) for x in (cell.records, cell.judged, cell.canaries)], list(cell.pairs)) == ([2, 1, 1], ["mono"])
    assert data.cell("gone").records == ()


def test_all_reports_lie_in_the_folder(folder: RunFolder, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    paths = write_reports(folder, environ={"GITHUB_STEP_SUMMARY": str(summary)})
    assert sorted(path.name for path in paths) == ["junit.xml", "report.html", "report.md", "summary.csv"]
    texts = {path.name: path.read_text(encoding="utf-8") for path in paths}
    assert summary.read_text() == "before\n" + texts["report.md"]
    assert texts["report.html"].startswith("<!DOCTYPE html>") and "<b>18" not in texts["report.html"]
    assert texts["summary.csv"].count("\n") == 3
    assert ElementTree.parse(folder.path / "junit.xml").find("testsuite").get("skipped") == "1"  # type: ignore[union-attr]
    write_reports(folder, strict=True, environ={})
    assert ElementTree.parse(folder.path / "junit.xml").find("testsuite").get("failures") == "1"  # type: ignore[union-attr]
    assert (folder.path / "report.html").read_text(encoding="utf-8") == texts["report.html"]
    assert summary.read_text() == "before\n" + texts["report.md"]


@pytest.mark.parametrize("environ", [{}, {"GITHUB_STEP_SUMMARY": ""}])
def test_outside_of_github_nothing_is_appended(environ: dict[str, str]) -> None:
    assert append_step_summary("text", environ) is None


def test_a_run_loads_as_frames(folder: RunFolder) -> None:
    run = rig.load_run(str(folder.path))
    assert list(run.cells.cell_id) == ["pd", "gone"]
    assert list(run.requests.outcome) == ["correct", "right"]
    assert run.pairs.baseline_outcome.tolist() == ["wrong"]
    with pytest.raises(DataError, match="not a run folder"):
        rig.load_run(folder.path / "cells")


def test_the_command_line_starts_without_pandas_and_pages() -> None:
    script = "import sys, rig.cli; print([m for m in ('pandas', 'numpy', 'rig.report.html') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("form", "start"),
    [("html", "<!DOCTYPE html>"), ("junit", "<?xml"), ("csv", "run_id,"), ("md", "**"), ("table", "x (x.yaml)")],
)
def test_the_report_command(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, start: str
) -> None:
    def run(*more: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["report", str(folder.path), "--format", form, *more])
        assert end.value.code == 0
        return capsys.readouterr().out

    printed = run()
    assert printed.startswith(start)
    out = tmp_path / "new" / "report"
    assert (run("--out", str(out)), out.read_text(encoding="utf-8")) == ("", printed)
