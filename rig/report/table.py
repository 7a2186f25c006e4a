"""A run as plain monospace text; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rig.explain import explain
from rig.metrics import METRIC_FORMULAS
from rig.records import CellResult, RunResult
from rig.report import looks, rows
from rig.report.reproduce import reproduce
from rig.report.rows import Column
from rig.report.text import WIDTH, fits, grid_lines, grid_text, painted, wrap
from rig.verdict import state_name, sweep_summary


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
        parts += [_listed("Resumed", run.cells, rows.resumed_text, width)]
        parts += [_listed("Notes", run.cells, rows.notes_text, width)]
        parts += [_verdicts(run.cells, width, color), _why(run.cells, width), _again(run)]
        parts += [_listed("Noise floor", run.cells, rows.noise_text, width)]
        parts += [_listed("Repeats", run.cells, rows.repeats_text, width), _ratios(run.cells, width)]
        parts += [rows.warmup_text(run.cells)]
    missing = looks.without_result_text(run)
    parts += [_reference(run, width), _legend(run.cells, width), wrap(missing, width, "  ") if missing else ""]
    parts += [f"{sweep_summary(run.cells)}\nRun: {path}"]
    return "\n\n".join(part for part in parts if part)


def _shared(cells: Sequence[CellResult], width: int) -> str:
    texts = [f"{name} {text}" for name, text in rows.constant_labels(cells).items()]
    return wrap("Every cell that has it: " + ", ".join(texts), width, "  ") if texts and len(cells) > 1 else ""


def _cells(cells: Sequence[CellResult], width: int, color: bool) -> str:
    """One table, or two with the labels on both, or the same with numbers for labels and a key below."""
    labels = rows.label_columns(cells) or [Column("cell", tuple(c.cell_id for c in cells))]
    answers, verdicts = rows.answer_columns(cells), rows.verdict_columns(cells)
    speed = [*rows.damage_columns(cells), *rows.speed_columns(cells)]
    whole = grid_lines([*labels, *answers, *speed, *verdicts], color)
    if fits(whole, width):
        return grid_text(whole)
    split = [grid_lines([*labels, *answers, *verdicts], color), grid_lines([*labels, *speed], color)]
    if all(fits(lines, width) for lines in split):
        return "\n\n".join(grid_text(lines) for lines in split)
    numbers = [Column("#", tuple(str(i + 1) for i in range(len(cells))))]
    split = [grid_lines([*numbers, *answers, *verdicts], color), grid_lines([*numbers, *speed], color)]
    key = []
    for i, cell in enumerate(cells):
        told = ", ".join(column.title.replace("\n", "_") + " " + column.texts[i] for column in labels)
        named = told if labels[0].title == "cell" else f"{cell.cell_id}: {told}"
        key.append(wrap(f"#{i + 1}  {named}", width, "    "))
    return "\n\n".join([*(grid_text(lines) for lines in split), "\n".join(key)])


def _listed(title: str, cells: Sequence[CellResult], told: Callable[[CellResult], str | None], width: int) -> str:
    """A line for each cell that has something to say."""
    found = [(cell.cell_id, text) for cell in cells if (text := told(cell))]
    lines = [wrap(f"  {cell_id}: {text}", width, "      ") for cell_id, text in found]
    return "\n".join([title, *lines]) if lines else ""


def _ratios(cells: Sequence[CellResult], width: int) -> str:
    found = [f"  {cell.cell_id} {text}" for cell in cells for text in rows.ratios_text(cell)]
    title = "Speed over the baseline's [95 %]"
    return "\n".join([title, *(wrap(text, width, "      ") for text in found)]) if found else ""


def _why(cells: Sequence[CellResult], width: int) -> str:
    found = explain(cells)
    return f"Why these cells\n{wrap(f'  {found.text}', width, '  ')}" if found else ""


def _verdicts(cells: Sequence[CellResult], width: int, color: bool) -> str:
    lines = ["Verdicts"]
    for cell in cells:
        lines.append(f"  {cell.cell_id}: {painted(state_name(cell), color)}")
        lines += [wrap(f"    {text}", width, "      ") for text in looks.reason_texts(cell, cells)]
    return "\n".join(lines)


def _again(run: RunResult) -> str:
    """The command for each cell that needs a look, on a line of its own: it is there to be copied."""
    lines = [f"  {reproduce(run, cell)}" for cell in run.cells if cell.rerun_of is None and looks.needs_a_look(cell)]
    return "\n".join(["To run them again", *lines]) if lines else ""


def _reference(run: RunResult, width: int) -> str:
    """Results that others published, whatever their keys are."""
    found = [rows.flat(reference) for reference in run.reference]
    if not found:
        return ""
    names = dict.fromkeys(name for row in found for name in row)
    columns = [Column(name, tuple(row.get(name, rows.MISSING) for row in found)) for name in names]
    lines = grid_lines(columns, False)
    if fits(lines, width):
        return "Reference\n" + grid_text(lines)
    listed = [", ".join(f"{name} {text}" for name, text in row.items()) for row in found]
    return "\n".join(["Reference", *(wrap(f"  {text}", width, "    ") for text in listed)])


def _legend(cells: Sequence[CellResult], width: int) -> str:
    if not cells:
        return ""
    columns = [*rows.answer_columns(cells), *rows.damage_columns(cells), *rows.speed_columns(cells)]
    columns += rows.verdict_columns(cells)
    names = [column.about for column in columns if column.about]
    return "\n".join(["How it is counted", *(wrap(f"  {n}: {METRIC_FORMULAS[n]}", width, "    ") for n in names)])
