"""A run as JUnit XML, a test case a cell; pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from rig.records import CellResult, RunResult
from rig.report import looks, made, rows
from rig.report.logs import LogTail, decisive
from rig.report.reproduce import reproduce
from rig.secrets import masked_argv
from rig.verdict import BAD_STATES, OPEN_STATES, UNJUDGED_STATES, state_name

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 allows in no form (section 2.2, Char)."""


def format_junit(run: RunResult, strict: bool = False, logs: Mapping[str, Sequence[LogTail]] | None = None) -> str:
    """One suite. A regression or unexpected pass is a failure, a cell that could not be judged an error.

    An expected failure is skipped; so is a cell that is undecided or has no baseline, which under `strict` is a
    failure, as is any cell without a stored baseline that was asked for. A planned cell without a result is an error.
    Labels are properties of the test case. A cell that repeats a red one is no case of its own: what came of it is
    among the red one's reasons. `logs` by cell id: the ends of a failed cell's are its standard error.
    """
    cells = [cell for cell in run.cells if cell.rerun_of is None]
    suite = ElementTree.Element("testsuite", {"name": _clean(run.info.name), "timestamp": _clean(run.info.started)})
    facts = {"run": run.info.run_id, "config": run.info.config_file, "command": shlex.join(masked_argv(run.info.argv))}
    facts |= {"host": rows.label_text(run.info.host.get("hostname")), **made.flat({"git": run.info.git or {}})}
    _properties(
        suite, {**{name: text for name, text in facts.items() if text not in ("", rows.MISSING)}, **run.info.versions}
    )
    for cell in cells:
        suite.append(_case(run, cell, strict, (logs or {}).get(cell.cell_id, ())))
    missing = looks.without_result(run)
    for name in missing:
        case = ElementTree.SubElement(suite, "testcase", {"classname": _clean(run.info.name), "name": _clean(name)})
        ElementTree.SubElement(case, "error", {"message": "The sweep has no result of it yet.", "type": "no result"})
    for tag, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(cells) + len(missing)))
    suite.set("time", f"{sum(cell.throughput.duration_s for cell in cells if cell.throughput):.3f}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def result_tag(state: str, strict: bool = False) -> str | None:
    """What a state is in JUnit: `failure`, `error`, `skipped`, or None for a test that passed."""
    if state in BAD_STATES or (strict and state in OPEN_STATES):
        return "failure"
    if state in UNJUDGED_STATES or state == "not judged":
        return "error"
    return "skipped" if state in OPEN_STATES or state == "xfail" else None


def _case(run: RunResult, cell: CellResult, strict: bool, logs: Sequence[LogTail]) -> ElementTree.Element:
    state = state_name(cell)
    case = ElementTree.Element("testcase", {"classname": _clean(run.info.name), "name": _clean(cell.cell_id)})
    if cell.throughput:
        case.set("time", f"{cell.throughput.duration_s:.3f}")
    facts = {"state": state, "accuracy": rows.accuracy_text(cell), "errors": rows.errors_text(cell.counts)}
    told = {"requests": rows.requests_text(cell), "groups": rows.groups_text(cell), "resumed": rows.resumed_text(cell)}
    facts |= {name: text for name, text in told.items() if text}
    if rows.figures_count(cell):
        facts |= {f"change from {c.baseline}": rows.change_text(c) for c in cell.comparisons}
    _properties(case, {**{name: rows.label_text(v) for name, v in cell.labels.items()}, **facts})
    reasons = looks.reason_texts(cell, run.cells)
    noted = [f"note: {text}"] if (text := rows.notes_text(cell)) else []
    tag = result_tag(state, strict)
    if strict and cell.missing_baseline and tag in (None, "skipped"):
        # What the verdict says is not why it is a failure.
        tag, reasons, noted = "failure", [*noted, *reasons], []
    if tag:
        reasons = reasons or ["This cell has no verdict: it was not finished."]
        said = ElementTree.SubElement(case, tag, {"message": _clean(reasons[0]), "type": state})
        said.text = _clean("\n".join([*reasons, *noted, "", f"Run it again: {reproduce(run, cell)}"]))
    elif reasons or noted:
        ElementTree.SubElement(case, "system-out").text = _clean("\n".join([*reasons, *noted]))
    if tails := decisive(cell, logs):
        ends = "\n\n".join("\n".join([log.title, *log.lines]) for log in tails)
        ElementTree.SubElement(case, "system-err").text = _clean(ends)
    return case


def _properties(parent: ElementTree.Element, values: Mapping[str, str]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", {"name": _clean(name), "value": _clean(value)})


def _clean(text: str) -> str:
    """Text without what XML cannot hold: each such character becomes the replacement character."""
    return _NOT_XML.sub("\ufffd", text)
