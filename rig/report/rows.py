"""The facts of each cell as short texts, the same for every report; pure. A missing value is `-`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rig.evidence_common import LEFT_OUT
from rig.labels import MISSING as MISSING
from rig.labels import label_text as label_text
from rig.metrics import error_texts
from rig.records import (
    Accuracy,
    CellResult,
    Comparison,
    Counts,
    Group,
    Percentiles,
    PromptSources,
    RunResult,
)
from rig.verdict import UNJUDGED_STATES, state_name

VOID = "does not count"
"""In place of the figures of a cell that the run cannot speak about."""
MOST_QUESTIONS_NAMED = 12
"""Questions named in a line; cell.json has all."""


@dataclass(frozen=True)
class Column:
    """One column: its heading and a text a cell. `about` is the formula it is explained by, if it has one."""

    title: str
    texts: tuple[str, ...]
    about: str | None = None


def varying_labels(cells: Sequence[CellResult]) -> tuple[str, ...]:
    """Names of the labels that tell the cells apart, in the order in which they first appear.

    What one server does not have, such as a connector, does not tell it from the rest: that it is one server does.
    """
    names = dict.fromkeys(name for cell in cells for name in cell.labels)
    return tuple(name for name in names if len(_values(cells, name)) > 1)


def _values(cells: Sequence[CellResult], name: str) -> dict[str, Any]:
    """The values that a label has, each once; one that a whole server lacks is none."""
    asked = [c for c in cells if c.kind == "pd" or c.labels.get(name) is not None]
    return {json.dumps(c.labels.get(name), sort_keys=True): c.labels.get(name) for c in asked}


def constant_labels(cells: Sequence[CellResult]) -> dict[str, str]:
    """Labels that all cells share that have them, as texts."""
    names = dict.fromkeys(name for cell in cells for name in cell.labels)
    shared = {name: next(iter(values.values())) for name in names if len(values := _values(cells, name)) == 1}
    return {name: label_text(value) for name, value in shared.items() if value is not None}


def label_columns(cells: Sequence[CellResult]) -> list[Column]:
    """What tells the cells apart; their ids where labels do not."""
    columns = [
        Column(name.replace("_", "\n"), tuple(label_text(cell.labels.get(name)) for cell in cells))
        for name in varying_labels(cells)
    ]
    if len({cell.kind for cell in cells}) > 1:
        columns.insert(0, Column("served", tuple("whole" if c.kind == "monolithic" else "P/D" for c in cells)))
    rows = list(zip(*(column.texts for column in columns), strict=True))
    if len(set(rows)) < len(cells):
        columns.insert(0, Column("cell", tuple(cell.cell_id for cell in cells)))
    return columns


def answer_columns(cells: Sequence[CellResult]) -> list[Column]:
    """How right the answers are."""
    return [
        Column("accuracy\n[95 %]", tuple(accuracy_text(c) for c in cells), "accuracy"),
        Column("invalid", tuple(invalid_text(c.counts) for c in cells), "invalid"),
        Column("errors", tuple(errors_text(c.counts) for c in cells), "errors"),
    ]


def damage_columns(cells: Sequence[CellResult]) -> list[Column]:
    """Canaries and equal outputs, each where any cell knows it."""
    columns = (
        Column("canaries\nlost", tuple(canaries_text(c) for c in cells), "canaries lost"),
        Column("same\noutput", tuple(same_text(c) for c in cells), "same output"),
    )
    return [column for column in columns if any(text != MISSING for text in column.texts)]


def speed_columns(cells: Sequence[CellResult]) -> list[Column]:
    """How fast they came; prompt tokens too where any cell found some of them in a cache."""
    rates = [c.throughput for c in cells]
    hits = [c.sources.hit_rate if c.sources else None for c in cells]
    total = Column(
        "total\ntokens/s", tuple(number(t.total_tokens_per_s if t else None) for t in rates), "total tokens/s"
    )
    shares = tuple(hits_text(c.sources) for c in cells)
    cached = [Column("cache\nhits", shares, "cache hits"), total] if any(hits) else []
    return [
        *cached,
        Column("requests\n/s", tuple(number(t.requests_per_s if t else None) for t in rates), "requests/s"),
        Column(
            "output\ntokens/s", tuple(number(t.output_tokens_per_s if t else None) for t in rates), "output tokens/s"
        ),
        Column("TTFT ms\np50/p99", tuple(p50_p99(c.latency_ms.get("ttft")) for c in cells), "TTFT"),
        Column("TPOT ms\np50/p99", tuple(p50_p99(c.latency_ms.get("tpot")) for c in cells), "TPOT"),
    ]


def verdict_columns(cells: Sequence[CellResult]) -> list[Column]:
    """How each cell stands to its baselines, one line each, and its verdict."""
    changes = tuple("\n".join(changes_texts(c)) or MISSING for c in cells)
    return [
        Column("change, points\n[95 %]", changes, "change"),
        Column("verdict", tuple(state_name(c) for c in cells)),
    ]


def figures_count(cell: CellResult) -> bool:
    """Whether a cell's figures say anything: those of an invalid one do not, whatever they are."""
    return state_name(cell) not in UNJUDGED_STATES


def accuracy_text(cell: CellResult) -> str:
    """Accuracy with its interval; said to be void where a cell's figures do not count."""
    return VOID if cell.accuracy and not figures_count(cell) else measured_text(cell.accuracy)


def changes_texts(cell: CellResult) -> list[str]:
    """Change against each baseline; none where a cell's figures do not count."""
    return [change_text(c) for c in cell.comparisons] if figures_count(cell) else []


def measured_text(accuracy: Accuracy | None) -> str:
    """Accuracy with its interval."""
    if accuracy is None or accuracy.value is None:
        return MISSING
    interval = f" [{accuracy.ci95[0]:.3f}, {accuracy.ci95[1]:.3f}]" if accuracy.ci95 else ""
    return f"{accuracy.value:.3f}{interval}"


def invalid_text(counts: Counts | None) -> str:
    if counts is None:
        return MISSING
    total = counts.unparsed + counts.truncated
    return f"{total} ({counts.unparsed}+{counts.truncated})" if total else "0"


def errors_text(counts: Counts | None) -> str:
    return MISSING if counts is None else str(sum(counts.error.values()))


def canaries_text(cell: CellResult) -> str:
    """Canaries that did not come back with their own code, of those that were answered."""
    found = cell.evidence.canaries if cell.evidence else None
    if found is None or found.sent == found.error:
        return MISSING
    crossed = f", {found.crossed} crossed" if found.crossed else ""
    return f"{found.wrong + found.crossed}/{found.sent - found.error}{crossed}"


def same_text(cell: CellResult) -> str:
    """Share of answers that are the same text as the baseline's, one line each; of a baseline, as its own."""
    held = list(cell.comparisons) or ([cell.noise_floor] if cell.noise_floor else [])
    shares = [MISSING if c.output_agreement is None else f"{100 * c.output_agreement:.1f} %" for c in held]
    return "\n".join(shares) if any(share != MISSING for share in shares) else MISSING


def noise_text(cell: CellResult) -> str | None:
    """What a baseline that was asked again says of itself; None where it was asked once."""
    floor = cell.noise_floor
    if floor is None or floor.n == 0:
        return None
    text = f"asked {'once' if floor.repeats == 1 else f'{floor.repeats} times'} more in another order"
    if floor.delta is not None:
        text += f", {floor.b + floor.c} of {floor.n} questions changed between right and wrong the first time"
    seen = floor.first_divergence
    if seen is not None:
        text += f", {seen.n - seen.equal} of {seen.n} outputs changed"
        if "max" in seen.shift:
            text += f"; the largest move of a token's log probability was {seen.shift['max']:.2g} nats"
    return text


def repeats_text(cell: CellResult) -> str | None:
    """How steady the answers of a cell asked several times were; None where it was asked once."""
    seen = cell.repeats
    if seen is None or cell.noise_floor is not None:
        return None
    listed = ", ".join(seen.bad[:MOST_QUESTIONS_NAMED]) + (
        " and others" if len(seen.bad) > MOST_QUESTIONS_NAMED else ""
    )
    return (
        f"asked {seen.times} times, {seen.wrong_any} of {seen.n} questions were wrong at least once, {seen.wrong_all} "
        f"each time; {seen.flipped} changed{f' ({listed})' if listed else ''}"
    )


def ratios_text(cell: CellResult) -> list[str]:
    """Latencies and throughput over each baseline's that is known well enough to say."""
    return [
        f"over {c.baseline}: "
        + ", ".join(f"{r.metric} {r.value:.2f} [{r.ci95[0]:.2f}, {r.ci95[1]:.2f}]" for r in c.ratios)
        for c in cell.comparisons
        if c.ratios and figures_count(cell)
    ]


def change_text(comparison: Comparison) -> str:
    """Change of accuracy in points with its interval; a drop is negative."""
    if comparison.delta is None:
        return MISSING
    text = f"{100 * comparison.delta:+.2f}"
    if comparison.ci95:
        text += f" [{100 * comparison.ci95[0]:+.2f}, {100 * comparison.ci95[1]:+.2f}]"
    return text


def p50_p99(p: Percentiles | None) -> str:
    return MISSING if p is None else f"{number(p.p50)}/{number(p.p99)}"


def number(value: float | None) -> str:
    """Three significant digits or so: enough to compare, short enough to read."""
    if value is None:
        return MISSING
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def scorers_text(cell: CellResult) -> str | None:
    """Accuracy by every scorer, the deciding one first; None where nothing was scored."""
    a = cell.accuracy
    if a is None or a.value is None:
        return None
    others = [f"{n} {MISSING if v is None else f'{v:.3f}'}" for n, v in a.by_scorer.items() if n != a.scorer]
    return ", ".join([f"{a.scorer} {a.value:.3f} (decides)", *others])


def hits_text(sources: PromptSources | None) -> str:
    """The share of prompt tokens that were not computed, and how much of it a connector loaded, where it did."""
    if sources is None or sources.hit_rate is None:
        return MISSING
    share = f"{100 * sources.hit_rate:.1f} %"
    total = sources.cached + sources.loaded + sources.computed
    return f"{share}\n({100 * sources.loaded / total:.1f} % loaded)" if sources.loaded else share


def groups_text(cell: CellResult) -> str | None:
    """Accuracy by what the task's questions differ in: `by depth: 0 % 40/40, 25 % 39/40`; None where they do not."""
    found = cell.groups
    if found is None or not any(group.scored for group in found.groups):
        return None
    return f"by {found.axis}: " + ", ".join(f"{g.name} {g.correct}/{g.scored}" for g in found.groups)


def group_tables(cells: Sequence[CellResult]) -> list[tuple[str, list[Column]]]:
    """Tables with a row a group and a column a cell, each with what it groups by."""
    tables = []
    for axis in dict.fromkeys(c.groups.axis for c in cells if c.groups):
        told = {c.cell_id: {g.name: g for g in c.groups.groups} for c in cells if c.groups and c.groups.axis == axis}
        names = list(dict.fromkeys(name for groups in told.values() for name in groups))
        columns = [Column(axis, tuple(names))]
        columns += [
            Column(cell_id, tuple(_share(groups.get(name)) for name in names)) for cell_id, groups in told.items()
        ]
        tables.append((axis, columns))
    return tables


def _share(group: Group | None) -> str:
    if group is None or not group.scored:
        return MISSING
    return f"{group.correct / group.scored:.3f} ({group.correct}/{group.scored})"


def warmup_text(cells: Sequence[CellResult]) -> str:
    """How many requests went ahead of each evaluation and are in no figure; nothing where no cell got so far."""
    counts = {cell.warmup_requests for cell in cells if cell.warmup_requests is not None}
    if not counts:
        return ""
    shown = f"{counts.pop()}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"Warm-up: {shown} requests a cell, through both legs where there are two; in no figure here."


def requests_text(cell: CellResult) -> str | None:
    """How many questions needed several attempts, and how those that failed did; None where all went well."""
    counts = cell.counts
    if counts is None:
        return None
    parts = []
    if cell.retried:
        parts.append(f"{cell.retried} took more than one attempt to connect")
    if counts.unscored:
        parts.append(f"{counts.unscored} answered that have no right answer, so in no accuracy")
    if counts.error:
        parts.append(f"errors: {', '.join(error_texts(counts))}")
    asked = counts.correct + counts.wrong + counts.unparsed + counts.truncated + counts.unscored
    asked += sum(counts.error.values())
    return "; ".join([f"{asked} questions", *parts]) if parts else None


def resumed_text(cell: CellResult) -> str | None:
    """What of a cell is from before its sweep was killed; None where it was not."""
    if cell.resumed is None:
        return None
    return (
        f"{cell.resumed.kept} records are from before, {cell.resumed.again} questions were asked again; latencies and "
        "throughput are of what was asked after"
    )


def notes_text(cell: CellResult) -> str | None:
    """What no verdict says: servers that a router left out, a stored baseline that was asked for and is missing."""
    found = cell.evidence.findings if cell.evidence else ()
    noted = [finding.text for finding in found if finding.source == LEFT_OUT]
    noted += [f"held against no stored baseline: {cell.missing_baseline}"] if cell.missing_baseline else []
    return "; ".join(noted) or None


def flat(reference: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A reference row, whatever its keys, as texts under dotted names."""
    texts: dict[str, str] = {}
    for key, value in reference.items():
        name = f"{prefix}{key}"
        texts |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: label_text(value)}
    return texts


def heading(run: RunResult) -> str:
    """Name of the sweep, when and from which file."""
    ended = f" to {run.info.ended}" if run.info.ended else ", not finished"
    return f"{run.info.name} ({run.info.config_file}), {run.info.started}{ended}"
