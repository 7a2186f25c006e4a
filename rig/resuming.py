"""Going on with a killed sweep: what it left running is ended, what it had asked is kept where it is proved."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evals.errors import EvalError
from evals.records import RequestRecord
from evals.sink import read_records
from evals.tasks import Task
from rig.attempts import Kept, Part, read_attempt
from rig.connectors import through_storage
from rig.deploy import leftovers
from rig.deploy.record import difference
from rig.errors import DataError, UsageError
from rig.evidence_parts import unprovable, with_legs
from rig.metrics import RIGS_OWN
from rig.planned import CellPlan, DeploymentPlan, SweepPlan
from rig.rounds import rounds_of
from rig.secrets import masked_argv
from rig.store import RunFolder, as_json

Asked = tuple[str, str, int]
"""Kind, sample and repeat: what tells one request of a cell from another."""


OTHER_SWEEP = "was made from another sweep, or with other options: give the same, or start a new run"


def reopen(path: Path, resolved: Mapping[str, object], other: str = OTHER_SWEEP) -> RunFolder:
    """Open a run to go on with it; `resolved` is what it comes to now, `other` what is said where that differs.

    Raises DataError for a folder that is no run, UsageError for another one's, or for one that is still being run.
    """
    run = RunFolder.open(path)
    info = run.read_info()
    if info.resolved != as_json(resolved):
        raise UsageError(f"{path} {other} (it was made by: {shlex.join(masked_argv(info.argv))})")
    leftovers.require_ended(path)
    return run


def clear(plan: SweepPlan, run: RunFolder) -> list[str]:
    """End what earlier attempts left running, the run's own processes alone; returns a line for each, which the run's
    notes hold too.

    Raises RunError naming what could not be ended.
    """
    left = leftovers.find(run.path)
    leftovers.stop(left, max((d.limits.stop_s for d in plan.deployments), default=0.0))
    told = [f"ended what was left running: {one}" for one in left]
    if told:
        info = run.read_info()
        run.write_info(replace(info, notes=(*info.notes, *told)))
    return told


def kept_of(
    run: RunFolder, cell: CellPlan, plan: DeploymentPlan, task: Task, engines: Mapping[str, Any]
) -> Kept | str | None:
    """What of a cell's earlier attempt counts: all that its counters and legs prove, less the rig's own faults.

    In its place why the cell starts over, or None for a cell of which nothing was asked. `engines` are the versions
    of the deployment's engines now.
    """
    if not run.requests(cell.id).is_file():
        return None
    try:
        return _spoiled(run, cell) or _kept(run, cell, plan, task, engines)
    except (DataError, EvalError) as error:
        return f"what it wrote down cannot be read: {error}"


def _kept(run: RunFolder, cell: CellPlan, plan: DeploymentPlan, task: Task, engines: Mapping[str, Any]) -> Kept | str:
    attempt = read_attempt(run, cell.id)
    if attempt is None or not attempt.parts:
        return "no reading of its counters was taken"
    for part in attempt.parts:
        if why := _differs(run, part, plan, engines):
            return why
    written = read_records(run.requests(cell.id))
    stored = [r for r in written.records if r.kind in ("question", "canary")]
    prompts = _prompts(cell, task)
    if any(prompts.get(_asked(r)) != r.prompt_sha256 for r in stored):
        return "its task has other prompts now"
    parts, kept, why = [], set[str](), None
    for part in attempt.parts:
        proved = _proved(run, part, plan, stored)
        hidden = _unproved(plan, proved, part.begun - len(proved))
        if hidden is not None:
            why = hidden
        elif proved:
            parts.append(replace(part, ended=tuple(r.request_id for r in proved)))
            kept |= set(parts[-1].ended)
    if not kept:
        return why or "nothing that was asked is proved"
    records = tuple(r for r in stored if r.request_id in kept)
    return Kept(attempt.t0_unix, tuple(parts), records, len(stored) - len(records), len(written.repeated))


def _spoiled(run: RunFolder, cell: CellPlan) -> str | None:
    if cell.task.pass_:
        return "it is one of several passes over the same questions, which are about what the servers hold"
    result = run.read_cell(cell.id)
    if result is None or result.status == "interrupted":
        return None
    if result.status == "failed":
        return f"its deployment failed ({result.failure})"
    return "its files are damaged" if run.damage(result) else None


def _differs(run: RunFolder, part: Part, plan: DeploymentPlan, engines: Mapping[str, Any]) -> str | None:
    path = run.deployment(part.deployment) / "deployment.json"
    if not path.is_file():
        return f"{path} is gone"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return f"{path} is damaged"
    changed = difference(told, plan, engines)
    return f"its deployment differs now: {changed}" if changed else None


def _proved(run: RunFolder, part: Part, plan: DeploymentPlan, stored: list[RequestRecord]) -> list[RequestRecord]:
    """The part's records that its last reading counts and whose legs are known, but for the rig's own faults."""
    ended = set(part.ended)
    mine = [r for r in stored if r.request_id in ended and not _own_fault(r)]
    if plan.proxy is None or plan.proxy.kind != "pdrig":
        return mine
    return with_legs(mine, run.read_legs(part.deployment) or ())


def _unproved(plan: DeploymentPlan, proved: list[RequestRecord], under_way: int) -> str | None:
    """Why a reading in the midst of work does not prove these answers; None where it does."""
    if plan.kind != "pd":
        return None
    if under_way and through_storage(plan.connector):
        return f"with {plan.connector} a reading proves nothing while requests are under way"
    return unprovable(proved, under_way)


def _own_fault(record: RequestRecord) -> bool:
    error = record.error
    return error is not None and (error.leg == "client" or error.error_class in RIGS_OWN)


def _asked(record: RequestRecord) -> Asked:
    return record.kind, record.sample_id, record.repeat


def _prompts(cell: CellPlan, task: Task) -> dict[Asked, str]:
    return {
        (request.kind, request.sample_id, request.repeat): hashlib.sha256(request.prompt.encode()).hexdigest()
        for asked in rounds_of(cell, task)
        for request in asked.requests
    }
