"""A run as Markdown for a pull request; pure. The first line is the verdict in words.

It fits GitHub's limit of a comment: details are folded away, and where that is not enough they are left out, least
important first. A cell that somebody has to look at is always named.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rig.explain import explain
from rig.records import CellResult, RunResult
from rig.report import looks
from rig.report import markdown_figures as figures
from rig.report.logs import LogTail
from rig.report.markdown_fit import LIMIT, Part, fit, fixed, optional
from rig.report.markdown_grid import legend, overviews, repetitions, varying
from rig.report.markdown_red import BRIEF_CHARS, Shown, entry
from rig.report.markdown_text import MARKS, code, inline, shortened
from rig.report.reproduce import kept_options, reproduce
from rig.secrets import masked_line
from rig.verdict import state_name, states_text

MOST_CELLS_LISTED = 1_000
"""So many cells to look at are listed by name; of more, their number is told."""
LONGEST_EXPLANATION = 2_000

_OVERVIEW, _LINE, _BRIEF, _WHOLE, _EXPECTED, _LOGS = 1, 2, 3, 4, 5, 6
_SPEED, _NOISE, _MADE, _FIGURES, _REFERENCE, _LATENCIES, _FORMULAS, _VARIABLES, _CONFIG = range(7, 16)


def format_markdown(
    run: RunResult, path: str, logs: Mapping[str, Sequence[LogTail]] | None = None, limit: int = LIMIT
) -> str:
    """The report, at most `limit` characters long; `path` is where the run lies, `logs` are by cell id."""
    cells = run.cells
    parts = [fixed(headline(cells)), fixed(_missing(run)), fixed(_about(run, path))]
    if cells:
        parts += [optional(text, _OVERVIEW) for text in overviews(cells)]
        parts += [optional(legend(cells), _OVERVIEW), *_look_at(run, logs or {}, limit)]
        parts += [optional(_expected(run), _EXPECTED)]
        parts += [
            optional(figures.by_groups(cells), _EXPECTED),
            optional(figures.resumed(cells), _EXPECTED),
            optional(figures.notes(cells), _EXPECTED),
            optional(figures.ratios(cells), _SPEED),
            optional(figures.noise_and_canaries(cells), _NOISE),
        ]
        parts += [optional(figures.figures(cells), _FIGURES), optional(figures.latencies(cells), _LATENCIES)]
        parts += [optional(figures.formulas(), _FORMULAS)]
    parts += [optional(figures.reference(run), _REFERENCE), optional(figures.provenance(run), _MADE)]
    parts += [optional(figures.variables(run), _VARIABLES), optional(figures.config(run), _CONFIG)]
    return fit(parts, limit, _cut_notice(run, path))


def headline(cells: Sequence[CellResult]) -> str:
    """The sweep's verdict in words, the worst first; repetitions are not counted."""
    by_state: dict[str, list[CellResult]] = {}
    for cell in cells:
        if cell.rerun_of is None:
            by_state.setdefault(state_name(cell), []).append(cell)

    def named(*states: str) -> str:
        return looks.first_of([_named(cell) for state in states for cell in by_state.get(state, ())])

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


def _missing(run: RunResult) -> str:
    text = looks.without_result_text(run)
    return f"**Not finished.** {inline(text)}" if text else ""


def _named(cell: CellResult) -> str:
    """A cell's name with what decided."""
    name = code(shortened(cell.cell_id, 80))
    channel = looks.deciding_channel(cell)
    return f"{name} ({inline(channel)})" if channel else name


def _about(run: RunResult, path: str) -> str:
    """Which sweep, when, what came of it, where it lies."""
    info = run.info
    ended = f"to {inline(info.ended)}" if info.ended else "**not finished**"
    counted = states_text(run.cells)
    return (
        f"Sweep {code(shortened(info.name, 100))} ({code(shortened(info.config_file, 200))}), {inline(info.started)} "
        f"{ended}. {inline(counted)}. Run folder: {code(shortened(path, 300))}; files below are named from there."
    )


def _look_at(run: RunResult, logs: Mapping[str, Sequence[LogTail]], limit: int) -> list[Part]:
    """What needs a look, a part a cell; before them what tells the red cells from the sound ones."""
    found = looks.to_look_at(run.cells)
    if not found:
        return []
    listed = found[:MOST_CELLS_LISTED]
    longest = max(12, min(200, limit * 3 // 4 // len(listed) - 30))
    why = explain(run.cells)
    parts = [fixed("### What to look at")]
    if why:
        parts.append(fixed(f"**Which cells:** {inline(shortened(why.text, LONGEST_EXPLANATION))}"))
    shown = Shown(varying(run.cells), repetitions(run.cells), longest, (_LINE, _BRIEF, _WHOLE, _LOGS))
    parts += [entry(run, cell, logs.get(cell.cell_id, ()), shown) for cell in listed]
    if len(found) > len(listed):
        counts = {s: sum(state_name(c) == s for c in found[MOST_CELLS_LISTED:]) for s in looks.LOOK_AT}
        more = ", ".join(f"{k} {state}" for state, k in counts.items() if k)
        parts.append(fixed(f"And {len(found) - len(listed)} more: {more}."))
    return parts


def _expected(run: RunResult) -> str:
    """Cells that failed as they were expected to: why they were, what failed this time, and how to run them again."""
    lines = []
    for cell in run.cells:
        if state_name(cell) != "xfail" or cell.rerun_of is not None or cell.verdict is None:
            continue
        expected, *found = cell.verdict.reasons
        lines.append(f"- {MARKS['xfail']} {code(cell.cell_id)}: {inline(shortened(expected.text, 300))}")
        if found:
            text = shortened(masked_line(found[0].text), BRIEF_CHARS)
            lines.append(f"  - this time **{inline(found[0].channel)}**: {inline(text)}")
        lines.append(f"  - run it again: {code(reproduce(run, cell))}")
    return "### Failed as expected\n\n" + "\n".join(lines) if lines else ""


def _cut_notice(run: RunResult, path: str) -> str:
    options = kept_options(run)
    again = shlex.join(["pdrig", "sweep", run.info.config_file, "--cell", "CELL", *options])
    return (
        "**Cut to fit a comment of GitHub's.** Every cell that needs a look is listed above. All of it is in the run "
        f"folder, {code(shortened(path, 300))}: `report.html`, and a `cells/CELL/cell.json` for each. "
        f"To run a cell again: {code(shortened(again, 400))}"
    )
