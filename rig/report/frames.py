"""A run as pandas frames: cells, requests, pairs; pure. docs/reports.md lists the columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from evals.records import RequestRecord
from rig.metrics import error_texts
from rig.records import CellResult, Comparison, Judged, JudgedCanary, Pair, RunResult
from rig.report.data import RunData, arrival
from rig.report.reproduce import reproduce
from rig.report.rows import groups_text, label_text
from rig.verdict import state_name

TEXT, WHOLE, REAL, TRUTH = "string[python]", "Int64", "Float64", "boolean"
"""The nullable types of pandas: what is missing is <NA> in every one of them, never 0.

Texts are kept by Python: the other storage cannot hold every text that Python can.
"""

_LATENCIES = [f"{name}_{part}_ms" for name in ("e2e", "ttft", "tpot", "itl") for part in ("p50", "p90", "p99", "mean")]
_LEGS = [f"{name}_{part}_ms" for name in ("prefill", "handoff", "decode") for part in ("p50", "p90", "p99", "mean")]
CELL_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(
        ("run_id", "cell_id", "kind", "deployment", "status", "state", "channel", "reason", "failure"), TEXT
    ),
    **dict.fromkeys(("task", "task_version", "scorer"), TEXT),
    "n": WHOLE,
    **dict.fromkeys(("accuracy", "accuracy_low", "accuracy_high"), REAL),
    **dict.fromkeys(
        ("correct", "wrong", "unparsed", "truncated", "unscored", "errors", "retried", "warmup_requests"), WHOLE
    ),
    "errors_by_class": TEXT,
    **dict.fromkeys(("requests_per_s", "output_tokens_per_s", "total_tokens_per_s"), REAL),
    "output_tokens": WHOLE,
    "duration_s": REAL,
    **dict.fromkeys((*_LATENCIES, *_LEGS), REAL),
    "pd_exercised": TRUTH,
    **dict.fromkeys(("transfers", "bytes", "external_tokens", "local_tokens", "failed", "expired"), WHOLE),
    **dict.fromkeys(("canaries_sent", "canaries_wrong", "canaries_crossed", "canaries_error"), WHOLE),
    "rerun_of": TEXT,
    **dict.fromkeys(("resumed_kept", "resumed_again"), WHOLE),
    **dict.fromkeys(("groups", "command"), TEXT),
}
COMPARISON_COLUMNS: Mapping[str, str] = {
    "baseline": TEXT,
    **dict.fromkeys(("change", "change_low", "change_high", "p_value", "upper_drop"), REAL),
    **dict.fromkeys(("only_baseline_right", "only_cell_right", "pairs"), WHOLE),
    **dict.fromkeys(("min_detectable_drop", "output_agreement"), REAL),
    "more_questions": WHOLE,
}
REQUEST_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("cell_id", "kind", "sample_id"), TEXT),
    **dict.fromkeys(("pass", "repeat"), WHOLE),
    **dict.fromkeys(("request_id", "outcome", "answer", "target", "tainted"), TEXT),
    "order": WHOLE,
    **dict.fromkeys(("t_submit_s", "t_first_token_s", "t_end_s", "e2e_ms", "ttft_ms", "tpot_ms"), REAL),
    **dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens", "http_status", "attempts"), WHOLE),
    **dict.fromkeys(("finish_reason", "error_leg", "error_class", "error_message", "text", "reasoning"), TEXT),
    **dict.fromkeys(("baseline", "baseline_request_id", "baseline_outcome", "baseline_text"), TEXT),
    "equal": TRUTH,
    "first_token": WHOLE,
    "shift": REAL,
}
PAIR_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("cell_id", "baseline", "sample_id"), TEXT),
    "repeat": WHOLE,
    **dict.fromkeys(("request_id", "baseline_request_id", "outcome", "baseline_outcome"), TEXT),
    "equal": TRUTH,
    "first_token": WHOLE,
    "shift": REAL,
    **dict.fromkeys(("order", "concurrency", "prompt_tokens", "block_remainder"), WHOLE),
    **dict.fromkeys(("prefill", "decode"), TEXT),
    "since_finish_ms": REAL,
    "predecessor": TEXT,
}


@dataclass(frozen=True)
class LoadedRun:
    """A run in frames: a row a cell, a row a request, a row a question and baseline."""

    cells: pd.DataFrame
    requests: pd.DataFrame
    pairs: pd.DataFrame


def load(data: RunData) -> LoadedRun:
    """All three frames of a run."""
    return LoadedRun(cells_frame(data.results), _requests_frame(data), _pairs_frame(data))


def cells_frame(run: RunResult) -> pd.DataFrame:
    """A row a cell: labels as `label.NAME`, then the columns above; further baselines have their number at the end."""
    rows = [_cell(run, cell) for cell in run.cells]
    labels = dict.fromkeys(f"label.{name}" for cell in run.cells for name in cell.labels)
    most = max((len(cell.comparisons) for cell in run.cells), default=0)
    columns = {**dict(list(CELL_COLUMNS.items())[:6]), **dict.fromkeys(labels, TEXT)}
    columns |= dict(list(CELL_COLUMNS.items())[6:])
    for number in range(1, max(most, 1) + 1):
        columns |= {_numbered(name, number): kind for name, kind in COMPARISON_COLUMNS.items()}
    return _frame(rows, columns)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}_{number}"


def _cell(run: RunResult, cell: CellResult) -> dict[str, Any]:
    reason = cell.verdict.reasons[0] if cell.verdict and cell.verdict.reasons else None
    row: dict[str, Any] = {
        "run_id": run.info.run_id,
        "cell_id": cell.cell_id,
        "kind": cell.kind,
        "deployment": cell.deployment,
        "status": cell.status,
        "state": state_name(cell),
        "channel": reason.channel if reason else None,
        "reason": reason.text if reason else None,
        "failure": cell.failure,
        "retried": cell.retried,
        "warmup_requests": cell.warmup_requests,
        "rerun_of": cell.rerun_of,
        "groups": groups_text(cell),
        "command": reproduce(run, cell),
    }
    if cell.resumed:
        row |= {"resumed_kept": cell.resumed.kept, "resumed_again": cell.resumed.again}
    row |= {f"label.{name}": None if value is None else label_text(value) for name, value in cell.labels.items()}
    if cell.task:
        row |= {"task": cell.task.name, "task_version": cell.task.version, "n": cell.task.n}
    if cell.accuracy:
        low, high = cell.accuracy.ci95 or (None, None)
        row |= {"scorer": cell.accuracy.scorer, "accuracy": cell.accuracy.value}
        row |= {"accuracy_low": low, "accuracy_high": high}
    if c := cell.counts:
        row |= {"correct": c.correct, "wrong": c.wrong, "unparsed": c.unparsed, "truncated": c.truncated}
        row |= {"unscored": c.unscored, "errors": sum(c.error.values())}
        row["errors_by_class"] = ", ".join(error_texts(c)) or None
    if t := cell.throughput:
        row |= {"requests_per_s": t.requests_per_s, "output_tokens_per_s": t.output_tokens_per_s}
        row |= {"total_tokens_per_s": t.total_tokens_per_s, "output_tokens": t.total_output_tokens}
        row["duration_s"] = t.duration_s
    for name, p in {**cell.latency_ms, **cell.legs_ms}.items():
        row |= {f"{name}_{part}_ms": getattr(p, part) for part in ("p50", "p90", "p99", "mean")}
    if e := cell.evidence:
        names = ("pd_exercised", "transfers", "bytes", "external_tokens", "local_tokens", "failed", "expired")
        row |= {name: getattr(e, name) for name in names}
        if k := e.canaries:
            row |= {"canaries_sent": k.sent, "canaries_wrong": k.wrong}
            row |= {"canaries_crossed": k.crossed, "canaries_error": k.error}
    for number, comparison in enumerate(cell.comparisons, 1):
        row |= {_numbered(name, number): value for name, value in _comparison(comparison).items()}
    return row


def _comparison(c: Comparison) -> dict[str, Any]:
    low, high = c.ci95 or (None, None)
    return {
        "baseline": c.baseline,
        "change": c.delta,
        "change_low": low,
        "change_high": high,
        "p_value": c.p_value,
        "upper_drop": c.upper_drop,
        "only_baseline_right": c.b,
        "only_cell_right": c.c,
        "pairs": c.n,
        "min_detectable_drop": c.min_detectable_drop,
        "output_agreement": c.output_agreement,
        "more_questions": c.more_questions,
    }


def _requests_frame(data: RunData) -> pd.DataFrame:
    texts = {r.request_id: r.text for cell in data.cells.values() for r in cell.records}
    rows = []
    for result in data.results.cells:
        cell = data.cell(result.cell_id)
        judged: dict[str, Judged | JudgedCanary] = {}
        judged.update((j.request_id, j) for j in cell.judged)
        judged.update((canary.request_id, canary) for canary in cell.canaries)
        baseline, pairs = next(iter(data.pairs(result).items()), (None, ()))
        paired = {p.request_id: p for p in pairs}
        order = arrival(cell.records)
        for record in cell.records:
            row = {"cell_id": result.cell_id, "order": order.get(record.request_id), **_request(record)}
            row |= _judged(judged.get(record.request_id))
            if pair := paired.get(record.request_id):
                row |= {"baseline": baseline, "baseline_request_id": pair.baseline_request_id}
                row |= {"baseline_outcome": pair.baseline_outcome, "equal": pair.equal}
                row |= {"first_token": pair.first_token, "shift": pair.shift}
                row["baseline_text"] = texts.get(pair.baseline_request_id)
            rows.append(row)
    return _frame(rows, REQUEST_COLUMNS)


def _request(r: RequestRecord) -> dict[str, Any]:
    ok = r.error is None
    e2e = (r.t_end - r.t_submit) * 1000 if ok else None
    ttft = (r.t_first_token - r.t_submit) * 1000 if ok and r.t_first_token is not None else None
    gaps = (r.completion_tokens or 0) - 1
    tpot = (e2e - ttft) / gaps if gaps > 0 and e2e is not None and ttft is not None else None
    return {
        "kind": r.kind,
        "sample_id": r.sample_id,
        "pass": r.pass_,
        "repeat": r.repeat,
        "request_id": r.request_id,
        "t_submit_s": r.t_submit,
        "t_first_token_s": r.t_first_token,
        "t_end_s": r.t_end,
        "e2e_ms": e2e,
        "ttft_ms": ttft,
        "tpot_ms": tpot,
        "prompt_tokens": r.prompt_tokens,
        "completion_tokens": r.completion_tokens,
        "cached_tokens": r.cached_tokens,
        "http_status": r.http_status,
        "attempts": r.attempts,
        "finish_reason": r.finish_reason,
        "error_leg": r.error.leg if r.error else None,
        "error_class": r.error.error_class if r.error else None,
        "error_message": r.error.message if r.error else None,
        "text": r.text,
        "reasoning": r.reasoning,
    }


def _judged(judged: Judged | JudgedCanary | None) -> dict[str, Any]:
    if judged is None:
        return {}
    if isinstance(judged, JudgedCanary):
        return {"outcome": judged.outcome, "answer": judged.answer, "target": judged.expected}
    tainted = "; ".join(judged.tainted) or None
    return {"outcome": judged.outcome, "answer": judged.answer, "target": judged.target, "tainted": tainted}


def _pairs_frame(data: RunData) -> pd.DataFrame:
    rows = [
        {"cell_id": result.cell_id, "baseline": baseline, **_pair(pair)}
        for result in data.results.cells
        for baseline, pairs in data.pairs(result).items()
        for pair in pairs
    ]
    return _frame(rows, PAIR_COLUMNS)


def _pair(pair: Pair) -> dict[str, Any]:
    return {name: getattr(pair, name) for name in pair.__dataclass_fields__}


def _frame(rows: Iterable[dict[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    found = list(rows)
    # As objects first: pandas would make floats of whole numbers that have a gap, and round large ones.
    values = {name: [row.get(name) for row in found] for name in columns}
    return pd.DataFrame(values, dtype=object).astype(dict(columns))
