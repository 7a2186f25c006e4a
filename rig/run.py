"""The loop over a sweep: launch, evaluate each cell of the deployment, stop, go on with the next."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from evals.errors import EvalError
from evals.tasks import Task, build_task
from rig import cell as cells
from rig import provenance
from rig.deploy import Deployment, Event, launch, require_startable
from rig.errors import DataError, DeployError, PortLost, UsageError
from rig.planned import CellPlan, DeploymentPlan, SweepPlan, TaskPlan
from rig.progress import Display
from rig.records import CellResult, Reason, RunInfo, RunResult, Verdict
from rig.secrets import masked_yaml
from rig.store import RunFolder, write_text

HEALTHY = ("pass", "improved", None)
"""Verdicts after which a deployment is trusted with another cell; None is a baseline's."""

TaskFor = Callable[[TaskPlan], Task]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def load_tasks(plan: SweepPlan, data: Path | None) -> dict[str, Task]:
    """Build every task of the sweep before anything starts, by label. Raises DataError."""
    tasks: dict[str, Task] = {}
    for cell in plan.cells:
        wanted = cell.task
        if wanted.label in tasks:
            continue
        try:
            tasks[wanted.label] = build_task(
                wanted.name,
                limit=wanted.limit,
                shots=wanted.shots,
                max_tokens=wanted.max_tokens,
                data=data,
                params=wanted.params,
            )
        except EvalError as error:
            raise DataError(f"task {wanted.label}: {error}") from None
    return tasks


def begin(plan: SweepPlan, config: Path, parent: Path) -> RunFolder:
    """Make the run's folder and write what is known before anything starts."""
    run = RunFolder.create(parent, plan.name)
    info = RunInfo(
        run_id=run.path.name,
        name=plan.name,
        config_file=plan.config_file,
        config_text=masked_yaml(config.read_text(encoding="utf-8")),
        resolved=resolved(plan),
        started=now(),
        ended=None,
        argv=provenance.argv(),
        versions=provenance.versions(),
        host=provenance.host(),
        git=provenance.git(config.resolve().parent),
        notes=plan.notes,
    )
    run.write_info(info)
    return run


def resolved(plan: SweepPlan) -> dict[str, object]:
    """The sweep as resolved: its cells with their labels and tasks, and the published rows beside them."""
    return {
        "cells": [
            {"id": c.id, "labels": c.labels, "deployment": c.deployment, "task": asdict(c.task)} for c in plan.cells
        ],
        "reference": list(plan.reference),
        "config": plan.resolved,
    }


def announce(plan: SweepPlan, run: RunFolder, display: Display) -> None:
    """Say what is about to run, and where its results go."""
    display.say(f"run {run.path}: {len(plan.cells)} cells on {len(plan.deployments)} deployments")
    for note in plan.notes:
        display.say(f"note: {note}")


def check_startable(plan: SweepPlan) -> None:
    """Look at every deployment's commands and ports before the first one starts.

    Raises EngineNotFound, and UsageError for a port that is taken already or a server planned for another host.
    """
    for deployment in plan.deployments:
        if deployment.launcher == "local":
            try:
                require_startable(deployment)
            except PortLost as error:
                raise UsageError(str(error)) from None


class Sweep:
    """A sweep under way: what is finished, and how to go on after a fault."""

    def __init__(self, plan: SweepPlan, tasks: dict[str, Task], run: RunFolder, display: Display) -> None:
        self.plan = plan
        self.tasks = tasks
        self.run = run
        self.display = display
        self.finished: dict[str, cells.Finished] = {}

    async def all(self) -> RunResult:
        """Run every cell that has no result yet; returns all results, also when cells failed."""
        try:
            for deployment, wanted in self._groups():
                await self._deployment(deployment, wanted)
        finally:
            self.run.write_info(replace(self.run.read_info(), ended=now()))
        return self.run.read()

    def _groups(self) -> Iterator[tuple[DeploymentPlan, list[CellPlan]]]:
        """Cells by deployment, in the order of the plan; finished ones only serve as baselines."""
        by_id = {d.id: d for d in self.plan.deployments}
        groups: dict[str, list[CellPlan]] = {}
        for cell in self.plan.cells:
            groups.setdefault(cell.deployment, []).append(cell)
        for deployment_id, wanted in groups.items():
            left = [cell for cell in wanted if not self._is_finished(cell)]
            if left:
                yield by_id[deployment_id], left

    def _is_finished(self, cell: CellPlan) -> bool:
        result = self.run.read_cell(cell.id)
        if result is None or result.status in ("interrupted", "failed"):
            return False
        judged = tuple(self.run.read_judged(cell.id))
        self.finished[cell.id] = cells.Finished(result, judged, cells.texts_of(self.run.read_requests(cell.id)))
        self.display.say(f"{cell.id}: finished before this run was resumed")
        return True

    async def _deployment(self, plan: DeploymentPlan, wanted: Sequence[CellPlan]) -> None:
        """Evaluate cells on one deployment; a fresh one after a fault or any verdict but pass."""
        left = list(wanted)
        launches = 0
        while left:
            launches += 1
            name = plan.id if launches == 1 else f"{plan.id}.{launches}"
            try:
                deployment = await launch(plan, self.run.deployment(name), self._event)
            except DeployError as error:
                for cell in left:
                    self._fail(cell, plan, name, error)
                return
            try:
                while left:
                    cell = left.pop(0)
                    if not await self._cell(cell, deployment, plan, name):
                        break
            finally:
                remains = await asyncio.shield(deployment.stop())
                for what in remains:
                    self.display.say(f"left running: {what}")

    async def _cell(self, cell: CellPlan, deployment: Deployment, plan: DeploymentPlan, name: str) -> bool:
        """Evaluate one cell; True when the deployment can be trusted with another."""
        baselines = {b: self.finished.get(b) for b in cell.baselines}
        task = self.tasks[cell.task.label]
        try:
            finished = await cells.run_cell(cell, deployment, name, task, baselines, self.run, self.display)
        except DeployError as error:
            self._fail(cell, plan, name, error)
            return False
        except asyncio.CancelledError:
            self.run.write_cell(cells.unfinished(cell, plan, name, "interrupted", "stopped by a person or a signal"))
            raise
        except Exception as error:
            self._broken(cell, plan, name, error)
            return False
        self.finished[cell.id] = finished
        self.display.say(f"{cell.id}: {in_a_line(finished.result)}")
        state = finished.result.verdict.state if finished.result.verdict else None
        return state in HEALTHY

    def _fail(self, cell: CellPlan, plan: DeploymentPlan, name: str, error: DeployError) -> None:
        self.run.write_cell(cells.failed(cell, plan, name, error))
        self.display.say(f"{cell.id}: failed, {error}")

    def _broken(self, cell: CellPlan, plan: DeploymentPlan, name: str, error: Exception) -> None:
        """A fault of the rig itself: the cell is invalid, the other cells run."""
        text = f"The rig itself failed: {type(error).__name__}: {error}"
        log = self.run.cell(cell.id) / "error.txt"
        write_text(log, "".join(traceback.format_exception(error)))
        result = cells.unfinished(cell, plan, name, "invalid", text)
        verdict = Verdict("invalid", (Reason("rig", text, str(log.relative_to(self.run.path))),))
        self.run.write_cell(replace(result, verdict=verdict))
        self.display.say(f"{cell.id}: invalid, {text} ({log})")

    def _event(self, event: Event) -> None:
        self.display.server(event.server, event.phase, event.text)


def in_a_line(result: CellResult) -> str:
    """What a finished cell came to: `pass, accuracy 0.980`."""
    state = result.verdict.state if result.verdict else "baseline"
    value = result.accuracy.value if result.accuracy else None
    return f"{state}, accuracy {'-' if value is None else f'{value:.3f}'}"
