"""A run as plain monospace text; pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from rig.explain import explain
from rig.metrics import METRIC_FORMULAS
from rig.records import CellResult, RunResult
from rig.report import rows
from rig.report.rows import Column
from rig.verdict import state_name, sweep_summary

WIDTH = 160
LONGEST_LABEL = 28
Field = tuple[str, str]
"""What a field shows, padded, and the colour before it (empty for none)."""

_GAP = "  "
_RESET = "\x1b[0m"
_COLORS = {
    "pass": "\x1b[32m",
    "improved": "\x1b[32m",
    "regression": "\x1b[31m",
    "xpass": "\x1b[31m",
    "failed": "\x1b[31m",
    "invalid": "\x1b[33m",
    "inconclusive": "\x1b[33m",
    "no_baseline": "\x1b[33m",
    "not judged": "\x1b[33m",
    "xfail": "\x1b[36m",
}


def format_table(run: RunResult, path: str, width: int = WIDTH, color: bool = False) -> str:
    """One row a cell, then why each verdict is what it is, reference rows, what the columns mean, and `path`.

    Nothing is cut: where `width` is too small for one table there are two, then numbers in place of labels.
    """
    parts = [rows.heading(run)]
    if run.cells:
        parts += [_shared(run.cells, width), _cells(run.cells, width, color)]
        parts += [_listed("Accuracy by scorer", run.cells, rows.scorers_text, width)]
        parts += [_listed("Accuracy by groups of questions", run.cells, rows.groups_text, width)]
        parts += [_listed("Requests", run.cells, rows.requests_text, width)]
        parts += [_verdicts(run.cells, width, color), _why(run.cells, width)]
        parts += [_listed("Noise floor", run.cells, rows.noise_text, width)]
        parts += [_listed("Repeats", run.cells, rows.repeats_text, width), _ratios(run.cells, width)]
        parts += [rows.warmup_text(run.cells)]
    parts += [_reference(run, width), _legend(run.cells, width), f"{sweep_summary(run.cells)}\nRun: {path}"]
    return "\n\n".join(part for part in parts if part)


def _shared(cells: Sequence[CellResult], width: int) -> str:
    texts = [f"{name} {text}" for name, text in rows.constant_labels(cells).items()]
    return _wrap("Every cell that has it: " + ", ".join(texts), width, "  ") if texts and len(cells) > 1 else ""


def _cells(cells: Sequence[CellResult], width: int, color: bool) -> str:
    """One table, or two with the labels on both, or the same with numbers for labels and a key below."""
    labels = rows.label_columns(cells) or [Column("cell", tuple(c.cell_id for c in cells))]
    answers, verdicts = rows.answer_columns(cells), rows.verdict_columns(cells)
    speed = [*rows.damage_columns(cells), *rows.speed_columns(cells)]
    whole = _lines([*labels, *answers, *speed, *verdicts], color)
    if _fits(whole, width):
        return _text(whole)
    split = [_lines([*labels, *answers, *verdicts], color), _lines([*labels, *speed], color)]
    if all(_fits(lines, width) for lines in split):
        return "\n\n".join(_text(lines) for lines in split)
    numbers = [Column("#", tuple(str(i + 1) for i in range(len(cells))))]
    split = [_lines([*numbers, *answers, *verdicts], color), _lines([*numbers, *speed], color)]
    key = []
    for i, cell in enumerate(cells):
        told = ", ".join(column.title.replace("\n", "_") + " " + column.texts[i] for column in labels)
        named = told if labels[0].title == "cell" else f"{cell.cell_id}: {told}"
        key.append(_wrap(f"#{i + 1}  {named}", width, "    "))
    return "\n\n".join([*(_text(lines) for lines in split), "\n".join(key)])


def _listed(title: str, cells: Sequence[CellResult], told: Callable[[CellResult], str | None], width: int) -> str:
    """A line for each cell that has something to say."""
    found = [(cell.cell_id, text) for cell in cells if (text := told(cell))]
    lines = [_wrap(f"  {cell_id}: {text}", width, "      ") for cell_id, text in found]
    return "\n".join([title, *lines]) if lines else ""


def _ratios(cells: Sequence[CellResult], width: int) -> str:
    found = [f"  {cell.cell_id} {text}" for cell in cells for text in rows.ratios_text(cell)]
    title = "Speed over the baseline's [95 %]"
    return "\n".join([title, *(_wrap(text, width, "      ") for text in found)]) if found else ""


def _why(cells: Sequence[CellResult], width: int) -> str:
    found = explain(cells)
    return f"Why these cells\n{_wrap(f'  {found.text}', width, '  ')}" if found else ""


def _verdicts(cells: Sequence[CellResult], width: int, color: bool) -> str:
    lines = ["Verdicts"]
    for cell in cells:
        lines.append(f"  {cell.cell_id}: {_painted(state_name(cell), color)}")
        for reason in cell.verdict.reasons if cell.verdict else ():
            lines.append(_wrap(f"    {rows.reason_text(reason)}", width, "      "))
    return "\n".join(lines)


def _reference(run: RunResult, width: int) -> str:
    """Results that others published, whatever their keys are."""
    found = [rows.flat(reference) for reference in run.reference]
    if not found:
        return ""
    names = dict.fromkeys(name for row in found for name in row)
    columns = [Column(name, tuple(row.get(name, rows.MISSING) for row in found)) for name in names]
    lines = _lines(columns, False)
    if _fits(lines, width):
        return "Reference\n" + _text(lines)
    listed = [", ".join(f"{name} {text}" for name, text in row.items()) for row in found]
    return "\n".join(["Reference", *(_wrap(f"  {text}", width, "    ") for text in listed)])


def _legend(cells: Sequence[CellResult], width: int) -> str:
    if not cells:
        return ""
    columns = [*rows.answer_columns(cells), *rows.damage_columns(cells), *rows.speed_columns(cells)]
    columns += rows.verdict_columns(cells)
    names = [column.about for column in columns if column.about]
    return "\n".join(["How it is counted", *(_wrap(f"  {n}: {METRIC_FORMULAS[n]}", width, "    ") for n in names)])


def _lines(columns: Sequence[Column], color: bool) -> list[list[Field]]:
    """Lines of fields, padded; headings and texts may have several lines, and a rule is below the headings."""
    split = [[_folded(text) for text in (column.title, *column.texts)] for column in columns]
    widths = [max(len(line) for field in column for line in field) for column in split]
    lines: list[list[Field]] = []
    for r in range(len(columns[0].texts) + 1):
        for k in range(max(len(column[r]) for column in split)):
            fields = []
            for column, field_width, source in zip(split, widths, columns, strict=True):
                text = column[r][k] if k < len(column[r]) else ""
                paint = _COLORS.get(text, "") if color and r and source.title == "verdict" else ""
                fields.append((text.ljust(field_width), paint))
            lines.append(fields)
        if r == 0:
            lines.append([("-" * field_width, "") for field_width in widths])
    return lines


def _folded(text: str) -> list[str]:
    """Lines of a field; a long label goes over several."""
    return [piece for line in text.split("\n") for piece in (textwrap.wrap(line, LONGEST_LABEL) or [""])]


def _fits(lines: Sequence[Sequence[Field]], width: int) -> bool:
    return sum(len(text) for text, _ in lines[0]) + len(_GAP) * (len(lines[0]) - 1) <= width


def _text(lines: Sequence[Sequence[Field]]) -> str:
    return "\n".join(
        _GAP.join(f"{paint}{text}{_RESET}" if paint else text for text, paint in fields).rstrip() for fields in lines
    )


def _painted(state: str, color: bool) -> str:
    return f"{_COLORS[state]}{state}{_RESET}" if color and state in _COLORS else state


def _wrap(text: str, width: int, indent: str) -> str:
    """Text over several lines, the second and later ones indented; words are never broken."""
    return textwrap.fill(
        text,
        width,
        subsequent_indent=indent,
        drop_whitespace=True,
        break_long_words=False,
        break_on_hyphens=False,
    )
