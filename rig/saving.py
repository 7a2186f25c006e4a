"""`pdrig baseline save`: from the cells of a stored run to the files of baselines."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from evals.errors import EvalError
from rig import baselines
from rig.baselines import BaselineFile, Origin, Proof, Stored, StoredTask
from rig.errors import DataError, UsageError
from rig.records import CellResult, RunInfo
from rig.store import RunFolder
from rig.verdict import state_name

SOUND = ("pass", "improved", "baseline")


@dataclass(frozen=True)
class Said:
    """What became of one cell, in a line; `saved` False where it was refused."""

    text: str
    saved: bool


def refusal(result: CellResult) -> str | None:
    """Why a cell's result cannot be a baseline; None where it can."""
    state = state_name(result)
    if result.status == "interrupted":
        return "it was interrupted: finish the run with `pdrig sweep --resume`"
    if result.status == "failed" or state == "failed":
        return "it failed: there is nothing to save"
    if result.rerun_of is not None:
        return f"it repeats {result.rerun_of}, which was red: a result that was asked for twice is a choice"
    if result.sequential is not None:
        return "it ran with early_stop: where it stopped depends on its answers; run it without"
    if state not in SOUND:
        return f"its verdict is {state}: only pass, improved, and sound monolithic cells are baselines"
    if result.task is None or result.accuracy is None or result.accuracy.value is None or result.counts is None:
        return "it has no accuracy"
    if result.labels.get("model") is None or result.labels.get("task") is None:
        return "it has no labels of model and task"
    return None


def save(run: RunFolder, out: Path, glob: str | None = None) -> Iterator[Said]:
    """Write the baselines of a run's cells; yields what became of each cell. Raises UsageError, DataError.

    Nothing is written before every cell was read and every file can be; what is replaced is said.
    """
    found = run.read()
    cells = [c for c in found.cells if glob is None or fnmatch.fnmatchcase(c.cell_id, glob)]
    if not cells:
        known = ", ".join(c.cell_id for c in found.cells) or "none"
        raise UsageError(f"{run.path}: no finished cell{f' matches --cell {glob}' if glob else ''}; it has {known}")
    files: dict[str, BaselineFile] = {}
    for result in cells:
        try:
            problem = refusal(result) or run.damage(result)
            new = None if problem else _file(run, result, found.info)
        except (DataError, EvalError) as error:
            problem, new = str(error), None
        if new is None:
            yield Said(f"{result.cell_id}: not saved: {problem}", False)
            continue
        name = baselines.file_name(new.model, new.task_label)
        try:
            files[name] = baselines.merged(files.get(name), new)
        except UsageError as error:
            raise UsageError(f"{result.cell_id}: {error}") from None
    writing = []
    for name, new in sorted(files.items()):
        path = out / name
        old = baselines.read(path) if path.is_file() else None
        try:
            writing.append((path, old, new, baselines.merged(old, new)))
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
    for path, old, new, whole in writing:
        baselines.write(path, whole)
        for stored in new.baselines:
            yield Said(f"{path}: {stored.name}: {baselines.changes(old, new, stored)}", True)


def _file(run: RunFolder, result: CellResult, info: RunInfo) -> BaselineFile:
    """One cell as a file of its own."""
    task, accuracy, counts = result.task, result.accuracy, result.counts
    assert task and accuracy and counts
    first = [j for j in run.read_judged(result.cell_id) if j.repeat == 0]
    records = [r for r in run.read_requests(result.cell_id) if r.kind == "question" and r.repeat == 0]
    proof = result.evidence
    stored = Stored(
        name=result.cell_id,
        labels=result.labels,
        kind=result.kind,
        verdict=cast("Literal['pass', 'improved'] | None", result.verdict.state if result.verdict else None),
        accuracy=accuracy,
        n=len(first),
        prompt_sha256=task.prompt_sha256,
        counts=counts,
        evidence=Proof(
            proof.pd_exercised if proof else None,
            proof.transfers if proof else None,
            proof.failed if proof else None,
            proof.expired if proof else None,
            proof.canaries if proof else None,
        ),
        latency_ms=result.latency_ms,
        throughput=result.throughput,
        warmup_requests=result.warmup_requests,
        gates=result.gates,
        commands=result.commands,
        machine=machine(info.host),
        versions=info.versions,
        origin=Origin(
            run=info.run_id,
            cell=result.cell_id,
            ran=info.started,
            saved=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            argv=info.argv,
            git=info.git,
        ),
        missed=baselines.missed_of((j.sample_id, j.outcome) for j in first),
    )
    questions = dict(sorted((r.sample_id, r.prompt_sha256) for r in records))
    return BaselineFile(
        str(result.labels["model"]), str(result.labels["task"]), StoredTask.of(task), [stored], questions
    )


def machine(host: dict[str, Any]) -> dict[str, Any]:
    """What of a host bears on speed: all but its name."""
    return {key: value for key, value in host.items() if key != "hostname"}
