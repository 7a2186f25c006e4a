"""Between the run folder and the reports: reads what they need, writes what they say."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rig.errors import DataError, UsageError
from rig.records import CellResult, RunResult
from rig.report.data import CellData, RunData
from rig.report.history import format_history, format_history_markdown
from rig.report.logs import LogTail
from rig.report.markdown import format_markdown
from rig.secrets import is_secret, masked_line
from rig.store import RunFolder, write_text

if TYPE_CHECKING:
    from rig.report.frames import LoadedRun

LOG_LINES = 40
"""Of each log of a failed cell at most so many lines, the last ones, are in a report,"""
LINE_CHARS = 500
"""and so many characters of each,"""
LOG_BYTES = 65_536
"""from so many bytes at its end."""
SHORTEST_SECRET = 6
"""A shorter value of a secret variable is not looked for in logs: it may be any word."""

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
"""GitHub names the file for a step's Markdown in this variable."""


def read_data(folder: RunFolder, run: RunResult | None = None) -> RunData:
    """A run with all requests of its cells."""
    run = run or folder.read()
    return RunData(run, {cell.cell_id: _cell(folder, cell) for cell in run.cells})


def load(path: Path) -> LoadedRun:
    """The frames of a stored run, with a warning where files of it are cut. Raises DataError where `path` is none."""
    from rig.report import frames

    data = read_data(RunFolder.open(path))
    for hole in data.holes():
        warnings.warn(f"{path}: {hole}", stacklevel=3)
    return frames.load(data)


def format_report(folder: RunFolder, form: str, strict: bool = False) -> str:
    """The run as `md`, `html`, `junit` or `csv`; `strict` concerns JUnit alone."""
    return _FORMATS[form](folder, folder.read(), strict)


def format_trend(paths: Sequence[Path], form: str) -> str:
    """The trend of each cell as `table` or `md`, over the runs that `paths` name.

    One run stands for all in its folder; a folder of runs for those in it. Raises UsageError for another format,
    DataError where a path is neither.
    """
    write = {"table": format_history, "md": format_history_markdown}.get(form)
    if write is None:
        raise UsageError(f"--history is there as table or md, not as {form}: give --format table or --format md")
    runs, skipped = read_history(paths)
    return write(runs, skipped)


def read_history(paths: Sequence[Path]) -> tuple[list[RunResult], list[str]]:
    """Stored runs in order of time, and why others in their folder were left out. Raises DataError."""
    found: dict[Path, None] = {}
    beside: set[Path] = set()
    for path in paths:
        single = (path / "run.json").is_file()
        inside = path.resolve().parent if single else path.resolve()
        if not single or len(paths) == 1:
            runs = [p.parent.resolve() for p in inside.glob("*/run.json")]
            if not runs:
                raise DataError(f"{path}: neither a run folder (it has no run.json) nor a folder of runs")
            beside |= set(runs) - {path.resolve()}
            found |= dict.fromkeys(runs)
        else:
            found[path.resolve()] = None
    results, skipped = [], []
    for path in found:
        try:
            results.append(RunFolder(path).read())
        except DataError as error:
            if path not in beside:
                raise
            skipped.append(str(error))
    return sorted(results, key=lambda r: (r.info.started, r.info.run_id)), sorted(skipped)


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


def _cell(folder: RunFolder, cell: CellResult) -> CellData:
    files = folder.read_files(cell.cell_id)
    return CellData(
        files.requests.records if files.requests else (),
        files.judged or (),
        files.pairs,
        files.canaries,
        read_logs(folder, cell),
        folder.holes(cell, files),
    )


def _markdown(folder: RunFolder, run: RunResult, strict: bool) -> str:
    return format_markdown(run, str(folder.path), _logs(folder, run))


def _logs(folder: RunFolder, run: RunResult) -> dict[str, Sequence[LogTail]]:
    return {cell.cell_id: read_logs(folder, cell) for cell in run.cells}


def read_logs(folder: RunFolder, cell: CellResult, environ: Mapping[str, str] = os.environ) -> tuple[LogTail, ...]:
    """The end of each log of a failed cell's deployment, secrets masked; none of a cell that did not fail."""
    if cell.status != "failed":
        return ()
    logs = sorted((folder.deployment(cell.deployment) / "logs").glob("*.log"))
    secrets = [v for k, v in environ.items() if is_secret(k) and len(v) >= SHORTEST_SECRET]
    return tuple(LogTail(log.stem, str(log.relative_to(folder.path)), _last_lines(log, secrets)) for log in logs)


def _last_lines(log: Path, secrets: Sequence[str]) -> tuple[str, ...]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()][-LOG_LINES:]
    return tuple(masked_line(line[:LINE_CHARS], secrets) for line in lines)


def _html(folder: RunFolder, run: RunResult, strict: bool) -> str:
    from rig.report.html import format_html

    return format_html(read_data(folder, run))


def _junit(folder: RunFolder, run: RunResult, strict: bool) -> str:
    from rig.report.junit import format_junit

    return format_junit(run, strict, _logs(folder, run))


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
