"""The section of one cell in the HTML report: reasons, figures, charts, timeline, commands; pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rig.records import CellResult, Comparison, Evidence
from rig.records_requests import ITSELF
from rig.report import looks, rows
from rig.report.data import RunData
from rig.report.html_charts import by_order, distributions, first_divergence
from rig.report.html_grid import anchor, state_badge
from rig.report.html_svg import escape, table, tag, with_links
from rig.report.html_timeline import timeline
from rig.report.logs import decisive
from rig.report.reproduce import reproduce
from rig.secrets import masked_argv, masked_line
from rig.verdict import state_name

LONG = 30
"""Characters of a figure's text, above which it has a line of its own."""


def cell_section(data: RunData, number: int) -> str:
    """A cell, open where it needs a look; one that repeats another stays closed."""
    cell = data.results.cells[number]
    head = tag("summary", tag("h3", f"{escape(cell.cell_id)} {state_badge(cell)}"))
    parts = [
        head,
        _holes(data, cell),
        _reasons(data, cell),
        _logs(data, cell),
        _show(data, number),
        _facts(cell),
        _comparisons(cell),
        _charts(data, cell),
        _latencies(cell),
    ]
    parts += [_findings(cell.evidence), _tests(cell), _commands(cell)]
    opened = {"open": ""} if looks.needs_a_look(cell) and cell.rerun_of is None else {}
    return tag("details", "".join(parts), class_="cell", id=anchor(number), **opened)


def _reasons(data: RunData, cell: CellResult) -> str:
    reasons = looks.reason_texts(cell, data.results.cells)
    expected = state_name(cell) in ("xfail", "xpass")
    said = [tag("li", with_links(reason) if expected and not i else escape(reason)) for i, reason in enumerate(reasons)]
    out = tag("ul", "".join(said), class_="reasons") if reasons else ""
    if cell.rerun_of:
        out += tag("p", f"Asked again, on fresh servers, for {tag('code', escape(cell.rerun_of))}.")
    again = tag("p", f"Run it again: {tag('code', escape(reproduce(data.results, cell)))}", class_="again")
    return out + again


def _holes(data: RunData, cell: CellResult) -> str:
    found = data.cell(cell.cell_id).holes
    return tag("ul", "".join(tag("li", escape(hole)) for hole in found), class_="holes") if found else ""


def _logs(data: RunData, cell: CellResult) -> str:
    """The ends of the logs that say why a cell failed."""
    tails = decisive(cell, data.cell(cell.cell_id).logs)
    folded = [tag("summary", escape(log.title)) + tag("pre", escape("\n".join(log.lines))) for log in tails]
    return "".join(tag("details", inner, class_="inner", open="") for inner in folded)


def _show(data: RunData, number: int) -> str:
    """What takes the reader to the cell's requests, where there are any."""
    if not data.cell(data.results.cells[number].cell_id).records:
        return ""
    return tag("button", "Show its requests", type="button", class_="show", data_cell=str(number))


def _facts(cell: CellResult) -> str:
    facts = {"served": "whole" if cell.kind == "monolithic" else "P/D"}
    facts |= {n.replace("_", " "): rows.label_text(v) for n, v in cell.labels.items() if v is not None}
    facts |= {"accuracy": rows.accuracy_text(cell), "invalid": rows.invalid_text(cell.counts)}
    facts["errors"] = rows.errors_text(cell.counts)
    if scorers := rows.scorers_text(cell):
        facts["by scorer"] = scorers
    if told := rows.requests_text(cell):
        facts["requests"] = told
    if told := rows.groups_text(cell):
        facts["accuracy by group"] = told
    if told := rows.resumed_text(cell):
        facts["resumed"] = told
    if cell.missing_baseline:
        facts["stored baseline"] = f"none was held against it: {cell.missing_baseline}"
    if t := cell.throughput:
        facts |= {"requests/s": rows.number(t.requests_per_s), "output tokens/s": rows.number(t.output_tokens_per_s)}
        facts["duration"] = f"{t.duration_s:.1f} s"
    if cell.warmup_requests is not None:
        facts["warm-up requests"] = str(cell.warmup_requests)
    if s := cell.sequential:
        facts["asked"] = f"{s.asked} of {s.planned} planned" + (f", decided as {s.decided}" if s.decided else "")
    if r := cell.repeats:
        facts["repeats"] = f"{r.times} times; {r.wrong_any} of {r.n} wrong at least once, {r.flipped} changed"
    if e := cell.evidence:
        facts |= _evidence(e)
    pairs = "".join(
        tag("div", tag("dt", escape(k)) + tag("dd", escape(v)), class_="long" if len(v) > LONG else "short")
        for k, v in facts.items()
    )
    return tag("dl", pairs, class_="pairs")


def _evidence(e: Evidence) -> dict[str, str]:
    known = {
        "transfers": e.transfers,
        "bytes moved": e.bytes,
        "prompt tokens from prefill": e.external_tokens,
        "prompt tokens computed by decode": e.local_tokens,
        "failed transfers": e.failed,
        "expired leases": e.expired,
    }
    facts = {name: f"{value:,}" for name, value in known.items() if value is not None}
    if e.pd_exercised is not None:
        facts = {"KV moved": "yes" if e.pd_exercised else "not shown"} | facts
    if c := e.canaries:
        facts["canaries"] = f"{c.sent} sent, {c.wrong} wrong, {c.crossed} crossed, {c.error} failed"
    return facts


def _comparisons(cell: CellResult) -> str:
    found = [(f"against {c.baseline}", c) for c in cell.comparisons]
    if cell.noise_floor:
        found.append(("against itself, asked once more (noise floor)", cell.noise_floor))
    return "".join(_comparison(name, c) for name, c in found)


def _comparison(name: str, c: Comparison) -> str:
    said = [f"{name}: change {rows.change_text(c)} points over {c.n} questions"]
    said.append(f"{c.b} right only there, {c.c} right only here")
    if c.output_agreement is not None:
        said.append(f"{100 * c.output_agreement:.1f} % of the texts equal")
    if c.upper_drop is not None:
        said.append(f"true drop below {100 * c.upper_drop:.2f} points")
    if c.more_questions:
        said.append(f"{c.more_questions} more questions would decide")
    if (d := c.first_divergence) and d.damaged is not None:
        said.append(f"{d.damaged} of {d.measured} answers with logprobs shifted beyond {d.threshold} nats")
    out = tag("p", escape("; ".join(said) + "."))
    if c.where:
        head = ["hit more than the rest", "of", "in it", "outside", "p adjusted"]
        lines = [
            [f"{s.axis} {s.value}", s.of, f"{s.hits}/{s.n}", f"{s.rest_hits}/{s.rest_n}", f"{s.p_adjusted:.2g}"]
            for s in c.where
        ]
        out += table(head, lines)
    if c.ratios:
        head = ["ratio to the baseline", "value", "95 %", "gate"]
        lines = [
            [
                r.metric,
                f"{r.value:.3f}",
                f"{r.ci95[0]:.3f} to {r.ci95[1]:.3f}",
                rows.MISSING if r.gate is None else f"{r.gate:g}",
            ]
            for r in c.ratios
        ]
        out += table(head, lines)
    if c.slow:
        head = ["slower than", "in ms", "this cell", "baseline", "p"]
        slow = [
            [
                f"{s.factor:g} times the baseline's p99 {s.metric}",
                rows.number(s.limit_ms),
                f"{s.k}/{s.n}",
                f"{s.base_k}/{s.base_n}",
                f"{s.p_value:.2g}",
            ]
            for s in c.slow
        ]
        out += table(head, slow)
    return out


def _tests(cell: CellResult) -> str:
    if not cell.tests:
        return ""
    lines = [
        [t.name, t.channel, f"{t.p_value:.2g}", rows.MISSING if t.p_adjusted is None else f"{t.p_adjusted:.2g}"]
        for t in cell.tests
    ]
    inner = table(["test that can alarm", "channel", "p", "p adjusted over the sweep"], lines)
    return tag("details", tag("summary", "Tests of significance") + inner, class_="inner")


def _charts(data: RunData, cell: CellResult) -> str:
    found = data.cell(cell.cell_id)
    paired = data.pairs(cell)
    baseline = next((name for name in paired if name != ITSELF), None)
    pairs = paired[baseline] if baseline else ()
    texts = {r.request_id: r.text for r in found.records if r.text is not None}
    sides = [("this cell", found.records)]
    if baseline and data.cell(baseline).records:
        sides.append((baseline, data.cell(baseline).records))
        texts |= {r.request_id: r.text for r in data.cell(baseline).records if r.text is not None}
    charts = distributions(sides)
    charts.append(by_order(found.records, found.judged, pairs))
    comparison = next((c for c in cell.comparisons if c.baseline == baseline), None)
    if comparison:
        charts.append(first_divergence(comparison, pairs, texts))
    outcomes = {j.request_id: j.outcome for j in found.judged}
    drawn: dict[str, str] = {**outcomes, **{c.request_id: c.outcome for c in found.canaries}}
    return tag("div", "".join(charts), class_="charts") + timeline(found.records, drawn)


def _latencies(cell: CellResult) -> str:
    parts = ("p50", "p90", "p99", "mean")
    found = {**cell.latency_ms, **cell.legs_ms}
    lines = [[name, *(rows.number(getattr(p, part)) for part in parts)] for name, p in found.items()]
    return table(["ms", *parts], lines, "facts numbers") if lines else ""


def _findings(evidence: Evidence | None) -> str:
    if evidence is None or not evidence.findings:
        return ""
    lines: Sequence[Sequence[str]] = [[f.severity, f.channel, masked_line(f.text), f.source] for f in evidence.findings]
    return tag("h4", "What was noticed") + table(["severity", "channel", "what", "where"], lines)


def _commands(cell: CellResult) -> str:
    if not cell.commands:
        return ""
    text = "\n".join(f"# {name}\n{shlex.join(masked_argv(argv))}" for name, argv in cell.commands.items())
    return tag("details", tag("summary", "Commands") + tag("pre", escape(text)), class_="inner")
