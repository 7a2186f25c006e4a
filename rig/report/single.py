"""The result of one evaluation as text, for `pdrig eval`; vLLM's six figures first, under their own names."""

from __future__ import annotations

from rig.metrics import error_texts
from rig.records import CellResult, Percentiles


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def format_evaluation(result: CellResult, path: str) -> str:
    """Figures, outcome classes and latencies; a missing value is `-`."""
    assert result.accuracy and result.counts and result.task
    a, c, t = result.accuracy, result.counts, result.throughput
    errors = sum(c.error.values())
    scored = c.correct + c.wrong + c.unparsed + c.truncated
    invalid = (c.unparsed + c.truncated) / scored if scored else None
    interval = f" (95 % interval {a.ci95[0]:.3f} to {a.ci95[1]:.3f})" if a.ci95 else ""
    total = t.total_output_tokens if t else None
    labels = result.labels
    load = labels.get("schedule") or f"{labels.get('concurrency')} requests in flight"
    lines = [
        f"task {result.task.name} v{result.task.version}, {result.task.n} questions, scorer {a.scorer}",
        f"load: {load}",
        f"Accuracy: {_figure(a.value, '.3f')}{interval}",
        f"Invalid responses: {_figure(invalid, '.3f')}",
        f"Total latency: {_figure(t.duration_s if t else None, '.3f')} s",
        f"Questions per second: {_figure(t.requests_per_s if t else None, '.3f')}",
        f"Total output tokens: {'-' if total is None else total}",
        f"Output tokens per second: {_figure(t.output_tokens_per_s if t else None, '.3f')}",
        f"correct {c.correct}, wrong {c.wrong}, unparsed {c.unparsed}, truncated {c.truncated}, errors {errors}",
    ]
    lines += [f"  error {text}" for text in error_texts(c)]
    if result.failure:
        lines.append(f"  the first error: {result.failure}")
    if result.warmup_requests:
        lines.append(f"warm-up requests before, not counted: {result.warmup_requests}")
    if result.retried:
        lines.append(f"questions that took more than one attempt to connect: {result.retried}")
    beside = [f"{name} {_figure(value, '.3f')}" for name, value in a.by_scorer.items() if name != a.scorer]
    if beside:
        lines.append(f"by other scorers: {', '.join(beside)}")
    lines += [_latency(name, value) for name, value in result.latency_ms.items()]
    return "\n".join([*lines, f"records: {path}"])


def _latency(name: str, p: Percentiles) -> str:
    return f"{name} ms: p50 {p.p50:.1f}, p90 {p.p90:.1f}, p99 {p.p99:.1f}, mean {p.mean:.1f}"
