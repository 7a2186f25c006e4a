"""Every report of a stored run, byte for byte: tests/cases/verdicts.yaml as it was run once, in runs/builds.tar.xz.

`python tests/support/pack_run.py RUN tests/rig/report/runs/builds.tar.xz` packs another run of it; with
PDRIG_GOLDEN=write this test writes the golden files anew, and fails, so that somebody reads what changed.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_readers

import rig
from rig.report.table import format_table
from rig.reporting import format_report, format_trend, read_data
from rig.store import RunFolder

HERE = Path(__file__).parent
GOLDEN = HERE / "golden" / "builds"
WRITE = os.environ.get("PDRIG_GOLDEN") == "write"
BLOCKS = {"address", "article", "dd", "dt", "h1", "h2", "h3", "h4", "li", "p", "pre", "summary", "td", "th", "tr"}
BLOCKS |= {"figcaption", "nav", "button", "label", "code"}


class Shown(HTMLParser):
    """What a page shows, a line an element, with what its pictures say in words; the data of its requests apart."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.lines = [""]
        self.data = ""
        self._hidden: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "style", "title", "text"):
            self._hidden = "data" if given.get("id") == "data" else tag
        if tag in BLOCKS:
            self.lines.append("")
        if tag == "details":
            self.lines.append("[open]" if "open" in given else "[closed]")
        if tag == "svg":
            self.lines.append(f"[picture: {given['aria-label']}]")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style", "title", "text"):
            self._hidden = None

    def handle_data(self, data: str) -> None:
        if self._hidden is None:
            self.lines[-1] += data
        elif self._hidden == "data":
            self.data += data

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in (line.strip() for line in self.lines) if line)


def page(folder: RunFolder) -> str:
    return Shown(format_report(folder, "html")).text


def requests(folder: RunFolder) -> str:
    """What the page's script is given of each cell: how many requests, how they ended, and against what."""
    data = json.loads(Shown(format_report(folder, "html")).data)
    lines = []
    for cell in data["cells"]:
        lines.append(f"{cell['id']} ({cell['state']}): {len(cell['sample'])} requests {cell['outcome']}")
        lines += [f"  against {pairing['name']}: {pairing['outcome']}" for pairing in cell["against"]]
        lines += [f"  {data['samples'][cell['sample'][int(i)]]}: {error}" for i, error in cell["error"].items()]
    return "".join(f"{line}\n" for line in lines)


MADE: dict[str, Callable[[RunFolder], str]] = {
    "report.md": lambda folder: format_report(folder, "md"),
    "report.html.txt": page,
    "requests.html.txt": requests,
    "junit.xml": lambda folder: format_report(folder, "junit"),
    "junit-strict.xml": lambda folder: format_report(folder, "junit", strict=True),
    "summary.csv": lambda folder: format_report(folder, "csv"),
    "table.txt": lambda folder: format_table(folder.read(), str(folder.path)) + "\n",
    "history.txt": lambda folder: format_trend([folder.path], "table") + "\n",
    "history.md": lambda folder: format_trend([folder.path], "md") + "\n",
}


@pytest.mark.parametrize("name", MADE)
def test_it_is_the_golden_one(stored: RunFolder, name: str) -> None:
    text = MADE[name](stored)
    golden = GOLDEN / name
    if WRITE:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8", newline="")
        pytest.fail(f"{golden} was written: read what changed")
    assert text == golden.read_bytes().decode()


def test_the_same_run_gives_the_same_page(stored: RunFolder) -> None:
    assert format_report(stored, "html") == format_report(stored, "html")


def test_a_whole_run_has_no_holes(stored: RunFolder) -> None:
    assert [h for cell in stored.read().cells for h in stored.holes(cell, stored.read_files(cell.cell_id))] == []
    assert 'class="holes"' not in format_report(stored, "html")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rig.load_run(stored.path)


def test_each_file_of_requests_is_read_once_for_a_report(stored: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or whole(path))
    read_data(stored)
    lines = [path for path in read if path.suffix == ".jsonl"]
    assert stored.requests(BAD) in lines and len(lines) == len(set(lines))


def cut(path: Path, lines: float) -> None:
    """Leave the first so many lines; a part of one where that is no whole number."""
    text = path.read_bytes().splitlines(keepends=True)
    whole = int(lines)
    path.write_bytes(b"".join(text[:whole]) + text[whole][: int(len(text[whole]) * (lines - whole))])


BAD = "sim-1p1d-tp1-tp1-async-on-build-2-d09c"
BASE = "sim-1p1d-tp1-tp1-async-on-base-5298"


@pytest.mark.parametrize(
    ("name", "lines", "said"),
    [
        (f"pairs.{BASE}.jsonl", 30.5, [f"pairs.{BASE}.jsonl ends within a line", f"pairs with {BASE}: 30 of 80"]),
        (f"pairs.{BASE}.jsonl", 30, [f"pairs with {BASE}: 30 of 80 are there"]),
        ("requests.jsonl", 50.5, ["requests.jsonl ends within a line", "its files are damaged: 80 questions, "]),
        ("judged.jsonl", 50, ["its files are damaged: 80 questions, 80 whole records, 50 judged"]),
        ("canaries.jsonl", 5.5, ["canaries.jsonl ends within a line"]),
    ],
)
def test_a_cut_file_is_told_at_the_top_of_the_page_and_in_its_cell(
    stored: RunFolder, name: str, lines: float, said: list[str]
) -> None:
    cut(stored.cell(BAD) / name, lines)
    text = format_report(stored, "html")
    top = text.partition("<main>")[0]
    [section] = re.findall(rf"<h3>{BAD} <span.*?</details>", text, re.DOTALL)
    for words in said:
        assert f"{BAD}: {words}" in top and words in section
    assert report_readers.of_html(text)[BAD].state == "regression", "what is known is shown"
    with pytest.warns(UserWarning) as warned:
        rig.load_run(stored.path)
    assert all(any(words in str(warning.message) for warning in warned) for words in said)


def test_a_missing_file_is_told_too(stored: RunFolder) -> None:
    (stored.cell(BAD) / "judged.jsonl").unlink()
    assert f"{BAD}: judged.jsonl is missing" in format_report(stored, "html").partition("<main>")[0]


def test_lines_that_are_there_twice_are_told_and_count_once(stored: RunFolder) -> None:
    before = requests(stored)
    path = stored.requests(BAD)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[4], lines[7]]))
    said = f"{BAD}: requests.jsonl: lines that are there twice and count once: 2, the first is {len(lines) + 1}"
    assert said in format_report(stored, "html").partition("<main>")[0]
    assert requests(stored) == before


@pytest.mark.parametrize("form", sorted(report_readers.READERS))
def test_a_reader_would_miss_a_cell_that_is_lost(stored: RunFolder, form: str) -> None:
    """The readers of tests/cases/test_reports.py see what they look at."""

    def read() -> dict[str, report_readers.Told]:
        run = stored.read()
        text = format_table(run, "x") if form == "table" else format_report(stored, form)
        return report_readers.READERS[form](text)

    before = read()
    assert before[BAD].state == "regression" and before[BAD].command.endswith(f"--cell {BAD}")
    (stored.cell(BAD) / "cell.json").unlink()
    assert BAD not in read() or (form == "junit" and read()[BAD].state == "")


@pytest.mark.parametrize("form", ["html", "junit", "md", "table"])
def test_a_cell_that_the_sweep_did_not_come_to_is_named(stored: RunFolder, form: str) -> None:
    def report() -> str:
        run = stored.read()
        return format_table(run, "x") if form == "table" else format_report(stored, form)

    said = "The sweep has no result of it yet." if form == "junit" else "nothing is known of 1 of the planned cells"
    assert said not in report()
    (stored.cell(BAD) / "cell.json").unlink()
    text = report()
    assert said in text and BAD in text
    if form == "junit":
        assert 'errors="3" skipped="3" tests="15"' in text
