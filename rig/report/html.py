"""A run as one HTML file that opens offline: overview, charts, every request; pure.

Style and script are package data and stand in the file; it loads nothing. A content security policy admits
that one script alone, so no text of a model can run, whatever it holds.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from functools import cache
from importlib import resources
from string import Template

from rig.explain import explain
from rig.metrics import METRIC_FORMULAS
from rig.records import RunResult
from rig.report import looks, made, rows
from rig.report.data import RunData
from rig.report.html_cell import cell_section
from rig.report.html_charts import over_concurrency
from rig.report.html_data import embedded, requests_data
from rig.report.html_grid import accuracies, anchor, grids, state_badge
from rig.report.html_svg import escape, table, tag
from rig.secrets import masked_argv, masked_yaml
from rig.verdict import states_text


def format_html(data: RunData) -> str:
    """The whole page. The same results and requests give the same bytes."""
    run = data.results
    style, script = _asset("report.css"), _asset("report.js")
    cells = "".join(cell_section(data, i) for i in range(len(run.cells)))
    values = {
        "title": escape(f"{run.info.name} {run.info.run_id}"),
        "style": style,
        "script": script,
        "style_hash": _digest(style),
        "script_hash": _digest(script),
        "heading": escape(rows.heading(run)),
        "summary": _summary(run),
        "holes": _holes(data),
        "warmup": escape(rows.warmup_text(run.cells)),
        "grids": grids(run.cells) or tag("p", "Nothing ran."),
        "why": tag("p", f"Which cells: {escape(why.text)}") if (why := explain(run.cells)) else "",
        "accuracy": accuracies(run.cells),
        "speed": over_concurrency(run.cells),
        "cells": cells,
        "provenance": _provenance(run),
        "data": embedded(requests_data(data)).decode(),
    }
    return Template(_asset("report.html")).substitute(values)


def _summary(run: RunResult) -> str:
    """How many cells ended in which state, then a link to each that needs a look, the worst first."""
    counted = tag("p", escape(states_text(run.cells)), class_="summary")
    numbers = {cell.cell_id: i for i, cell in enumerate(run.cells)}
    links = [
        f"{tag('a', escape(cell.cell_id), href=f'#{anchor(numbers[cell.cell_id])}')} {state_badge(cell)} "
        f"{escape(looks.deciding_channel(cell) or '')}"
        for cell in looks.to_look_at(run.cells)
    ]
    if missing := looks.without_result_text(run):
        counted += tag("p", escape(missing), class_="summary")
    return counted + (tag("ul", "".join(tag("li", link) for link in links), class_="look") if links else "")


def _holes(data: RunData) -> str:
    """What is not on this page because the run's files are cut, before anything else."""
    found = data.holes()
    if not found:
        return ""
    said = tag("p", tag("b", "Files of this run are damaged: what they held is not on this page."))
    return tag(
        "div", said + tag("ul", "".join(tag("li", escape(hole)) for hole in found)), class_="holes", role="alert"
    )


def _provenance(run: RunResult) -> str:
    info = run.info
    facts = {
        "run": info.run_id,
        "command": shlex.join(masked_argv(info.argv)),
        "started": info.started,
        "ended": info.ended or "not finished",
    }
    facts |= {**info.versions, **made.flat(info.host), **made.flat({"git": info.git or {}})}
    parts = [table(["what", "value"], [[name, text] for name, text in facts.items()])]
    if engines := made.engine_columns(run.info):
        parts += [
            tag("h3", "Engines"),
            table([c.title for c in engines], list(zip(*(c.texts for c in engines), strict=True))),
        ]
    if variables := made.variables(run.info):
        inner = table(["deployment", "server", "variable", "value"], variables)
        head = tag("summary", "Environment variables that were set for each server")
        parts.append(tag("details", head + inner, class_="inner"))
    if info.notes:
        parts.append(tag("ul", "".join(tag("li", escape(note)) for note in info.notes)))
    found = [rows.flat(reference) for reference in run.reference]
    names = list(dict.fromkeys(name for row in found for name in row))
    if names:
        parts += [tag("h3", "Reference"), table(names, [[row.get(n, rows.MISSING) for n in names] for row in found])]
    config = tag("summary", escape(info.config_file)) + tag("pre", escape(masked_yaml(info.config_text)))
    formulas = table(["figure", "how it is counted"], [[n, formula] for n, formula in METRIC_FORMULAS.items()])
    return "".join([*parts, tag("details", config, class_="inner"), tag("h3", "How it is counted"), formulas])


@cache
def _asset(name: str) -> str:
    return resources.files("rig.report").joinpath("assets", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What a content security policy calls a script or style by: of the text between its tags."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
