"""The overview of the HTML report: a grid a model, and accuracy with intervals; pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rig.records import CellResult
from rig.report import looks, rows
from rig.report.html_svg import Axis, coordinate, escape, svg, tag
from rig.verdict import state_name

MARKS = {
    "pass": "✓",
    "improved": "▲",
    "regression": "✗",
    "xpass": "✗",
    "failed": "✗",
    "invalid": "!",
    "not judged": "!",
    "inconclusive": "?",
    "no_baseline": "?",
    "xfail": "✓",
    "baseline": "=",
}
"""A sign for each state, so that colour is never all that tells them apart."""
TONES = {
    "pass": "good",
    "improved": "good",
    "regression": "bad",
    "xpass": "bad",
    "failed": "bad",
    "invalid": "open",
    "not judged": "open",
    "inconclusive": "open",
    "no_baseline": "open",
    "xfail": "known",
    "baseline": "plain",
}
_PLACED = ("model", "prefill_tp", "decode_tp", "async_scheduling")


def state_badge(cell: CellResult) -> str:
    """A cell's state with its sign."""
    state = state_name(cell)
    sign = tag("span", MARKS[state], aria_hidden="true")
    return tag("span", f"{sign} {escape(state.replace('_', ' '))}", class_=f"state {TONES[state]}")


def anchor(number: int) -> str:
    """The name of a cell's section."""
    return f"cell-{number + 1}"


def grids(cells: Sequence[CellResult]) -> str:
    """One grid a model: prefill TP down, decode TP and async scheduling across; monolithic cells in rows apart."""
    numbered = _first_asked(cells)
    models = dict.fromkeys(json.dumps(cell.labels.get("model")) for _, cell in numbered)
    parts = []
    for model in models:
        group = [(i, cell) for i, cell in numbered if json.dumps(cell.labels.get("model")) == model]
        parts.append(_grid(group, rows.label_text(json.loads(model))))
    return "".join(parts)


def _first_asked(cells: Sequence[CellResult]) -> list[tuple[int, CellResult]]:
    """Cells with their numbers, without those that repeat a red one: that stands in the red one's reasons."""
    return [(i, cell) for i, cell in enumerate(cells) if cell.rerun_of is None]


def _grid(cells: Sequence[tuple[int, CellResult]], model: str) -> str:
    columns = _values([(cell.labels.get("decode_tp"), cell.labels.get("async_scheduling")) for _, cell in cells])
    tps = list(dict.fromkeys(tp for tp, _ in columns))
    top = tag("td", "") + "".join(
        tag(
            "th", escape(f"decode TP {rows.label_text(tp)}"), scope="colgroup", colspan=sum(t == tp for t, _ in columns)
        )
        for tp in tps
    )
    below = tag("td", "") + "".join(
        tag("th", escape(f"async {rows.label_text(value)}"), scope="col") for _, value in columns
    )
    lines = []
    for kind, prefill in _values([(cell.kind, cell.labels.get("prefill_tp")) for _, cell in cells]):
        head = "whole, no P/D" if kind == "monolithic" else f"prefill TP {rows.label_text(prefill)}"
        row = [tag("th", escape(head), scope="row")]
        for decode, scheduling in columns:
            at = (kind, prefill, decode, scheduling)
            here = [(i, cell) for i, cell in cells if _place(cell) == at]
            row.append(tag("td", "".join(_chip(i, cell, cells) for i, cell in here) or tag("span", "·", class_="none")))
        lines.append(tag("tr", "".join(row)))
    table = tag("table", tag("thead", tag("tr", top) + tag("tr", below)) + tag("tbody", "".join(lines)), class_="grid")
    box = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=f"Overview of {model}")
    return tag("h3", escape(f"Model {model}")) + box


def _place(cell: CellResult) -> tuple[Any, ...]:
    labels = cell.labels
    return cell.kind, labels.get("prefill_tp"), labels.get("decode_tp"), labels.get("async_scheduling")


def _values(found: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Different values in order: numbers by size, what is missing last, words by name (so P/D after monolithic)."""

    def key(values: tuple[Any, ...]) -> list[tuple[int, float, str]]:
        return [
            (2, 0.0, "") if v is None else (0, float(v), "") if isinstance(v, int | float) else (1, 0.0, str(v))
            for v in values
        ]

    return sorted(dict.fromkeys(found), key=key)


def _chip(number: int, cell: CellResult, group: Sequence[tuple[int, CellResult]]) -> str:
    """A cell in the grid: state, accuracy, change, and the labels that the grid does not place."""
    same = [other for _, other in group if other.kind == cell.kind]
    rest = [n for n in rows.varying_labels(same) if n not in _PLACED and cell.labels.get(n) is not None]
    told = ", ".join(f"{n.replace('_', ' ')} {rows.label_text(cell.labels[n])}" for n in rest)
    channel = looks.deciding_channel(cell)
    lines = [f"{state_badge(cell)} {escape(channel)}" if channel else state_badge(cell)]
    lines.append(tag("b", escape(rows.accuracy_text(cell))))
    lines += [tag("span", escape(f"{text} points")) for text in rows.changes_texts(cell) if text != rows.MISSING]
    if told:
        lines.append(tag("small", escape(told)))
    inside = "".join(tag("span", line, class_="line") for line in lines)
    return tag("a", inside, class_=f"chip {TONES[state_name(cell)]}", href=f"#{anchor(number)}", title=cell.cell_id)


def accuracies(cells: Sequence[CellResult]) -> str:
    """Accuracy of each cell with its interval, and its change against each baseline, on common scales."""
    sound = [(i, c) for i, c in _first_asked(cells) if rows.figures_count(c)]
    scored = [(i, c) for i, c in sound if c.accuracy and c.accuracy.value is not None]
    if not scored:
        return ""
    lows = [c.accuracy.ci95[0] if c.accuracy and c.accuracy.ci95 else 0.0 for _, c in scored]
    axis = Axis("accuracy", max(0.0, min(lows) - 0.02), 1.0)
    changes = [(i, c, x) for i, c in sound for x in c.comparisons if x.delta is not None]
    lines = [
        _interval(i, c.cell_id, rows.accuracy_text(c), axis, a.value, a.ci95, state_badge(c))
        for i, c in scored
        if (a := c.accuracy) and a.value is not None
    ]
    out = tag("h3", "Accuracy, 95 % intervals") + _scale(lines, axis, "")
    if changes:
        reach = max(max(abs(v) for v in (x.delta or 0.0, *(x.ci95 or ()))) for _, _, x in changes)
        reach = max(reach, *(1.5 * c.gates.max_accuracy_drop for _, c, _ in changes), 0.01)
        axis = Axis("change", -100 * reach, 100 * reach)
        lines = []
        for i, c, x in changes:
            interval = (100 * x.ci95[0], 100 * x.ci95[1]) if x.ci95 else None
            margin = -100 * c.gates.max_accuracy_drop
            name, said = f"{c.cell_id} against {x.baseline}", f"{rows.change_text(x)} points"
            lines.append(_interval(i, name, said, axis, 100 * (x.delta or 0.0), interval, state_badge(c), margin))
        note = tag("p", "Solid line: no change. Dashed line: the margin, the largest drop that passes.", class_="note")
        out += tag("h3", "Change against the baseline, points") + _scale(lines, axis, "") + note
    return out


def _interval(
    number: int,
    name: str,
    said: str,
    axis: Axis,
    value: float,
    ci95: tuple[float, float] | None,
    badge: str,
    margin: float | None = None,
) -> str:
    def at(x: float) -> str:
        return coordinate(10 + axis.share(x) * 980)

    marks = tag("path", class_="rail", d="M10 11H990")
    if margin is not None:
        marks += tag("path", class_="zero", d=f"M{at(0)} 0V22") + tag("path", class_="margin", d=f"M{at(margin)} 0V22")
    if ci95:
        marks += tag(
            "path", class_="whisker s0", d=f"M{at(ci95[0])} 11H{at(ci95[1])}M{at(ci95[0])} 6V16M{at(ci95[1])} 6V16"
        )
    marks += tag("path", class_="point s0", d=f"M{at(value)} 4V18")
    picture = svg(marks, 1000, 22, f"{name}: {said}", preserveAspectRatio="none", class_="interval")
    link = tag("a", escape(name), href=f"#{anchor(number)}")
    return tag("li", tag("div", f"{link} {badge} {tag('b', escape(said))}", class_="said") + picture)


def _scale(lines: Sequence[str], axis: Axis, unit: str) -> str:
    ends = (axis.low, (axis.low + axis.high) / 2, axis.high)
    texts = "".join(tag("span", escape(f"{value:.4g}{unit}")) for value in ends)
    return tag("ul", "".join(lines), class_="intervals") + tag("div", texts, class_="scale", aria_hidden="true")
