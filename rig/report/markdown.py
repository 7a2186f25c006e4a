"""A run as Markdown for a pull request; pure. The first line is the verdict in words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rig.metrics import METRIC_FORMULAS
from rig.records import CellResult, RunResult
from rig.report import rows
from rig.report.rows import Column
from rig.verdict import state_name, sweep_summary


def format_markdown(run: RunResult, path: str) -> str:
    """The facts of the table, with every latency and the commands folded away; `path` is where the run lies."""
    parts = [headline(run.cells), rows.heading(run)]
    if run.cells:
        labels = rows.label_columns(run.cells) or [Column("cell", tuple(c.cell_id for c in run.cells))]
        columns = [
            *labels,
            *rows.answer_columns(run.cells),
            *rows.speed_columns(run.cells),
            *rows.verdict_columns(run.cells),
        ]
        shared = ", ".join(f"{name} {_code(text)}" for name, text in rows.constant_labels(run.cells).items())
        parts += [f"Every cell: {shared}" if shared and len(run.cells) > 1 else "", _grid(columns)]
        parts += [rows.warmup_text(run.cells)]
        parts += [_verdicts(run.cells), _reference(run), _latencies(run.cells), _commands(run.cells), _legend()]
    parts.append(f"{_plain(sweep_summary(run.cells))}. Run: {_code(path)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(cells: Sequence[CellResult]) -> str:
    """The sweep's verdict in words, the worst first."""
    by_state: dict[str, list[str]] = {}
    for cell in cells:
        by_state.setdefault(state_name(cell), []).append(cell.cell_id)

    def named(*states: str) -> str:
        return ", ".join(_code(cell_id) for state in states for cell_id in by_state.get(state, ()))

    worse, mended = named("regression"), named("xpass")
    unknown = named("failed", "invalid", "not judged")
    unsure = named("inconclusive", "no_baseline")
    good = len(by_state.get("pass", ())) + len(by_state.get("improved", ()))
    said = [f"**Worse than the baseline:** {worse}."] if worse else []
    said += [f"**Passed though expected to fail:** {mended}."] if mended else []
    said += [f"**Could not be judged:** {unknown}."] if unknown else []
    said += [f"**Not decided:** {unsure}."] if unsure else []
    if good:
        cells_are = "1 cell is" if good == 1 else f"{good} cells are"
        said.append(f"**{cells_are} shown to be no worse than the baseline by the margin.**")
    if expected := named("xfail"):
        said.append(f"Failed as expected: {expected}.")
    return " ".join(said) or "**Nothing was judged.**"


def _verdicts(cells: Sequence[CellResult]) -> str:
    lines = ["### Verdicts"]
    for cell in cells:
        lines.append(f"- {_code(cell.cell_id)}: **{state_name(cell)}**")
        lines += [
            f"  - {_plain(rows.reason_text(reason))}" for reason in (cell.verdict.reasons if cell.verdict else ())
        ]
        if text := rows.scorers_text(cell):
            lines.append(f"  - by scorer: {_plain(text)}")
        if text := rows.requests_text(cell):
            lines.append(f"  - requests: {_plain(text)}")
    return "\n".join(lines)


def _reference(run: RunResult) -> str:
    found = [rows.flat(reference) for reference in run.reference]
    names = dict.fromkeys(name for row in found for name in row)
    columns = [Column(name, tuple(row.get(name, rows.MISSING) for row in found)) for name in names]
    return f"### Reference\n\n{_grid(columns)}" if columns else ""


def _latencies(cells: Sequence[CellResult]) -> str:
    found = [(cell.cell_id, name, p) for cell in cells for name, p in {**cell.latency_ms, **cell.legs_ms}.items()]
    if not found:
        return ""
    columns = [
        Column("cell", tuple(cell_id for cell_id, _, _ in found)),
        Column("ms", tuple(name for _, name, _ in found)),
        *(
            Column(part, tuple(rows.number(getattr(p, part)) for _, _, p in found))
            for part in ("p50", "p90", "p99", "mean")
        ),
    ]
    return _folded("Latencies", _grid(columns))


def _commands(cells: Sequence[CellResult]) -> str:
    blocks = [
        f"{_code(cell.cell_id)}\n\n```sh\n"
        + "\n".join(f"# {name}\n{shlex.join(argv)}" for name, argv in cell.commands.items())
        + "\n```"
        for cell in cells
        if cell.commands
    ]
    return _folded("Commands", "\n\n".join(blocks)) if blocks else ""


def _legend() -> str:
    lines = [f"- {name}: {_plain(formula)}" for name, formula in METRIC_FORMULAS.items()]
    return _folded("How it is counted", "\n".join(lines))


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _grid(columns: Sequence[Column]) -> str:
    lines = [
        [_field(column.title) for column in columns],
        ["---"] * len(columns),
        *([_field(column.texts[i]) for column in columns] for i in range(len(columns[0].texts))),
    ]
    return "\n".join(f"| {' | '.join(fields)} |" for fields in lines)


def _field(text: str) -> str:
    return _plain(text).replace("|", "\\|").replace("\n", "<br>")


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    for sign in ("\\", "*", "_", "`", "<", "#"):
        text = text.replace(sign, f"\\{sign}" if sign != "<" else "&lt;")
    return text


def _code(text: str) -> str:
    return f"`{text}`"
