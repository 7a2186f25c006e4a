"""Speed against the baseline, noise floor, canaries, all figures, and where a run was made; pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from rig.metrics import METRIC_FORMULAS
from rig.records import CellResult, Comparison, Ratio, RunResult
from rig.report import made, rows
from rig.report.markdown_text import block, code, folded, grid, inline, table
from rig.report.rows import Column
from rig.secrets import masked_argv, masked_yaml

_METRICS = {
    "ttft_p50": "TTFT p50",
    "ttft_p99": "TTFT p99",
    "tpot_p50": "TPOT p50",
    "tpot_p99": "TPOT p99",
    "e2e_p50": "E2E p50",
    "e2e_p99": "E2E p99",
    "requests_per_s": "requests/s",
}


def ratios(cells: Sequence[CellResult]) -> str:
    """A table of latencies and throughput over each baseline's; empty where none is known well enough."""
    sound = [cell for cell in cells if cell.rerun_of is None and rows.figures_count(cell)]
    held = [(cell, c) for cell in sound for c in cell.comparisons if c.ratios or c.slow]
    if not held:
        return ""
    names = [name for name in _METRICS if any(r.metric == name for _, c in held for r in c.ratios)]
    names += sorted({r.metric for _, c in held for r in c.ratios} - set(names))
    against = dict.fromkeys(c.baseline for _, c in held)
    several = len(against) > 1
    titles = ["cell", *(["over"] if several else []), *(inline(_METRICS.get(name, name)) for name in names)]
    body = [
        [code(cell.cell_id), *([code(c.baseline)] if several else []), *(_ratio(c, name) for name in names)]
        for cell, c in held
        if c.ratios
    ]
    over = "its baseline" if several else code(next(iter(against)))
    gated = any(r.gate is not None for _, c in held for r in c.ratios)
    rule = "a bound stands beside the ratio it holds" if gated else "no bound is set, so none of it decides a verdict"
    parts = ["### Latency and throughput", f"Each over that of {over}, with its 95 % interval; {rule}."]
    parts += [table(titles, body)] if body else []
    slow = [
        f"- {code(cell.cell_id)}: {s.k} of {s.n} requests had a {inline(s.metric.upper())} above {s.limit_ms:.0f} ms, "
        f"{s.factor:g} times the p99 of {code(c.baseline)}, where {s.base_k} of {s.base_n} had."
        for cell, c in held
        for s in c.slow
    ]
    return "\n\n".join([*parts, *(["\n".join(slow)] if slow else [])])


def noise_and_canaries(cells: Sequence[CellResult]) -> str:
    """What a baseline says twice, and canaries that lost their code."""
    lines = [f"- Noise floor of {code(c.cell_id)}: {inline(text)}." for c in cells if (text := rows.noise_text(c))]
    lines += [f"- {code(c.cell_id)}: {inline(text)}." for c in cells if (text := rows.repeats_text(c))]
    asked = [(c, c.evidence.canaries) for c in cells if c.evidence and c.evidence.canaries]
    answered = [(c, k) for c, k in asked if k.sent > k.error]
    lines += [
        f"- Canaries of {code(c.cell_id)}: {k.wrong + k.crossed} of {k.sent - k.error} lost their code"
        f"{f', {k.crossed} of them came back with the code of another' if k.crossed else ''}."
        for c, k in answered
        if k.wrong + k.crossed
    ]
    sound = [k.sent - k.error for _, k in answered if not k.wrong + k.crossed]
    if sound:
        rest = "other cells" if len(sound) < len(answered) else "cells"
        where = f"all {len(sound)} {rest}" if len(sound) > 1 else "the other cell" if len(answered) > 1 else "the cell"
        lines.append(f"- Canaries of {where}: all {sum(sound)} that were answered kept their code.")
    return "### Noise floor and canaries\n\n" + "\n".join(lines) if lines else ""


def by_groups(cells: Sequence[CellResult]) -> str:
    """Accuracy by what a task's questions differ in, a row a group and a column a cell."""
    tables = [f"### Accuracy by {inline(axis)}\n\n{grid(columns)}" for axis, columns in rows.group_tables(cells)]
    return "\n\n".join(tables)


def resumed(cells: Sequence[CellResult]) -> str:
    """Cells that were gone on with after their sweep was killed."""
    lines = [f"- {code(c.cell_id)}: {text}." for c in cells if (text := rows.resumed_text(c))]
    return "### Resumed\n\n" + "\n".join(lines) if lines else ""


def notes(cells: Sequence[CellResult]) -> str:
    """What no verdict says of a cell."""
    lines = [f"- {code(c.cell_id)}: {inline(text)}" for c in cells if (text := rows.notes_text(c))]
    return "### Notes\n\n" + "\n".join(lines) if lines else ""


def figures(cells: Sequence[CellResult]) -> str:
    """Every cell's figures, folded away."""
    names = Column("cell", tuple(c.cell_id for c in cells))
    state = rows.verdict_columns(cells)[1]
    answers = [names, *rows.answer_columns(cells), *rows.damage_columns(cells), state]
    parts = [grid(answers), grid([names, *rows.speed_columns(cells)])]
    scorers = [f"- {code(c.cell_id)}: {inline(text)}" for c in cells if (text := rows.scorers_text(c))]
    parts += ["Accuracy by scorer:\n\n" + "\n".join(scorers)] if scorers else []
    parts += [rows.warmup_text(cells)]
    return folded("All cells in figures", "\n\n".join(part for part in parts if part))


def latencies(cells: Sequence[CellResult]) -> str:
    """Every latency of every cell and leg, folded away."""
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
    return folded("Latencies", grid(columns))


def reference(run: RunResult) -> str:
    """Results that others published, whatever their keys are."""
    found = [rows.flat(row) for row in run.reference]
    names = dict.fromkeys(name for row in found for name in row)
    columns = [Column(name, tuple(row.get(name, rows.MISSING) for row in found)) for name in names]
    return folded("Reference: results that others published", grid(columns)) if columns else ""


def provenance(run: RunResult) -> str:
    """Versions, host, command and how each baseline was chosen, folded away."""
    info = run.info
    facts: dict[str, Any] = {
        "run": info.run_id,
        "sweep": f"{info.name} ({info.config_file})",
        "from": info.started,
        "to": info.ended or "not finished",
        "command": shlex.join(masked_argv(info.argv)),
    }
    if info.git:
        facts["git"] = info.git
    facts |= {"version": info.versions, "host": info.host}
    tasks = {(c.task.name, c.task.version, c.task.n): c.task for c in run.cells if c.task}
    facts |= {f"task {t.name}": f"version {t.version}, {t.n} questions, scorer {t.scorer}" for t in tasks.values()}
    lines = [f"- {inline(name)}: {inline(text)}" for name, text in made.flat(facts).items()]
    if info.notes:
        lines += ["- notes:", *(f"  - {inline(note)}" for note in info.notes)]
    parts = ["\n".join(lines)]
    if engines := made.engine_columns(info):
        parts.append(grid(engines))
    return folded("Where and how it was made", "\n\n".join(parts))


def variables(run: RunResult) -> str:
    """The variables that were set for servers, folded away: a line for each value, with the servers that had it."""
    found = made.variables(run.info)
    servers: dict[tuple[str, str], list[str]] = {}
    for deployment, server, name, value in found:
        servers.setdefault((name, value), []).append(f"{deployment} {server}")
    total = len({(deployment, server) for deployment, server, _, _ in found})
    lines = [
        f"- {inline(f'{name}={value}')}: {'all servers' if len(who) == total else inline(', '.join(who))}"
        for (name, value), who in servers.items()
    ]
    return folded("Variables that were set for servers", "\n".join(lines)) if lines else ""


def config(run: RunResult) -> str:
    """The sweep file as it was, folded away."""
    text = masked_yaml(run.info.config_text).strip()
    return folded(f"Sweep file {run.info.config_file}", block(text, "yaml")) if text else ""


def formulas() -> str:
    """How each figure is counted, folded away."""
    lines = [f"- {name}: {inline(formula)}" for name, formula in METRIC_FORMULAS.items()]
    return folded("How it is counted", "\n".join(lines))


def _ratio(comparison: Comparison, metric: str) -> str:
    found: Ratio | None = next((r for r in comparison.ratios if r.metric == metric), None)
    if found is None:
        return rows.MISSING
    text = f"{found.value:.2f} [{found.ci95[0]:.2f}, {found.ci95[1]:.2f}]"
    bound = "" if found.gate is None else f"{'≥' if metric == 'requests_per_s' else '≤'} {found.gate:g}"
    return inline(text) + (f"<br>bound {bound}" if bound else "")
