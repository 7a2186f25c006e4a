"""A sweep with a cell of each verdict, and what a reader learns who has nothing but one of its reports.

tests/cases/verdicts.yaml says what is wrong with each build; what must be read is taken from the engines' own word.
The same reports of one stored run are compared byte for byte in tests/rig/report/test_stored_run.py.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import report_readers
import yaml

import rig

pytestmark = pytest.mark.timeout(1500)

LONG_S = 1000
"""How long the sweep is waited for: it is some twenty launches, in two minutes or so on a machine that is free."""
QUESTIONS = 80
CANARIES = 12
STATES = {
    ("base", 1, False): None,
    ("base", 1, True): None,
    ("build-1", 1, True): "pass",
    ("build-2", 1, True): "regression",
    ("build-2", 1, False): "pass",
    ("build-3", 1, True): "regression",
    ("build-4", 1, True): "regression",
    ("build-5", 1, True): "regression",
    ("build-6", 1, True): "xfail",
    ("build-7", 1, True): "xpass",
    ("build-8", 1, True): "invalid",
    ("build-9", 1, True): "failed",
    ("build-10", 1, True): "inconclusive",
    ("build-11", 1, True): "improved",
    ("build-1", 2, True): "no_baseline",
}
"""By engine, servers that decode, async scheduling. Those without a verdict are what the others are held against."""

UPSTREAM = "https://github.com/vllm-project/vllm/issues/42182"
REPORTS = {"md": "report.md", "html": "report.html", "junit": "junit.xml", "csv": "summary.csv"}


@dataclass
class Swept:
    """The sweep, its cells by engine, servers that decode and async scheduling, and GitHub's step summary."""

    sweep: Any
    cells: dict[tuple[str, int, bool], Any]
    summary: Path

    def text(self, form: str) -> str:
        return str(self.sweep.out) if form == "table" else (self.sweep.run / REPORTS[form]).read_text(encoding="utf-8")

    def told(self, form: str) -> dict[str, report_readers.Told]:
        return report_readers.READERS[form](self.text(form))


@pytest.fixture(scope="module")
def swept(kit: Any, start_sweep: Any, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """The sweep's file on free ports, run to its end."""
    sweep = yaml.safe_load((kit.root / "tests" / "cases" / "verdicts.yaml").read_text())
    for role in ("prefill", "decode"):
        # Two instances a side take consecutive ports.
        sweep["cell"][role] |= {"port": kit.free_range(2), "side_channel_port": kit.free_range(2)}
    sweep["cell"]["proxy"]["port"] = kit.free_range(1)
    summary = tmp_path_factory.mktemp("github") / "summary.md"
    done = start_sweep(sweep, env={"GITHUB_STEP_SUMMARY": str(summary)}).finish(LONG_S)
    cells = {}
    for cell in done.by_id.values():
        labels = cell.result["labels"]
        if cell.result["rerun_of"] is None:
            cells[labels["engine"], labels["decode_instances"], labels["async_scheduling"]] = cell
    return Swept(done, cells, summary)


def struck(cell: Any, kind: str, side: str = "decode") -> int:
    """Questions or canaries that a fault struck, by the engines' word."""
    asked = {record.request_id for record in cell.records if record.kind == kind and record.repeat == 0}
    return sum(bool(row["faults"]) for name, row in cell.truth(side).items() if name in asked)


def right(cell: Any) -> tuple[int, int]:
    """Questions that were answered right, and all that were answered, by the engines' word."""
    asked = {record.request_id for record in cell.records if record.kind == "question" and record.repeat == 0}
    told = [row for name, row in cell.truth("decode").items() if name in asked and row["outcome"] == "answered"]
    return sum(row["right"] for row in told), len(told)


def errors(cell: Any) -> dict[str, int]:
    """Questions that failed by leg and class, by the engines' word."""
    asked = {record.request_id for record in cell.records if record.kind == "question"}
    cut = sum(row["outcome"] == "stream_cut" for name, row in cell.truth("decode").items() if name in asked)
    bare = sum("no_kv_params" in row["faults"] for name, row in cell.truth("prefill").items() if name in asked)
    return {"decode stream_cut": cut, "prefill no_kv_params": bare}


def expected(swept: Swept) -> dict[tuple[str, int, bool], tuple[str, list[str], list[str]]]:
    """What a reader must be able to say of each cell that needs a look: channel, why, and what else is there to know.

    A row of CSV has room for the first two.
    """
    cells = swept.cells
    damaged = struck(cells["build-2", 1, True], "question")
    codes = struck(cells["build-4", 1, True], "canary")
    failed = errors(cells["build-5", 1, True])
    fewer = right(cells["base", 1, True])[0] - right(cells["build-10", 1, True])[0]
    alone = sum(row["external_tokens"] == 0 for row in in_figures(cells["build-8", 1, True]))
    every = len(in_figures(cells["build-8", 1, True]))
    assert min(damaged, codes, fewer, alone, *failed.values()) > 0
    return {
        ("build-2", 1, True): (
            "damage",
            [f"{damaged} of {QUESTIONS} moved a token's log probability"],
            [
                "Accuracy is worse than on",
                "in order of arrival",
                "it came out the same, so it repeats",
                "or with async_scheduling off, all else the same",
            ],
        ),
        ("build-3", 1, True): (
            "latency",
            ["TTFT (p50) is ", "above the bound of 8"],
            ["Accuracy is shown not to be worse", "sound with engine build-1 or"],
        ),
        ("build-4", 1, True): (
            "damage",
            [f"{codes} of {CANARIES} canaries lost the code that their prompt states"],
            ["it came out the same, so it repeats"],
        ),
        ("build-5", 1, True): (
            "errors",
            [f"{sum(failed.values())} of {QUESTIONS} questions failed", *(f"{name} {k}" for name, k in failed.items())],
            ["it came out the same, so it repeats"],
        ),
        ("build-6", 1, True): (
            "damage",
            [f"Expected to fail: the state of Mamba layers is copied late ({UPSTREAM}). It did (regression)."],
            ["moved a token's log probability"],
        ),
        ("build-7", 1, True): ("accuracy", ["It did not (pass): take the expectation out of the config."], []),
        ("build-8", 1, True): (
            "transfer",
            [f"{every - alone} KV transfers for {every} answered requests"],
            ["some requests were prefilled by decode"],
        ),
        ("build-9", 1, True): (
            "errors",
            ["decode-0 ended with exit code 1: EngineCore encountered a fatal error.", f"of {QUESTIONS} questions had"],
            ["sound with engine build-1 or"],
        ),
        ("build-10", 1, True): ("accuracy", [f"{fewer} were right only there and 0 only here"], []),
        ("build-1", 2, True): ("accuracy", ["There is nothing to hold this cell against"], []),
    }


def in_figures(cell: Any) -> list[Any]:
    """What decode says of a cell's questions and canaries."""
    asked = {record.request_id for record in cell.records if record.kind in ("question", "canary")}
    return [row for name, row in cell.truth("decode").items() if name in asked]


def test_every_verdict_is_there(swept: Swept) -> None:
    assert {key: cell.state for key, cell in swept.cells.items()} == STATES, swept.sweep.err
    assert swept.sweep.code == 1 and not swept.sweep.left_running()
    again = {cell.result["rerun_of"] for cell in swept.sweep.by_id.values()} - {None}
    assert again == {cell.result["cell_id"] for cell in swept.cells.values() if cell.state == "regression"}


@pytest.mark.parametrize("form", sorted(report_readers.READERS))
def test_a_reader_of_one_report_can_say_what_broke_and_why(swept: Swept, form: str) -> None:
    told = swept.told(form)
    for key, (channel, why, more) in expected(swept).items():
        cell = told[swept.cells[key].result["cell_id"]]
        assert (cell.state, cell.channel) == (STATES[key], channel), key
        assert [words for words in (why if form == "csv" else why + more) if words not in cell.why] == [], (key, cell)


@pytest.mark.parametrize("form", sorted(report_readers.READERS))
def test_no_report_has_a_cell_too_few_or_calls_a_sound_one_red(swept: Swept, form: str) -> None:
    every = {cell.result["cell_id"]: STATES[key] or "baseline" for key, cell in swept.cells.items()}
    told = {name: cell.state for name, cell in swept.told(form).items() if not name.endswith(".rerun")}
    sound = ("pass", "improved", "baseline")
    assert told == {name: state for name, state in every.items() if form != "md" or state not in sound}


@pytest.mark.parametrize("form", ["md", "html", "junit"])
def test_a_reader_sees_the_last_words_of_the_server_that_died(swept: Swept, form: str) -> None:
    logs = {name: cell.log for name, cell in swept.told(form).items() if cell.log}
    assert list(logs) == [swept.cells["build-9", 1, True].result["cell_id"]]
    [log] = logs.values()
    assert log.splitlines()[-1].endswith("EngineCore encountered a fatal error.")


def test_every_report_names_the_same_command_for_a_cell(swept: Swept) -> None:
    config = swept.sweep.folder / "sweep.yaml"
    named = {form: swept.told(form) for form in report_readers.READERS}
    for key in expected(swept):
        name = swept.cells[key].result["cell_id"]
        commands = {cells[name].command for form, cells in named.items() if (form, key[0]) != ("table", "build-6")}
        assert commands == {f"pdrig sweep {config} --cell {name}"}


@pytest.mark.parametrize(
    ("key", "code"), [(("build-2", 1, True), 1), (("build-9", 1, True), 3)], ids=["regression", "failed"]
)
def test_the_command_gives_the_same_verdict_again(
    kit: Any, swept: Swept, tmp_path: Path, key: tuple[str, int, bool], code: int
) -> None:
    """As a reader would: it is pasted into a shell, elsewhere."""
    first = swept.cells[key].result
    command = swept.told("md")[first["cell_id"]].command
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env={**kit.clean_env(), "PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    [run] = (tmp_path / "results" / "runs").iterdir()
    again = json.loads((run / "cells" / first["cell_id"] / "cell.json").read_text())
    assert (again["verdict"]["state"], again["labels"]) == (first["verdict"]["state"], first["labels"])
    assert again["verdict"]["reasons"][0]["channel"] == first["verdict"]["reasons"][0]["channel"]
    held = {c["baseline"] for c in first["comparisons"]}
    asked = {path.name for path in run.glob("cells/*")} - {f"{first['cell_id']}.rerun"}
    assert asked <= {first["cell_id"], *held} | {swept.cells["base", 1, True].result["cell_id"]}, "it alone ran"


def test_the_accuracy_in_every_report_is_what_the_engines_answered(swept: Swept) -> None:
    rows = {row["cell_id"]: row for row in csv.DictReader(io.StringIO(swept.text("csv"), newline=""))}
    grid = re.findall(r"^\| ([\w-]+) \| (\d) \| (on|off) \| (.*) \|$", swept.text("md"), re.MULTILINE)
    fields = {(engine, int(servers), a == "on"): field for engine, servers, a, field in grid}
    assert fields.keys() == STATES.keys()
    cases = properties(swept.text("junit"))
    page = swept.text("html")
    for key, cell in swept.cells.items():
        name = cell.result["cell_id"]
        k, n = right(cell)
        said = (fields[key], cases[name]["accuracy"])
        state = (STATES[key] or "baseline").replace("_", " ")
        [chip] = re.findall(rf'<a class="chip [a-z]+" href="#cell-\d+" title="{name}">(.*?)</a>', page)
        assert f" {state} " in f"{said[0]} " and f" {state}<" in chip, key
        if STATES[key] == "failed":
            assert "**0." not in said[0] and said[1] == "-" and rows[name]["accuracy"] == ""
            continue
        assert float(rows[name]["accuracy"]) == k / n and int(rows[name]["correct"]) == k, key
        if STATES[key] == "invalid":
            assert said[1] == "does not count" and f"{k / n:.3f}" not in said[0]
            continue
        assert f"**{k / n:.3f}**" in said[0] and said[1].startswith(f"{k / n:.3f} ["), key
        assert f"<b>{cases[name]['accuracy']}</b>" in chip, key


def properties(junit: str) -> dict[str, dict[str, str]]:
    from xml.etree import ElementTree

    return {
        str(case.get("name")): {str(p.get("name")): str(p.get("value")) for p in case.iter("property")}
        for case in ElementTree.fromstring(junit.encode()).iter("testcase")
    }


def test_errors_by_leg_and_class_are_in_every_report(swept: Swept) -> None:
    cell = swept.cells["build-5", 1, True]
    name = cell.result["cell_id"]
    said = ", ".join(f"{k} {n}" for k, n in sorted(errors(cell).items(), key=lambda e: -e[1]))
    assert f"{QUESTIONS} questions; errors: {said}" in report_readers.plain(swept.text("md"))
    assert f"{QUESTIONS} questions; errors: {said}" in swept.text("html")
    assert f"{name}: {QUESTIONS} questions; errors: {said}" in swept.text("table")
    assert properties(swept.text("junit"))[name]["requests"] == f"{QUESTIONS} questions; errors: {said}"
    frame = rig.load_run(swept.sweep.run)
    [row] = frame.cells[frame.cells.cell_id == name].errors_by_class
    assert row == said
    asked = frame.requests[(frame.requests.cell_id == name) & (frame.requests.kind == "question")]
    failed = asked[asked.error_class.notna()]
    classes = Counter(f"{leg} {kind}" for leg, kind in zip(failed.error_leg, failed.error_class, strict=True))
    assert classes == errors(cell)


def test_the_frames_have_a_row_a_cell_and_a_row_a_request(swept: Swept) -> None:
    frame = rig.load_run(swept.sweep.run)
    assert dict(zip(frame.cells.cell_id, frame.cells.state, strict=True)) == {
        name: told.state for name, told in swept.told("csv").items()
    }
    asked = {name: len(cell.records) for name, cell in swept.sweep.by_id.items()}
    assert frame.requests.groupby("cell_id").size().to_dict() == asked
    held = {name for name, cell in swept.sweep.by_id.items() if cell.result["comparisons"]}
    assert set(frame.pairs[frame.pairs.baseline != "itself"].cell_id) == held


def test_the_step_summary_is_the_markdown(swept: Swept) -> None:
    assert swept.summary.read_text(encoding="utf-8") == swept.text("md")


@pytest.mark.parametrize("form", ["table", "md"])
def test_the_history_has_every_cell_with_its_verdict(kit: Any, swept: Swept, form: str) -> None:
    command = [sys.executable, "-m", "rig", "report", str(swept.sweep.run), "--history", "--format", form]
    done = subprocess.run(command, cwd=kit.root, env=kit.clean_env(), capture_output=True, text=True, check=True)
    for cell in swept.cells.values():
        assert cell.result["cell_id"] in done.stdout
    assert ".rerun" not in done.stdout


def test_where_it_was_made_is_told(swept: Swept) -> None:
    config = shlex.quote(str(swept.sweep.folder / "sweep.yaml"))
    for form in ("md", "html", "junit"):
        text = report_readers.plain(swept.text(form))
        assert f"sweep {config} --out" in text and swept.sweep.run.name in text, form
        assert rig.__version__ in text and os.uname().nodename in text, form
    for form in ("md", "html"):
        assert "VLLM_NIXL_SIDE_CHANNEL_HOST" in report_readers.plain(swept.text(form)), form
        text = report_readers.plain(swept.text(form))
        assert text.count("correct / (correct + wrong + unparsed + truncated)") == 1, "each formula once"
