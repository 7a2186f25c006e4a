from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig.evidence_common import LEFT_OUT
from rig.records import CellResult, Evidence, Finding, Group, Groups, Reason, Resumed, RunInfo, RunResult, Verdict
from rig.report.junit import format_junit, result_tag
from rig.report.logs import LogTail

GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize("strict", [False, True])
def test_every_state_as_it_should_be(every_state: RunResult, strict: bool) -> None:
    golden = GOLDEN / ("junit-strict.xml" if strict else "junit.xml")
    assert format_junit(every_state, strict) == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("state", "tag", "strict_tag"),
    [
        ("pass", None, None),
        ("improved", None, None),
        ("baseline", None, None),
        ("regression", "failure", "failure"),
        ("xpass", "failure", "failure"),
        ("inconclusive", "skipped", "failure"),
        ("no_baseline", "skipped", "failure"),
        ("xfail", "skipped", "skipped"),
        ("invalid", "error", "error"),
        ("failed", "error", "error"),
        ("not judged", "error", "error"),
    ],
)
def test_tags(state: str, tag: str | None, strict_tag: str | None) -> None:
    assert (result_tag(state), result_tag(state, strict=True)) == (tag, strict_tag)


def test_counts_are_those_of_the_cases(every_state: RunResult) -> None:
    suite = ElementTree.fromstring(format_junit(every_state)).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert (len(cases), suite.get("tests")) == (len(every_state.cells), str(len(every_state.cells)))
    for tag, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert suite.get(name) == str(sum(case.find(tag) is not None for case in cases)) != "0"


def test_a_repetition_of_a_red_cell_is_no_case_of_its_own(every_state: RunResult) -> None:
    again = replace(every_state.cells[3], cell_id="cell-regression.rerun", rerun_of="cell-regression")
    assert format_junit(replace(every_state, cells=(*every_state.cells, again))) == format_junit(every_state)


def test_a_cell_that_never_asked_has_no_time(every_state: RunResult) -> None:
    cases = ElementTree.fromstring(format_junit(every_state)).findall("testsuite/testcase")
    assert {case.get("name"): case.get("time") for case in cases}["cell-failed"] is None


@given(text=st.text())
def test_it_is_xml_whatever_a_model_wrote(text: str) -> None:
    info = RunInfo("id", text, text, "", {}, "2026-01-31T10:00:00Z", None, [], {"vllm": text}, {}, None)
    verdict = Verdict("regression", (Reason("accuracy", text, text), Reason("errors", text)))
    cell = CellResult("c", {"model": text}, "pd", "d", "ok", verdict=verdict, failure=text)
    suite = ElementTree.fromstring(format_junit(RunResult(info, (cell,))).encode()).find("testsuite")
    assert suite is not None and suite.get("failures") == "1"


def test_what_xml_cannot_hold_is_replaced_and_the_rest_is_kept(make_result: Callable[..., CellResult]) -> None:
    said = "null \x00 escape \x1b half \ud83d whole \U0001f600 ]]> <b> & é"
    verdict = Verdict("regression", (Reason("accuracy", said),))
    info = RunInfo("id", "n", "c.yaml", "", {}, "t", None, [], {}, {}, None)
    text = format_junit(RunResult(info, (replace(make_result(), verdict=verdict),)))
    failure = ElementTree.fromstring(text.encode()).find(".//failure")
    assert failure is not None and failure.text is not None
    shown = "accuracy: null \ufffd escape \ufffd half \ufffd whole \U0001f600 ]]> <b> & é"
    assert failure.text.splitlines()[0] == failure.get("message") == shown
    assert failure.text.endswith("Run it again: pdrig sweep c.yaml --cell pd")


def test_the_end_of_a_failed_cells_log_is_its_standard_error(every_state: RunResult) -> None:
    logs = {"cell-failed": (LogTail("decode-0", "d.log", ("one", "null \x00")), LogTail("proxy", "p.log", ("fine",)))}
    suite = ElementTree.fromstring(format_junit(every_state, logs=logs))
    found = {
        c.get("name"): c.findtext("system-err") for c in suite.iter("testcase") if c.find("system-err") is not None
    }
    assert found == {"cell-failed": "Log of decode-0: the last 2 lines of d.log\none\nnull \ufffd"}


def test_what_was_resumed_and_groups_are_properties(every_state: RunResult) -> None:
    groups = Groups("depth", (Group("0 %", 38, 40),))
    cell = replace(every_state.cells[1], resumed=Resumed(12, 3, ("d",), 1.0), groups=groups)
    [case] = ElementTree.fromstring(format_junit(replace(every_state, cells=(cell,)))).iter("testcase")
    told = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert str(told["resumed"]).startswith("12 records are from before, 3 questions were asked again")
    assert told["groups"] == "by depth: 0 % 38/40"


def test_a_server_that_a_router_left_out_is_in_the_text_whatever_came_of_the_cell(every_state: RunResult) -> None:
    text = "the router left out decode-1: no request ended there"
    proof = Evidence(True, findings=(Finding("transfer", text, LEFT_OUT),))
    cells = [replace(cell, evidence=proof) for cell in every_state.cells]
    cases = list(ElementTree.fromstring(format_junit(replace(every_state, cells=tuple(cells)))).iter("testcase"))
    said = ["".join(case.itertext()) for case in cases]
    assert len(said) == 11 and all(f"note: {text}" in one for one in said)


@pytest.mark.parametrize("name", ["mono", "cell-pass", "cell-xfail", "cell-no_baseline", "cell-invalid"])
def test_a_stored_baseline_that_is_missing_is_a_failure_under_strict(every_state: RunResult, name: str) -> None:
    missing = "No baseline is stored in x for its model and task."
    cells = [replace(c, missing_baseline=missing) if c.cell_id == name else c for c in every_state.cells]

    def ends(strict: bool) -> ElementTree.Element:
        suite = ElementTree.fromstring(format_junit(replace(every_state, cells=tuple(cells)), strict))
        return next(case for case in suite.iter("testcase") if case.get("name") == name)

    loose, strict = ends(False), ends(True)
    said = f"note: held against no stored baseline: {missing}"
    assert all("".join(case.itertext()).count(said) == 1 for case in (loose, strict))
    assert loose.find("failure") is None
    if name == "cell-invalid":
        assert strict.find("error") is not None and strict.find("failure") is None
    else:
        failure = strict.find("failure")
        assert failure is not None and (failure.get("message") == said) == (name != "cell-no_baseline")
