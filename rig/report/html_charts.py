"""The charts of the HTML report, from results and requests to SVG; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from evals.records import RequestRecord
from rig.divergence import first_difference
from rig.metrics import latency_values
from rig.records import CellResult, Comparison, Judged, Pair
from rig.report.data import arrival
from rig.report.html_svg import Axis, Plot, axis_over, escape, figure, legend, tag
from rig.report.rows import figures_count, label_text, number, varying_labels
from rig.stats import percentile, wilson

POINTS = 100
"""On the line of a distribution, at most."""
COLOURS = 8
"""How many series have a colour of their own."""
SMALLEST_BIN = 20
"""Requests in one bin of the accuracy by order of arrival, at least, where there are so many."""


def series_class(number: int) -> str:
    """The class of a series: its colour, and how its line is broken where colours are used again."""
    return f"s{number % COLOURS}" + (f" again{number // COLOURS}" if number >= COLOURS else "")


def distributions(cells: Sequence[tuple[str, Sequence[RequestRecord]]]) -> list[str]:
    """Share of requests answered within a time, for TTFT, TPOT and E2E: the cell, then its baseline."""
    values = [(name, latency_values(records)) for name, records in cells]
    charts = []
    for key, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E")):
        series = [(name, sorted(found[key])) for name, found in values if len(found[key]) > 1]
        if not series:
            continue
        lines = [_within(found) for _, found in series]
        x = axis_over("ms (logarithmic)", [v for line in lines for v, _ in line], log=True)
        plot = Plot(x, Axis("", 0, 1))
        marks = [plot.line(line, series_class(i)) for i, line in enumerate(lines)]
        keys = [(series_class(i), name) for i, (name, _) in enumerate(series)]
        about = f"{title}: " + "; ".join(
            f"{name}: median {percentile(found, 50):.3g} ms, 99th percentile {percentile(found, 99):.3g} ms"
            for name, found in series
        )
        charts.append(figure(plot.svg(marks[::-1], about), f"{title}: share of requests within", "", keys))
    return charts


def _within(ordered: Sequence[float]) -> list[tuple[float, float]]:
    """Some of the values, smallest and largest with them, and what share of all is no larger."""
    last = len(ordered) - 1
    chosen = dict.fromkeys(round(last * k / POINTS) for k in range(POINTS + 1))
    return [(ordered[i], (i + 1) / len(ordered)) for i in chosen]


def by_order(records: Sequence[RequestRecord], judged: Sequence[Judged], pairs: Sequence[Pair]) -> str:
    """Accuracy in bins of the order of arrival, and that of the baseline on the same questions."""
    order = arrival(records)
    base = {p.request_id: p.baseline_outcome for p in pairs}
    found = sorted(
        (order[j.request_id], j.outcome, base.get(j.request_id))
        for j in judged
        if j.request_id in order and j.outcome not in ("error", "unscored")
    )
    if not found:
        return ""
    size = max(-(-len(found) // 20), min(SMALLEST_BIN, len(found)))
    bins = [found[i : i + size] for i in range(0, len(found), size)]
    plot = Plot(axis_over("order of arrival", [float(found[-1][0] + 1)]), Axis("", 0, 1))
    marks, theirs = [], []
    for part in bins:
        middle = (part[0][0] + part[-1][0]) / 2
        right = sum(outcome == "correct" for _, outcome, _ in part)
        low, high = wilson(right, len(part)) or (0.0, 1.0)
        said = f"requests {part[0][0]} to {part[-1][0]}: {right} of {len(part)} right"
        marks += [plot.whisker(middle, low, high, "s0"), plot.dot(middle, right / len(part), "s0", said)]
        same = [outcome for _, _, outcome in part if outcome not in (None, "error")]
        if same:
            theirs.append((middle, sum(outcome == "correct" for outcome in same) / len(same)))
    keys = [("s0", "this cell, 95 % intervals")]
    if theirs:
        marks.insert(0, plot.line(theirs, "s1"))
        keys.append(("s1", "baseline, same questions"))
    worst = min(bins, key=lambda part: sum(outcome == "correct" for _, outcome, _ in part) / len(part))
    about = f"Accuracy in {len(bins)} bins of {size} requests; lowest at requests {worst[0][0]} to {worst[-1][0]}"
    return figure(plot.svg(marks, about), "Accuracy by order of arrival", f"Bins of {size} requests.", keys)


def first_divergence(comparison: Comparison, pairs: Sequence[Pair], texts: Mapping[str, str]) -> str:
    """How many answers leave the baseline's, by the first token that differs, or character where tokens are unknown."""
    if any(p.first_token is not None for p in pairs):
        positions, unit = [p.first_token for p in pairs if p.first_token is not None], "token"
    elif comparison.first_divergence and comparison.first_divergence.histogram:
        buckets = list(comparison.first_divergence.histogram.items())
        return _histogram(buckets, "first token that differs", comparison.first_divergence.equal)
    else:
        both = [(texts.get(p.request_id), texts.get(p.baseline_request_id)) for p in pairs]
        found = [first_difference(a, b) for a, b in both if a is not None and b is not None]
        if not found:
            return ""
        positions, unit = [position for position in found if position is not None], "character"
    equal = sum(p.equal is True for p in pairs)
    edges = [0, 1, 4, 16, 64, 256, 1024]
    names = ["0", "1-3", "4-15", "16-63", "64-255", "256-1023", "1024+"]
    counts = [0] * len(edges)
    for position in positions:
        counts[max(i for i, edge in enumerate(edges) if position >= edge)] += 1
    last = max((i for i, count in enumerate(counts) if count), default=0)
    buckets = list(zip(names, counts, strict=True))[: max(last + 1, 4)]
    return _histogram(buckets, f"first {unit} that differs, counted from 0", equal)


def _histogram(buckets: Sequence[tuple[str, int]], label: str, equal: int) -> str:
    top = max(count for _, count in buckets)
    plot = Plot(Axis(label, 0, len(buckets)), axis_over("", [float(max(top, 4))]))
    marks = []
    for i, (name, count) in enumerate(buckets):
        if count:
            marks.append(plot.bar(i, i + 1, count, "s0", f"{name}: {count}"))
            at = {"x": plot.px(i + 0.5), "y": max(plot.py(count) - 3, 9.0)}
            marks.append(tag("text", escape(str(count)), text_anchor="middle", class_="count", **at))
    differ = sum(count for _, count in buckets)
    about = f"{label}: " + ", ".join(f"{name}: {count}" for name, count in buckets)
    names = [(i + 0.5, name) for i, (name, _) in enumerate(buckets)]
    return figure(plot.svg(marks, about, names), "First divergence", f"{differ} answers differ, {equal} are equal.")


MEASURES: Mapping[str, Callable[[CellResult], float | None]] = {
    "Output tokens/s": lambda cell: cell.throughput.output_tokens_per_s if cell.throughput else None,
    "Requests/s": lambda cell: cell.throughput.requests_per_s if cell.throughput else None,
    "TTFT p50, ms": lambda cell: cell.latency_ms["ttft"].p50 if "ttft" in cell.latency_ms else None,
    "TTFT p99, ms": lambda cell: cell.latency_ms["ttft"].p99 if "ttft" in cell.latency_ms else None,
    "TPOT p50, ms": lambda cell: cell.latency_ms["tpot"].p50 if "tpot" in cell.latency_ms else None,
    "E2E p50, ms": lambda cell: cell.latency_ms["e2e"].p50 if "e2e" in cell.latency_ms else None,
}
"""What is drawn over concurrency."""


def over_concurrency(cells: Sequence[CellResult]) -> str:
    """Throughput and latency over the number of requests in flight, a line for cells that differ in it alone.

    Bars where there is but one such number. Cells under a schedule have none, and are left out, as are reruns and cells
    whose figures do not count.
    """
    groups = _but_for_concurrency([cell for cell in cells if cell.rerun_of is None and figures_count(cell)])
    charts = [chart for title, measure in MEASURES.items() if (chart := _over_concurrency(title, measure, groups))]
    if not charts:
        return tag("p", "No cell was measured at a fixed number of requests in flight.")
    keys = [(series_class(i), name) for i, (name, _) in enumerate(groups)]
    return legend(keys) + tag("div", "".join(charts), class_="charts")


def _over_concurrency(
    title: str, measure: Callable[[CellResult], float | None], groups: Sequence[tuple[str, Sequence[CellResult]]]
) -> str:
    series = []
    for i, (name, group) in enumerate(groups):
        points = [(float(c.labels["concurrency"]), value) for c in group if (value := measure(c)) is not None]
        if points:
            series.append((series_class(i), name, sorted(points)))
    if not series:
        return ""
    xs = sorted({x for _, _, points in series for x, _ in points})
    y = axis_over("", [value for _, _, points in series for _, value in points])
    if len(xs) == 1:
        plot = Plot(Axis(f"{xs[0]:g} requests in flight", 0, len(series)), y)
        marks = [
            plot.bar(i + 0.1, i + 0.9, points[0][1], class_, f"{name}: {points[0][1]:.4g}")
            for i, (class_, name, points) in enumerate(series)
        ]
        names = [(i + 0.5, number(points[0][1])) for i, (_, _, points) in enumerate(series)] if len(series) < 8 else []
    else:
        plot = Plot(Axis("requests in flight", xs[0] / 1.25, xs[-1] * 1.25, log=True), y)
        marks = [plot.line(points, class_) for class_, _, points in series if len(points) > 1]
        marks += [
            plot.dot(x, value, class_, f"{name}: {value:.4g} at {x:g}")
            for class_, name, points in series
            for x, value in points
        ]
        names = [(x, f"{x:g}") for x in xs]
    about = f"{title}: " + "; ".join(
        f"{name}: " + ", ".join(f"{value:.3g} at {x:g}" for x, value in points) for _, name, points in series
    )
    return figure(plot.svg(marks, about, names), title)


def _but_for_concurrency(cells: Sequence[CellResult]) -> list[tuple[str, list[CellResult]]]:
    """Cells that differ in concurrency alone, named by what tells the groups of their kind apart."""
    groups: dict[str, list[CellResult]] = {}
    for cell in cells:
        if isinstance(cell.labels.get("concurrency"), int):
            rest = {name: value for name, value in cell.labels.items() if name != "concurrency"}
            groups.setdefault(json.dumps([cell.kind, rest], sort_keys=True), []).append(cell)
    named = []
    for group in groups.values():
        first = group[0]
        varying = varying_labels([other[0] for other in groups.values() if other[0].kind == first.kind])
        told = [
            f"{name.replace('_', ' ')} {label_text(first.labels[name])}"
            for name in varying
            if name != "concurrency" and first.labels.get(name) is not None
        ]
        named.append((", ".join(["whole" if first.kind == "monolithic" else "P/D", *told]), group))
    return named
