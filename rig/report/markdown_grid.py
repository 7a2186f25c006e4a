"""The overview: a grid a model of what varies, or a plain table where a grid does not fit; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from rig.labels import label_text
from rig.records import CellResult
from rig.report import looks, rows
from rig.report.markdown_text import MARKS, code, inline, shortened, table
from rig.verdict import state_name

MOST_ACROSS = 8
"""Columns of a grid; one with more is a plain table."""
LEAST_FILLED = 0.6
"""The share of a grid's places that have a cell; labels that go together leave more of them empty."""
LONGEST_LABEL = 60

_ACROSS = ("decode_tp", "async_scheduling")
_UP = {"tp": "TP", "kv": "KV", "gpu": "GPU"}
_REPEATED = ("rerun",)


def overviews(cells: Sequence[CellResult]) -> list[str]:
    """One a model, each with its baselines below."""
    models = dict.fromkeys(json.dumps(cell.labels.get("model")) for cell in cells)
    texts = []
    for model in models:
        mine = [cell for cell in cells if json.dumps(cell.labels.get("model")) == model]
        texts.append("\n\n".join(part for part in _overview(mine, len(models) > 1) if part))
    return texts


def legend(cells: Sequence[CellResult]) -> str:
    """How a field is read."""
    text = "Each field: verdict, and what decided it where somebody has to look; **accuracy**; below it the change "
    text += "against the baseline in points of 100, and its 95 % interval."
    return f"{text} *again:* the same cell once more, on fresh servers." if any(c.rerun_of for c in cells) else text


def where_labels(cell: CellResult, names: Sequence[str]) -> str:
    """The labels of these names that a cell has: `prefill TP 2, async on`."""
    return ", ".join(_told(n, cell) for n in names if cell.labels.get(n) is not None)


def varying(cells: Sequence[CellResult]) -> tuple[str, ...]:
    """Labels with more than one value among cells that are neither baselines nor repetitions."""
    first = [c for c in cells if c.kind != "monolithic" and c.rerun_of is None]
    return tuple(n for n in rows.varying_labels(first or cells) if n not in _REPEATED)


def repetitions(cells: Sequence[CellResult]) -> dict[str, CellResult]:
    """The repetition on fresh servers of each cell that has one, by the id of the cell repeated."""
    return {c.rerun_of: c for c in cells if c.rerun_of is not None}


def words(name: str) -> str:
    """A label's name as a heading: `prefill_tp` is `prefill TP`."""
    if name == "async_scheduling":
        return "async"
    if not re.fullmatch("[a-z_]+", name):  # the path of a setting
        return shortened(name, LONGEST_LABEL)
    return shortened(" ".join(_UP.get(word, word) for word in name.split("_")), LONGEST_LABEL)


def _overview(cells: Sequence[CellResult], several: bool) -> list[str]:
    judged = [c for c in cells if c.kind != "monolithic" and c.rerun_of is None]
    ids = {c.cell_id for c in cells}
    judged += [c for c in cells if c.rerun_of is not None and c.rerun_of not in ids]
    model = label_text(cells[0].labels.get("model"))
    shared = {n: t for n, t in rows.constant_labels(judged or cells).items() if not (several and n == "model")}
    told = ", ".join(f"{inline(words(n))} {inline(shortened(t, LONGEST_LABEL))}" for n, t in shared.items())
    again = repetitions(cells)
    body = (_grid(judged, again) or _plain_table(judged, again)) if judged else ""
    parts = [f"### {inline(shortened(model, LONGEST_LABEL))}" if several else "", f"All cells: {told}." if told else ""]
    return [*parts, body, _baselines(cells, judged)]


def _grid(cells: Sequence[CellResult], again: Mapping[str, CellResult]) -> str:
    """Empty where it does not fit: too many columns, too many empty places, or two cells in one."""
    names = [n for n in varying(cells) if n != "model"]
    across = [n for n in names if n in _ACROSS]
    down = [n for n in names if n not in _ACROSS]
    if len(names) < 2:
        return ""
    if not across:
        across = [down.pop()]
    elif not down:
        down = [across.pop(0)]
    columns = _sorted(across, cells)
    lines = _sorted(down, cells)
    places: dict[tuple[str, str], CellResult] = {}
    for cell in cells:
        places[_key(down, cell), _key(across, cell)] = cell
    if len(places) < len(cells) or len(columns) > MOST_ACROSS:
        return ""
    if len(cells) < LEAST_FILLED * len(columns) * len(lines):
        return ""
    titles = [", ".join(inline(words(n)) for n in down)]
    titles += [", ".join(_told(n, cell) for n in across) for cell in columns.values()]
    body = []
    for key, cell in lines.items():
        head = ", ".join(f"**{_value(n, cell)}**" for n in down)
        fields = [places.get((key, column)) for column in columns]
        body.append([head, *("" if found is None else field_of(found, again) for found in fields)])
    return table(titles, body)


def _plain_table(cells: Sequence[CellResult], again: Mapping[str, CellResult]) -> str:
    names = [n for n in varying(cells) if n != "model"]
    labels = [tuple(_value(n, cell) for n in names) for cell in cells]
    ids = len(set(labels)) < len(cells)
    titles = [*(["cell"] if ids else []), *(inline(words(n)) for n in names), "verdict, accuracy, change"]
    body = [
        [*([code(shortened(cell.cell_id, LONGEST_LABEL))] if ids else []), *told, field_of(cell, again)]
        for cell, told in zip(cells, labels, strict=True)
    ]
    return table(titles, body)


def field_of(cell: CellResult, again: Mapping[str, CellResult]) -> str:
    """A cell in its place: verdict with what decided it, accuracy, changes, and what came of asking it again."""
    channel = looks.deciding_channel(cell)
    state = f"{verdict_mark(cell)} ({inline(channel)})" if channel else verdict_mark(cell)
    if not rows.figures_count(cell):
        return state
    lines = [state + _accuracy(cell)]
    several = len(cell.comparisons) > 1
    for comparison in cell.comparisons:
        against = f" against {inline(shortened(comparison.baseline, LONGEST_LABEL))}" if several else ""
        lines.append(inline(rows.change_text(comparison)) + against)
    if repeated := again.get(cell.cell_id):
        lines.append(f"*again:* {verdict_mark(repeated)}{_accuracy(repeated) if rows.figures_count(repeated) else ''}")
    return "<br>".join(lines)


def verdict_mark(cell: CellResult) -> str:
    state = state_name(cell)
    return f"{MARKS[state]} {state.replace('_', ' ')}"


def _accuracy(cell: CellResult) -> str:
    a = cell.accuracy
    return "" if a is None or a.value is None else f" **{a.value:.3f}**"


def _baselines(cells: Sequence[CellResult], judged: Sequence[CellResult]) -> str:
    """The cells that the others are held against, with what each came to."""
    used = dict.fromkeys(x.baseline for c in judged for x in c.comparisons)
    held = [c for c in cells if c.kind == "monolithic" or c.cell_id in used]
    known = {c.cell_id for c in held}
    lines = []
    for cell in held:
        told = (
            f"accuracy {inline(rows.accuracy_text(cell))}" if rows.figures_count(cell) else "its figures do not count"
        )
        lines.append(f"- {code(cell.cell_id)}: {verdict_mark(cell)}, {told}")
    lines += [f"- {code(name)}" for name in used if name not in known]
    return "Held against:\n\n" + "\n".join(lines) if lines else ""


def _sorted(names: Sequence[str], cells: Sequence[CellResult]) -> dict[str, CellResult]:
    """Each combination of values once, with a cell that has it; numbers in their order, the rest as it comes."""
    found: dict[str, CellResult] = {}
    for cell in cells:
        found.setdefault(_key(names, cell), cell)
    seen = {n: list(dict.fromkeys(json.dumps(c.labels.get(n)) for c in cells)) for n in names}

    def place(cell: CellResult) -> tuple[tuple[bool, float], ...]:
        return tuple(_rank(cell.labels.get(n), seen[n].index(json.dumps(cell.labels.get(n)))) for n in names)

    return dict(sorted(found.items(), key=lambda item: place(item[1])))


def _rank(value: object, seen: int) -> tuple[bool, float]:
    return (False, value) if isinstance(value, int | float) else (True, seen)


def _key(names: Sequence[str], cell: CellResult) -> str:
    return json.dumps([cell.labels.get(n) for n in names], sort_keys=True)


def _told(name: str, cell: CellResult) -> str:
    return f"{inline(words(name))} {_value(name, cell)}"


def _value(name: str, cell: CellResult) -> str:
    return inline(shortened(label_text(cell.labels.get(name)), LONGEST_LABEL))
