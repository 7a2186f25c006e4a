"""The trend of each cell over stored runs, as text or Markdown; pure.

Cells of different runs are the same cell where their labels are equal. Beside the newest figure stands the median of
the last sound runs before it: those whose cell was neither red nor impossible to judge, on the same questions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from rig.columns import aligned
from rig.records import CellResult, RunResult
from rig.report import rows
from rig.report.markdown_fit import LIMIT, Part, fit, fixed, optional
from rig.report.markdown_grid import varying, verdict_mark, where_labels, words
from rig.report.markdown_text import code, folded, inline, table
from rig.report.rows import MISSING, number
from rig.verdict import state_name

WINDOW = 7
"""A window has at most so many sound runs: a week of nights."""
MEDIAN = f"median of last {WINDOW} sound"
SHOWN = 30
"""At most so many runs are drawn, the newest ones."""

SOUND = frozenset({"pass", "improved", "xpass", "inconclusive", "no_baseline", "baseline"})
"""States whose figures enter a window. A red cell's do not: a window of them would call the fault normal."""
MEASURED = SOUND | {"regression", "xfail"}
"""States whose figures are drawn: those of the rest say nothing."""

LETTERS = {
    "pass": ".",
    "improved": "+",
    "regression": "R",
    "xpass": "X",
    "failed": "F",
    "invalid": "I",
    "not judged": "I",
    "inconclusive": "?",
    "no_baseline": "n",
    "xfail": "x",
    "baseline": "=",
}
_NOTHING = "·"
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Point:
    """A cell in one run."""

    run_id: str
    started: str
    cell: CellResult

    @property
    def state(self) -> str:
        return state_name(self.cell)


@dataclass(frozen=True)
class Trend:
    """A cell over the runs that have it, the oldest first; at least one."""

    points: tuple[Point, ...]

    @property
    def newest(self) -> Point:
        return self.points[-1]


@dataclass(frozen=True)
class Figure:
    """A figure that is drawn: how it is read from a cell, and how it is written."""

    title: str
    of: Callable[[CellResult], float | None]
    text: Callable[[float], str]


def _throughput(name: str) -> Callable[[CellResult], float | None]:
    return lambda cell: getattr(cell.throughput, name, None)


FIGURES = (
    Figure("accuracy", lambda cell: cell.accuracy.value if cell.accuracy else None, lambda value: f"{value:.3f}"),
    Figure("TTFT p50 ms", lambda cell: getattr(cell.latency_ms.get("ttft"), "p50", None), number),
    Figure("requests/s", _throughput("requests_per_s"), number),
    Figure("output tokens/s", _throughput("output_tokens_per_s"), number),
)


def trends(runs: Sequence[RunResult]) -> list[Trend]:
    """Cells by their labels over `runs`, which are in order of time; in the newest run's order, then the others.

    Repetitions of red cells are left out: they are asked only where something was red.
    """
    found: dict[str, list[Point]] = {}
    for run in runs:
        seen = set()
        for cell in run.cells:
            key = _key(cell)
            if cell.rerun_of is None and key not in seen:
                seen.add(key)
                found.setdefault(key, []).append(Point(run.info.run_id, run.info.started, cell))
    order = {cell.cell_id: i for i, cell in enumerate(runs[-1].cells)} if runs else {}
    last = runs[-1].info.run_id if runs else ""

    def place(points: Sequence[Point]) -> int:
        newest = points[-1]
        return order.get(newest.cell.cell_id, len(order)) if newest.run_id == last else len(order)

    return [Trend(tuple(points)) for points in sorted(found.values(), key=place)]


def window(points: Sequence[Point], most: int = WINDOW) -> tuple[Point, ...]:
    """The last sound points before the newest, at most `most`, that asked and scored what the newest did."""
    if not points:
        return ()
    newest = points[-1].cell
    sound = [p for p in points[:-1] if p.state in SOUND and _same_questions(p.cell, newest)]
    return tuple(sound[-most:])


def expected(points: Sequence[Point], figure: Figure, most: int = WINDOW) -> tuple[float | None, int]:
    """The median of a figure over the window, and of how many runs it is."""
    values = [v for p in window(points, most) if (v := figure.of(p.cell)) is not None]
    return (median(values) if values else None), len(values)


def spark(points: Sequence[Point], figure: Figure) -> str:
    """One character a point, from the lowest to the highest value drawn; `·` where a point says nothing."""
    values = [figure.of(p.cell) if p.state in MEASURED else None for p in points]
    known = [v for v in values if v is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)

    def bar(value: float | None) -> str:
        if value is None:
            return _NOTHING
        if high == low:
            return _BARS[len(_BARS) // 2 - 1]
        return _BARS[min(len(_BARS) - 1, int((value - low) / (high - low) * len(_BARS)))]

    return "".join(bar(value) for value in values)


def format_history(runs: Sequence[RunResult], skipped: Sequence[str] = ()) -> str:
    """Plain text: a block a cell, oldest run left, newest right."""
    found = trends(runs)
    parts = [_about(runs)]
    for trend in found:
        lines = [f"{trend.newest.cell.cell_id}{_absent(trend, runs)}"]
        fields = [["", "newest", MEDIAN, "trend", "lowest", "highest"], *_fields(trend)]
        lines += [f"  {line}" for line in aligned(fields)]
        parts.append("\n".join([*lines, *(f"  {note}" for note in _notes(trend))]))
    parts += [_legend(found), *(f"left out: {text}" for text in skipped)]
    return "\n\n".join(part for part in parts if part)


def format_history_markdown(runs: Sequence[RunResult], skipped: Sequence[str] = (), limit: int = LIMIT) -> str:
    """The same for a pull request or a step summary, the single runs folded away; at most `limit` characters."""
    found = trends(runs)
    names = varying([trend.newest.cell for trend in found]) if found else ()
    parts = [fixed("### Trend"), fixed(inline(_about(runs))), fixed(inline(_legend(found)))]
    for trend in found:
        title = f"{verdict_mark(trend.newest.cell)}: {code(trend.newest.cell.cell_id)}{inline(_absent(trend, runs))}"
        body = [
            [inline(name), inline(now), inline(usual), code(drawn), " to ".join(filter(None, [inline(a), inline(b)]))]
            for name, now, usual, drawn, a, b in _fields(trend)
        ]
        block = [f"#### {title}", where_labels(trend.newest.cell, names)]
        block.append(table(["", "newest", MEDIAN, "trend", "range"], body))
        block.append("\n".join(f"- {inline(note)}" for note in _notes(trend)))
        whole = "\n\n".join(part for part in block if part)
        parts.append(Part(("", f"- {title}", whole, f"{whole}\n\n{_runs_folded(trend)}"), (1, 2, 3)))
    parts += [optional(f"- left out: {inline(text)}", 1) for text in skipped]
    return fit(parts, limit, "**Cut to fit a comment of GitHub's.** `pdrig report RUN --history` has all of it.")


def _fields(trend: Trend) -> list[list[str]]:
    """A row a figure: its name, newest value, median of the window, what is drawn, lowest and highest of that."""
    drawn = trend.points[-SHOWN:]
    newest = trend.newest
    fields = [["verdict", newest.state.replace("_", " "), "", "".join(LETTERS[p.state] for p in drawn), "", ""]]
    for figure in FIGURES:
        known = [v for p in drawn if p.state in MEASURED and (v := figure.of(p.cell)) is not None]
        usual, of = expected(trend.points, figure)
        value = figure.of(newest.cell) if newest.state in MEASURED else None
        now = MISSING if value is None else figure.text(value)
        if figure.title == "accuracy" and value is not None:
            now = rows.accuracy_text(newest.cell)
        ends = [figure.text(min(known)), figure.text(max(known))] if known else ["", ""]
        told = MISSING if usual is None else f"{figure.text(usual)} ({of} {'run' if of == 1 else 'runs'})"
        fields.append([figure.title, now, told, spark(drawn, figure), *ends])
    return fields


def _notes(trend: Trend) -> list[str]:
    """What a reader must know about a window: which runs are not in it, and why."""
    before = trend.points[:-1]
    notes = []
    if other := sum(p.state in SOUND and not _same_questions(p.cell, trend.newest.cell) for p in before):
        runs = "1 earlier run" if other == 1 else f"{other} earlier runs"
        notes.append(f"{runs} asked other questions, or scored them otherwise: drawn, and not in the median.")
    if out := sum(p.state not in SOUND for p in before):
        runs = "1 earlier run was" if out == 1 else f"{out} earlier runs were"
        notes.append(f"{runs} red or could not be judged: not in the median.")
    return notes


def _runs_folded(trend: Trend) -> str:
    body = []
    for point in reversed(trend.points[-SHOWN:]):
        counts = point.state in MEASURED
        accuracy = rows.accuracy_text(point.cell) if counts else MISSING
        values = [figure.of(point.cell) if counts else None for figure in FIGURES[1:]]
        body.append([code(point.run_id), verdict_mark(point.cell), inline(accuracy), *(number(v) for v in values)])
    titles = ["run", "verdict", "accuracy", *(figure.title for figure in FIGURES[1:])]
    return folded(f"Runs of {trend.newest.cell.cell_id}", table(titles, body))


def _about(runs: Sequence[RunResult]) -> str:
    if not runs:
        return "No stored run."
    if len(runs) == 1:
        return f"1 stored run, {runs[0].info.run_id}: a trend takes more."
    shown = f"; the last {SHOWN} of a cell are drawn" if len(runs) > SHOWN else ""
    return f"{len(runs)} stored runs, {runs[0].info.run_id} to {runs[-1].info.run_id}, the newest at the right{shown}."


def _absent(trend: Trend, runs: Sequence[RunResult]) -> str:
    return "" if trend.newest.run_id == runs[-1].info.run_id else f" (last in {trend.newest.run_id})"


def _legend(found: Sequence[Trend]) -> str:
    states = {p.state for trend in found for p in trend.points[-SHOWN:]}
    told = [f"{sign} {words(state)}" for state, sign in LETTERS.items() if state in states]
    return f"Verdicts: {', '.join(told)}. {_NOTHING} says nothing." if told else ""


def _key(cell: CellResult) -> str:
    """What a cell is matched by; a label that is absent equals one that is None, as in `rig.matching`."""
    labels = {name: value for name, value in cell.labels.items() if value is not None}
    return json.dumps([cell.kind, labels], sort_keys=True)


def _same_questions(one: CellResult, other: CellResult) -> bool:
    """Whether two results are of the same prompts and scorer, as far as they know."""
    mine, theirs = one.task, other.task
    if mine is None or theirs is None:
        return True
    return (mine.prompt_sha256, mine.scorer_sha256) == (theirs.prompt_sha256, theirs.scorer_sha256)
