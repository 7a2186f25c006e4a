"""Stored baselines as text: `pdrig baseline list` and `show`; pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rig.baselines import BaselineFile, Stored
from rig.report.rows import MISSING, Column, label_text, measured_text, number, p50_p99
from rig.report.text import grid_lines, grid_text


def format_list(files: Mapping[str, BaselineFile], folder: str) -> str:
    """A row a baseline; `files` by path."""
    found = [(path, file, stored) for path, file in files.items() for stored in file.baselines]
    if not found:
        return f"{folder}: no baselines; `pdrig baseline save RUN` writes them"
    columns = [
        Column("file", tuple(path.rsplit("/", 1)[-1] for path, _, _ in found)),
        Column("baseline", tuple(stored.name for _, _, stored in found)),
        Column("accuracy", tuple(measured_text(stored.accuracy) for _, _, stored in found)),
        Column("n", tuple(f"{stored.n}" for _, _, stored in found)),
        Column("TTFT ms\np50/p99", tuple(p50_p99(stored.latency_ms.get("ttft")) for _, _, stored in found)),
        Column("verdict", tuple(stored.verdict or "baseline" for _, _, stored in found)),
        Column("saved", tuple(stored.origin.saved for _, _, stored in found)),
        Column("from run", tuple(stored.origin.run for _, _, stored in found)),
    ]
    return grid_text(grid_lines(columns, False))


def format_show(file: BaselineFile, path: str, stored: Sequence[Stored]) -> str:
    """Some of a file's baselines in words."""
    task = file.task
    params = ", ".join(f"{name} {label_text(value)}" for name, value in task.params.items())
    head = [
        f"{path}: {file.model}, {file.task_label}",
        f"task: {task.name} version {task.version}, {task.endpoint}, {params}",
        f"scorer: {task.scorer} (SHA-256 {task.scorer_sha256[:12]})",
    ]
    return "\n\n".join(["\n".join(head), *(_words(one) for one in stored)])


def _words(one: Stored) -> str:
    counts = ", ".join(f"{name} {len(samples)}" for name, samples in one.missed.items())
    labels = ", ".join(f"{name} {label_text(value)}" for name, value in one.labels.items() if value is not None)
    rate = one.throughput
    origin, git = one.origin, one.origin.git
    commit = f", commit {str(git['commit'])[:12]}{' with changes' if git.get('changed') else ''}" if git else ""
    lines = [
        f"{one.name}: {one.verdict or 'baseline'}",
        f"  accuracy {measured_text(one.accuracy)} of {one.n} questions ({counts})",
        f"  labels: {labels}",
        f"  latency ms, p50/p99: {', '.join(f'{k} {p50_p99(v)}' for k, v in one.latency_ms.items()) or MISSING}",
        f"  throughput: {number(rate.requests_per_s if rate else None)} requests/s, "
        f"{number(rate.output_tokens_per_s if rate else None)} output tokens/s",
        f"  machine: {', '.join(f'{k} {label_text(v)}' for k, v in one.machine.items()) or MISSING}",
        f"  versions: {', '.join(f'{k} {v}' for k, v in one.versions.items()) or MISSING}",
        f"  margin {100 * one.gates.max_accuracy_drop:g} points, alpha {one.gates.alpha:g}",
        f"  from run {origin.run} of {origin.ran}{commit}, saved {origin.saved}: {shlex.join(origin.argv)}",
    ]
    lines += [f"  {name}: {shlex.join(argv)}" for name, argv in one.commands.items()]
    return "\n".join(lines)
