"""What is red or undecided: why, where, how to run it again, and what its servers' logs end with; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rig.records import CellResult, Reason, RunResult
from rig.report import looks, rows
from rig.report.logs import LogTail, decisive
from rig.report.markdown_fit import Part
from rig.report.markdown_grid import verdict_mark, where_labels
from rig.report.markdown_text import block, code, folded, inline, shortened
from rig.report.reproduce import reproduce
from rig.secrets import masked_line
from rig.segments import segment_text
from rig.verdict import state_name

LINE_CHARS = 90
BRIEF_CHARS = 280
LONGEST_REASON = 1500
"""Of a single reason; nobody writes longer ones, but an exception may say anything."""

_OF_THE_CELL = ("judged.", "requests.", "canaries.", "pairs.", "cell.json")


@dataclass(frozen=True)
class Shown:
    """How cells are told: the labels that place them, their repetitions, the room for a name, and the forms' ranks."""

    labels: tuple[str, ...]
    again: Mapping[str, CellResult]
    longest_name: int
    ranks: tuple[int, int, int, int]


def entry(run: RunResult, cell: CellResult, logs: Sequence[LogTail], shown: Shown) -> Part:
    """A cell in five forms: its name; with its first reason; with how to run it again; in full; with its logs."""
    name = code(shortened(cell.cell_id, shown.longest_name))
    reasons = cell.verdict.reasons if cell.verdict else ()
    first = reasons[0] if reasons else Reason("rig", cell.failure or "It was not judged.")
    bare = f"- {verdict_mark(cell)}: {name}"
    line = f"{bare} {inline(first.channel)}: {inline(shortened(first.text, LINE_CHARS))}"
    command = reproduce(run, cell)
    title = f"#### {verdict_mark(cell)}: {code(cell.cell_id)}"
    brief = "\n\n".join([title, f"- {_reason(cell, first, BRIEF_CHARS)}\n- Run it again: {code(command)}"])
    parts = [
        title,
        _facts(cell, shown.labels),
        "\n".join(f"- {text}" for text in [*_told(cell, shown.again.get(cell.cell_id)), *_beside(cell, run.cells)]),
        "Run it again:",
    ]
    parts.append(block(command, "sh"))
    whole = "\n\n".join(part for part in parts if part)
    tails = [_tail(log) for log in decisive(cell, logs)]
    forms = (bare, line, brief, whole, *(["\n\n".join([whole, *tails])] if tails else []))
    return Part(forms, shown.ranks[: len(forms) - 1])


def file_of(cell: CellResult, evidence: str) -> str:
    """Where a reason's evidence lies within the run; what is no file stays as it is."""
    if evidence == "counters":
        return f"cells/{cell.cell_id}/cell.json: evidence.counters"
    return f"cells/{cell.cell_id}/{evidence}" if evidence.startswith(_OF_THE_CELL) else evidence


def _reasons(cell: CellResult) -> tuple[Reason, ...]:
    return cell.verdict.reasons if cell.verdict else ()


def _facts(cell: CellResult, names: Sequence[str]) -> str:
    """Which cell it is and what it came to, in a line."""
    said = [where_labels(cell, names)]
    if cell.accuracy and not rows.figures_count(cell):
        return "; ".join([*(text for text in said if text), "its figures do not count"]) + "."
    if cell.accuracy and cell.accuracy.value is not None:
        said.append(f"accuracy {inline(rows.accuracy_text(cell))}")
    if cell.counts and (cell.counts.error or cell.counts.unparsed or cell.counts.truncated):
        said.append(f"without a number {rows.invalid_text(cell.counts)}, errors {rows.errors_text(cell.counts)}")
    said += [
        f"change {inline(rows.change_text(c))} points against {code(c.baseline)}"
        for c in cell.comparisons
        if c.delta is not None
    ]
    return "; ".join(text for text in said if text) + "." if any(said) else ""


def _told(cell: CellResult, again: CellResult | None) -> Iterator[str]:
    """The reasons, and where the hits sit; a repetition with its figures."""
    segments = {segment_text(s) for c in cell.comparisons for s in c.where}
    for reason in _reasons(cell):
        repeated = again is not None and reason.evidence == f"cells/{again.cell_id}/cell.json"
        word = "where" if reason.text in segments else "again" if repeated else None
        text = _reason(cell, reason, LONGEST_REASON, word)
        if again and repeated:
            changes = "".join(f", change {inline(rows.change_text(c))} points" for c in again.comparisons)
            text += f" There: accuracy {inline(rows.accuracy_text(again))}{changes}."
        yield text
    if not cell.verdict and cell.failure:
        yield inline(shortened(cell.failure, LONGEST_REASON))
    unnamed = [s for s in sorted(segments) if s not in {r.text for r in _reasons(cell)}]
    yield from (f"**where**: {inline(text)}" for text in unnamed)
    hit = state_name(cell) == "regression" and any(r.channel in ("accuracy", "damage") for r in _reasons(cell))
    if hit and cell.comparisons and not segments:
        yield (
            "**where**: no part of the requests stands out, by order of arrival, requests in flight, prompt length or "
            "server."
        )
    if told := rows.requests_text(cell):
        yield f"**requests**: {inline(told)}"


def _beside(cell: CellResult, cells: Sequence[CellResult]) -> list[str]:
    text = looks.beside_text(cell, cells)
    return [f"**beside**: {inline(text)}."] if text else []


def _reason(cell: CellResult, reason: Reason, most: int, word: str | None = None) -> str:
    quotes_a_log = cell.status == "failed"
    said, evidence = (masked_line(t) if quotes_a_log else t for t in (reason.text, reason.evidence or ""))
    text = f"**{inline(word or reason.channel)}**: {inline(shortened(said, most))}"
    if not evidence or evidence in said:
        return text
    return f"{text} ({code(shortened(file_of(cell, evidence), BRIEF_CHARS))})"


def _tail(log: LogTail) -> str:
    return folded(log.title, block("\n".join(log.lines), "text"))
