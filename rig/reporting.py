"""Between the run folder and the reports: reads what they need, writes what they say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rig.records import RunResult
from rig.report.data import CellData, RunData
from rig.report.markdown import format_markdown
from rig.store import RunFolder, write_text

if TYPE_CHECKING:
    from rig.report.frames import LoadedRun

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
"""GitHub names the file for a step's Markdown in this variable."""


def read_data(folder: RunFolder, run: RunResult | None = None) -> RunData:
    """A run with all requests of its cells."""
    run = run or folder.read()
    return RunData(run, {cell.cell_id: _cell(folder, cell.cell_id) for cell in run.cells})


def load(path: Path) -> LoadedRun:
    """The frames of a stored run. Raises DataError where `path` is none."""
    from rig.report import frames

    return frames.load(read_data(RunFolder.open(path)))


def format_report(folder: RunFolder, form: str, strict: bool = False) -> str:
    """The run as `md`, `html`, `junit` or `csv`; `strict` concerns JUnit alone."""
    return _FORMATS[form](folder, folder.read(), strict)


def write_reports(folder: RunFolder, strict: bool = False, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Write each report into the run's folder, and append the Markdown to GitHub's step summary where there is one.

    Returns the paths in the run's folder.
    """
    run = folder.read()
    paths = []
    for form, name in REPORT_FILES.items():
        text = _FORMATS[form](folder, run, strict)
        paths.append(folder.path / name)
        write_text(paths[-1], text)
        if form == "md":
            append_step_summary(text, environ)
    return paths


def append_step_summary(markdown: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Append to the file that GitHub shows as the step's summary; None where this is no step of GitHub's."""
    name = environ.get(SUMMARY_VARIABLE)
    if not name:
        return None
    path = Path(name)
    with path.open("a", encoding="utf-8") as summary:
        summary.write(markdown)
    return path


def _cell(folder: RunFolder, cell_id: str) -> CellData:
    """What a cell has on disk; one that never asked has no such files."""
    asked, judged = folder.requests(cell_id).is_file(), (folder.cell(cell_id) / "judged.jsonl").is_file()
    return CellData(
        folder.read_requests(cell_id) if asked else (),
        folder.read_judged(cell_id) if judged else (),
        folder.read_pairs(cell_id),
        folder.read_canaries(cell_id),
    )


def _markdown(folder: RunFolder, run: RunResult, strict: bool) -> str:
    return format_markdown(run, str(folder.path))


def _html(folder: RunFolder, run: RunResult, strict: bool) -> str:
    from rig.report.html import format_html

    return format_html(read_data(folder, run))


def _junit(folder: RunFolder, run: RunResult, strict: bool) -> str:
    from rig.report.junit import format_junit

    return format_junit(run, strict)


def _csv(folder: RunFolder, run: RunResult, strict: bool) -> str:
    from rig.report.csv import format_csv

    return format_csv(run)


_FORMATS: dict[str, Callable[[RunFolder, RunResult, bool], str]] = {
    "md": _markdown,
    "html": _html,
    "junit": _junit,
    "csv": _csv,
}
REPORT_FILES = {"md": "report.md", "html": "report.html", "junit": "junit.xml", "csv": "summary.csv"}
"""The file of each format in the run's folder."""
