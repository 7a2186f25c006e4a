"""What `pdrig compare` found, as a table, Markdown or JSON; pure. The first line is the verdict in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter

from rig.compared import Compared, Held, SideSummary, Unmatched
from rig.matching import differ_text
from rig.records import Accuracy, Percentiles
from rig.report import looks, rows
from rig.report.markdown_text import code, folded, grid, plain
from rig.report.rows import MISSING, Column, number
from rig.report.text import WIDTH, fits, grid_lines, grid_text, painted, wrap

_COMPARED = TypeAdapter(Compared)
_LATENCIES = ("ttft", "tpot", "e2e")
_RATES = ("requests_per_s", "output_tokens_per_s")
_TITLES = {"requests_per_s": "requests/s", "output_tokens_per_s": "output tokens/s"}


def headline(found: Compared) -> str:
    """The verdict in words, the worst first."""
    by_state: dict[str, list[str]] = {}
    for held in found.held:
        by_state.setdefault(state_of(held), []).append(short(held.candidate.name))

    def named(*states: str) -> str:
        return ", ".join(name for state in states for name in by_state.get(state, ()))

    said = [f"Worse than the baseline: {text}." for text in [named("regression")] if text]
    said += [f"Could not be compared: {text}." for text in [named("refused")] if text]
    said += [f"Could not be judged: {text}." for text in [named("invalid", "failed")] if text]
    said += [f"Not decided: {text}." for text in [named("inconclusive", "no_baseline", "not judged")] if text]
    if good := len(by_state.get("pass", ())) + len(by_state.get("improved", ())):
        subject = "1 cell is" if good == 1 else f"{good} cells are"
        better = named("improved")
        said.append(
            f"{subject} shown to be no worse than the baseline by the margin{f'; better: {better}' if better else ''}."
        )
    return " ".join(said)


def state_of(held: Held) -> str:
    """`refused`, the verdict's state, or `not judged`."""
    return "refused" if held.refused else held.verdict.state if held.verdict else "not judged"


def short(name: str) -> str:
    """A cell's own name, without its run or file."""
    return name.rsplit(":", 1)[-1]


def format_compare_json(found: Compared) -> str:
    """Every figure, with the shapes of `rig.compared`, and the first line as `headline`."""
    whole = {"headline": headline(found), **_COMPARED.dump_python(found, mode="json")}
    return json.dumps(whole, indent=1, ensure_ascii=False)


def format_compare_table(found: Compared, width: int = WIDTH, color: bool = False) -> str:
    """Plain text: a row a pair, then why each verdict is what it is, speed, what had no partner, and the files."""
    parts = [wrap(headline(found), width, "  "), _arguments(found), _grid_text(_answers(found.held), width, color)]
    lines = ["Verdicts"]
    for held in found.held:
        lines.append(f"  {short(held.candidate.name)}: {painted(state_of(held), color)}")
        lines += [wrap(f"    {text}", width, "      ") for text in _told(held)]
    parts.append("\n".join(lines))
    if speed := _speed(found.held):
        parts.append("Speed\n" + _grid_text(speed, width, color))
    if found.unmatched:
        listed = [wrap(f"  {_unmatched_text(u)}", width, "    ") for u in found.unmatched]
        parts.append("\n".join(["No partner with the same labels", *listed]))
    parts.append("\n".join(["Files", *(f"  {text}" for held in found.held for text in _files(held))]))
    return "\n\n".join(part for part in parts if part)


def format_compare_markdown(found: Compared) -> str:
    """The same for a pull request, speed and files folded away."""
    parts = [f"**{plain(headline(found))}**", plain(_arguments(found)), grid(_answers(found.held))]
    lines = []
    for held in found.held:
        lines.append(f"- {code(short(held.candidate.name))}: **{plain(state_of(held))}**")
        lines += [f"  - {plain(text)}" for text in _told(held)]
    parts.append("\n".join(lines))
    if speed := _speed(found.held):
        parts.append(folded("Speed", grid(speed)))
    if found.unmatched:
        listed = [f"- {plain(_unmatched_text(u))}" for u in found.unmatched]
        parts.append("\n".join(["No partner with the same labels:", "", *listed]))
    parts.append(folded("Files", "\n".join(f"- {plain(text)}" for held in found.held for text in _files(held))))
    return "\n\n".join(parts) + "\n"


def _arguments(found: Compared) -> str:
    return f"here: {found.candidate}; there (the baseline): {found.baseline}"


def _answers(pairs: Sequence[Held]) -> list[Column]:
    names = [Column("here", tuple(short(h.candidate.name) for h in pairs))]
    if any(short(h.candidate.name) != short(h.baseline.name) for h in pairs):
        names.append(Column("there", tuple(short(h.baseline.name) for h in pairs)))
    compared = [h.comparison for h in pairs]
    return [
        *names,
        Column("accuracy\nhere", tuple(_accuracy(h.candidate.accuracy) for h in pairs)),
        Column("accuracy\nthere", tuple(_accuracy(h.baseline.accuracy) for h in pairs)),
        Column(
            "change, points\n[95 %]",
            tuple(rows.change_text(c).replace(" [", "\n[") if c else MISSING for c in compared),
        ),
        Column("pairs", tuple(f"{c.n}" if c else MISSING for c in compared)),
        Column("right only\nthere/here", tuple(f"{c.b}/{c.c}" if c else MISSING for c in compared)),
        Column("p of\nno drop", tuple(_p(c.p_value) if c else MISSING for c in compared)),
        Column("drop below,\npoints", tuple(_points(c.upper_drop) if c else MISSING for c in compared)),
        Column("errors\nhere/there", tuple(f"{_errors(h.candidate)}/{_errors(h.baseline)}" for h in pairs)),
        Column("verdict", tuple(state_of(h) for h in pairs)),
    ]


def _told(held: Held) -> Iterator[str]:
    """Why a pair is what it is, a line each."""
    if held.differences:
        yield f"differs in {differ_text(held.differences)}"
    if held.refused:
        yield held.refused
    for reason in held.verdict.reasons if held.verdict else ():
        yield looks.reason_text(reason)
    for note in held.notes:
        yield f"note: {note}"


def _speed(pairs: Sequence[Held]) -> list[Column]:
    """A row a pair and figure that either side has; a ratio where both sides have single requests."""
    found = [(held, name, stat) for held in pairs if not held.refused for name, stat in _figures(held)]
    if not found:
        return []
    values = [[_figure(side, name, stat) for side in (h.candidate, h.baseline)] for h, name, stat in found]
    return [
        Column("here", tuple(short(h.candidate.name) for h, _, _ in found)),
        Column("figure", tuple(_TITLES.get(name, f"{name.upper()} {stat}, ms") for _, name, stat in found)),
        Column("value here", tuple(number(mine) for mine, _ in values)),
        Column("there", tuple(number(theirs) for _, theirs in values)),
        Column("ratio [95 %]", tuple(_ratio(*row, *value) for row, value in zip(found, values, strict=True))),
        Column("bound", tuple(_bound(*row) for row in found)),
    ]


def _figures(held: Held) -> Iterator[tuple[str, str]]:
    for name in _LATENCIES:
        if name in held.candidate.latency_ms or name in held.baseline.latency_ms:
            yield name, "p50"
            yield name, "p99"
    for name in _RATES:
        if any(_figure(side, name, "") is not None for side in (held.candidate, held.baseline)):
            yield name, ""


def _figure(side: SideSummary, name: str, stat: str) -> float | None:
    source: Percentiles | Any = side.latency_ms.get(name) if stat else side.throughput
    value: float | None = getattr(source, stat or name, None)
    return value


def _ratio(held: Held, name: str, stat: str, mine: float | None, theirs: float | None) -> str:
    """With its interval; of a stored baseline it is a mere quotient."""
    if held.candidate.stored or held.baseline.stored:
        return f"{mine / theirs:.3f}" if mine is not None and theirs else MISSING
    metric = _metric(name, stat)
    ratio = next((r for r in held.comparison.ratios if r.metric == metric), None) if held.comparison else None
    if ratio is None:
        return MISSING
    return f"{ratio.value:.3f} [{ratio.ci95[0]:.3f}, {ratio.ci95[1]:.3f}]"


def _bound(held: Held, name: str, stat: str) -> str:
    found = (r.gate for r in held.comparison.ratios if r.metric == _metric(name, stat)) if held.comparison else ()
    gate = next(iter(found), None)
    return MISSING if gate is None else f"{gate:g}"


def _metric(name: str, stat: str) -> str:
    return f"{name}_{stat}" if stat else name


def _files(held: Held) -> Iterator[str]:
    """Where a pair's figures come from: the records lie beside `cell.json`."""
    for which, side in (("here", held.candidate), ("there", held.baseline)):
        beside = "" if side.stored else f", outcomes from {side.judged_file.rsplit('/', 1)[-1]} beside it"
        yield f"{short(held.candidate.name)}, {which}: {side.file}{beside}"


def _unmatched_text(one: Unmatched) -> str:
    where = "here" if one.side == "candidate" else "there"
    if one.nearest is None:
        return f"{one.name} ({where})"
    return f"{one.name} ({where}): nearest is {one.nearest}, which differs in {differ_text(one.differences)}"


def _accuracy(accuracy: Accuracy | None) -> str:
    return MISSING if accuracy is None or accuracy.value is None else f"{accuracy.value:.3f}"


def _errors(side: SideSummary) -> str:
    return rows.errors_text(side.counts)


def _points(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.2f}"


def _p(p: float | None) -> str:
    return MISSING if p is None else f"{p:.2g}" if p >= 0.0001 else "< 0.0001"


def _grid_text(columns: Sequence[Column], width: int, color: bool) -> str:
    """One table; where it is too wide, each row's fields one below the other."""
    lines = grid_lines(columns, color)
    if fits(lines, width):
        return grid_text(lines)
    blocks = [
        "\n".join(f"{c.title.replace(chr(10), ' ').strip()}: {c.texts[i].replace(chr(10), ' ')}" for c in columns)
        for i in range(len(columns[0].texts))
    ]
    return "\n\n".join(blocks)
