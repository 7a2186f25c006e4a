"""The loop over a sweep: launch, evaluate each cell of the deployment, stop, go on with the next."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evals.errors import EvalError
from evals.tasks import Task
from rig import cell as cells
from rig import provenance
from rig.asking import load_task, task_info
from rig.attempts import Kept
from rig.deploy import Deployment, engine_on, machines_of, require_startable
from rig.errors import ConfigError, DataError, DeployError, EngineNotFound, PortLost
from rig.fitting import fit_to
from rig.launching import Launches
from rig.plan_lanes import needs
from rig.planned import CellPlan, DeploymentPlan, SweepPlan
from rig.progress import Display
from rig.records import CellResult, Reason, RunInfo, RunResult, Verdict
from rig.resuming import kept_of
from rig.secrets import masked, masked_yaml
from rig.settling import repetition, settled, tests_planned
from rig.store import RunFolder, write_text
from rig.stored import Shelf

HEALTHY = ("pass", "improved", None)
"""Verdicts after which a deployment is trusted with another cell; None is a baseline's."""


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
            tasks[wanted.label] = load_task(wanted, data)
        except EvalError as error:
            raise DataError(f"task {wanted.label}: {error}") from None
    return tasks


def begin(plan: SweepPlan, config: Path, parent: Path) -> RunFolder:
    """Make the run's folder and write what is known before anything starts."""
    run = RunFolder.create(parent, plan.name)
    engines = engines_of(plan)
    info = RunInfo(
        run_id=run.path.name,
        name=plan.name,
        config_file=plan.config_file,
        config_text=masked_yaml(config.read_text(encoding="utf-8")),
        resolved=resolved(plan),
        started=now(),
        ended=None,
        argv=provenance.argv(),
        versions={**provenance.versions(), **provenance.flat(engines), **provenance.routers(routers_of(plan))},
        host=provenance.host(),
        git=provenance.git(config.resolve().parent),
        notes=plan.notes,
        engines=engines,
        server_env={d.id: {s.name: masked(s.env) for s in d.servers} for d in plan.deployments if d.servers},
    )
    run.write_info(info)
    return run


def engines_of(plan: SweepPlan) -> dict[str, dict[str, Any]]:
    """What the engines of the sweep's servers are now, by their names, asked on the machines where those run; none
    where the servers run already.
    """
    by_id = {deployment.id: deployment for deployment in plan.deployments if deployment.servers}
    found = {}
    for name, engine in plan.resolved.get("engines", {}).items():
        used = [by_id[c.deployment] for c in plan.cells if c.labels.get("engine") == name and c.deployment in by_id]
        command = provenance.words(engine)
        told = {
            machine or "this machine": provenance.engine(command)
            if machine is None
            else engine_on(machine, deployment.launcher, deployment.remote, command)
            for deployment in used
            for machine in machines_of(deployment)
        }
        if told:
            found[name] = provenance.of_machines(command, told)
    return found


def launches(plan: SweepPlan, run: RunFolder, display: Display) -> Launches:
    """What starts the deployments of a sweep, in a run's folder."""
    engines = {engine["program"]: engine for engine in engines_of(plan).values()}
    return Launches(run, display, engines, beside=bool(plan.lanes))


def routers_of(plan: SweepPlan) -> dict[str, dict[str, Any]]:
    """What the sweep file says of the routers that its cells use, by their names; the rig's own needs no entry."""
    used = {cell.get("router") for cell in plan.resolved.get("cells", {}).values()}
    return {name: router for name, router in plan.resolved.get("routers", {}).items() if name in used}


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

    Raises ConfigError, with the key, for a command that is not there and a port that is taken already, and UsageError
    for a server planned for another host.
    """
    for deployment in plan.deployments:
        try:
            require_startable(deployment)
        except (EngineNotFound, PortLost) as error:
            raise ConfigError(plan.config_file, error.key, str(error)) from None


def in_series(wanted: Sequence[CellPlan]) -> list[list[CellPlan]]:
    """The cells in order, each with those that continue it."""
    series: list[list[CellPlan]] = []
    for cell in wanted:
        if cell.continues:
            series[-1].append(cell)
        else:
            series.append([cell])
    return series


class Sweep:
    """A sweep under way: what is finished, and how to go on after a fault."""

    def __init__(self, plan: SweepPlan, tasks: dict[str, Task], run: RunFolder, display: Display) -> None:
        self.plan = plan
        self.tasks = tasks
        self.run = run
        self.display = display
        self.launches = launches(plan, run, display)
        self.finished: dict[str, cells.Finished] = {}
        self.told: list[str] = []
        self.shelf = Shelf(plan.cells)
        self.tests_planned = tests_planned(plan)

    async def all(self) -> RunResult:
        """Run every cell that has no result yet; returns all results, also when cells failed."""
        try:
            await self._in_lanes(list(self._groups()))
            self._settle()
        finally:
            info = self.run.read_info()
            self.run.write_info(replace(info, ended=now(), notes=(*info.notes, *self.told)))
        return self.run.read()

    async def _in_lanes(self, groups: Sequence[tuple[DeploymentPlan, list[list[CellPlan]]]]) -> None:
        """Ask deployment after deployment, those of one lane beside those of the others."""
        ended = {deployment.id: asyncio.Event() for deployment, _ in groups}
        needed = needs(self.plan.cells)

        async def one_after_another(lane: Collection[str] | None) -> None:
            for deployment, wanted in groups:
                if lane is None or deployment.id in lane:
                    for other in needed[deployment.id] & ended.keys():
                        await ended[other].wait()
                    await self._deployment(deployment, wanted)
                    ended[deployment.id].set()

        if not self.plan.lanes:
            await one_after_another(None)
            return
        try:
            async with asyncio.TaskGroup() as lanes:
                for lane in self.plan.lanes:
                    lanes.create_task(one_after_another(lane))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _settle(self) -> None:
        """Take the verdicts again, now that all tests of the sweep are known, and write what that changed."""
        results = self.run.read().cells
        before = {result.cell_id: result for result in results}
        for result in settled(self.plan, results, self.shelf.results):
            if result != before[result.cell_id]:
                self.run.write_cell(result)
            was, now_is = (r.verdict.state if r.verdict else None for r in (before[result.cell_id], result))
            if was != now_is:
                self.display.say(f"{result.cell_id}: {now_is}, with all tests of the sweep corrected together")

    def _groups(self) -> Iterator[tuple[DeploymentPlan, list[list[CellPlan]]]]:
        """Series of cells by deployment, in the order of the plan; finished ones only serve as baselines."""
        by_id = {d.id: d for d in self.plan.deployments}
        groups: dict[str, list[CellPlan]] = {}
        for cell in self.plan.cells:
            groups.setdefault(cell.deployment, []).append(cell)
        for deployment_id, wanted in groups.items():
            left: list[list[CellPlan]] = []
            for series in in_series(wanted):
                if self._is_finished(series):
                    # A red cell may have been finished, and its repetition not.
                    left += [again for again in self._again(series) if not self._is_finished(again)]
                else:
                    left.append(series)
            if left:
                yield by_id[deployment_id], left

    def _is_finished(self, series: Sequence[CellPlan]) -> bool:
        """Whether an earlier attempt left a result of every cell; passes are asked again from the first otherwise."""
        results = [self.run.read_cell(cell.id) for cell in series]
        if any(result is None or result.status in ("interrupted", "failed") for result in results):
            return False
        for result in results:
            assert result is not None
            name = result.cell_id
            if problem := self.run.damage(result):
                self.display.say(f"{name}: asked again, {problem}")
                return False
            if was := self._otherwise_scored(series[0], result):
                self.told.append(f"{name}: judged anew, {was}")
                self.display.say(self.told[-1])
                return False
            self.finished[name] = cells.Finished.read(result, self.run)
            self.display.say(f"{name}: finished before this run was resumed")
        return True

    def _otherwise_scored(self, cell: CellPlan, result: CellResult) -> str | None:
        """What a finished cell was scored by, if not as it would be now: it cannot be held against others then."""
        if result.task is None:
            return None
        now_is = task_info(self.tasks[cell.task.label], cell.task.score_reasoning)
        if now_is.scorer_sha256 == result.task.scorer_sha256:
            return None
        value = result.accuracy.value if result.accuracy else None
        gave = "" if value is None else f", which gave {value:.3f}"
        return f"it was scored by another version of {result.task.scorer}{gave}"

    async def _deployment(self, plan: DeploymentPlan, wanted: Sequence[list[CellPlan]]) -> None:
        """Evaluate series of cells on one deployment; a fresh one where a series needs it, and after a fault or
        any verdict but pass.
        """
        left = list(wanted)

        async def ask(series: list[CellPlan], deployment: Deployment, name: str) -> bool:
            trusted = await self._series(series, deployment, plan, name)
            trusted = trusted and not (left and left[0][0].fresh)
            left[:0] = self._again(series)
            return trusted

        def lost(series: list[CellPlan], name: str, error: DeployError) -> None:
            for cell in series:
                self.launches.fail(cell, plan, name, error)

        await self.launches.ask(plan, left, ask, lost)

    async def _series(self, series: list[CellPlan], deployment: Deployment, plan: DeploymentPlan, name: str) -> bool:
        """Evaluate cells one after another, whatever their verdicts; True when the deployment can be trusted further.

        When one cannot be asked to its end, those after it are not what they are meant to be, and end as it does.
        """
        trusted = True
        for i, cell in enumerate(series):
            try:
                trusted &= await self._cell(cell, deployment, plan, name)
            except DeployError as error:
                for lost in series[i:]:
                    self.launches.fail(lost, plan, name, error)
                return False
            except asyncio.CancelledError:
                why = "stopped by a person or a signal"
                self.run.write_cell(cells.unfinished(cell, plan, name, "interrupted", why))
                raise
            except Exception as error:
                for lost in series[i:]:
                    self._broken(lost, plan, name, error)
                return False
        return trusted

    def _again(self, series: Sequence[CellPlan]) -> list[list[CellPlan]]:
        """Red cells once more: they come next, and on fresh servers, as no red deployment is trusted."""
        red = [cell for cell in series if cell.rerun and self._state(cell.id) == "regression"]
        for cell in red:
            self.display.say(f"{cell.id}: red, so it is asked again on fresh servers")
        return [[repetition(cell)] for cell in red]

    def _state(self, cell_id: str) -> str | None:
        finished = self.finished.get(cell_id)
        return finished.result.verdict.state if finished and finished.result.verdict else None

    async def _cell(self, cell: CellPlan, deployment: Deployment, plan: DeploymentPlan, name: str) -> bool:
        """Evaluate one cell; True when its verdict leaves the deployment trusted."""
        baselines = {b: self.finished.get(b) for b in cell.baselines}
        task = await fit_to(self.tasks[cell.task.label], deployment)
        asked = task_info(task, cell.task.score_reasoning)
        baselines |= self.shelf.for_cell(cell, asked)
        kept = self._kept(cell, plan, task)
        finished = await cells.run_cell(
            cell, deployment, name, task, baselines, self.run, self.display, self.tests_planned, kept
        )
        if (why := self.shelf.nearest(cell, asked)) is not None:
            finished = self._without_stored(finished, why)
        self.finished[cell.id] = finished
        self.display.say(f"{cell.id}: {in_a_line(finished.result)}")
        return self._state(cell.id) in HEALTHY

    def _without_stored(self, finished: cells.Finished, why: Reason) -> cells.Finished:
        """Write down why no stored baseline fits that was asked for: among the reasons where there is no other."""
        result, verdict = finished.result, finished.result.verdict
        if verdict is not None and verdict.state == "no_baseline":
            result = replace(result, verdict=replace(verdict, reasons=(*verdict.reasons, why)))
        else:
            result = replace(result, missing_baseline=why.text)
            self.told.append(f"{result.cell_id}: held against no stored baseline. {why.text}")
            self.display.say(self.told[-1])
        self.run.write_cell(result)
        return replace(finished, result=result)

    def _kept(self, cell: CellPlan, plan: DeploymentPlan, task: Task) -> Kept | None:
        """What an earlier attempt at the cell left that counts; says so, or why nothing does."""
        kept = kept_of(self.run, cell, plan, task, self.launches.engines_of(plan))
        if kept is None:
            return None
        if isinstance(kept, Kept):
            twice = f"; lines that were there twice and count once: {kept.repeated}" if kept.repeated else ""
            told = f"gone on with, {len(kept.records)} answers are kept, {kept.again} without proof asked again{twice}"
        else:
            told = f"starts over, {kept}"
        self.told.append(f"{cell.id}: {told}")
        self.display.say(self.told[-1])
        return kept if isinstance(kept, Kept) else None

    def _broken(self, cell: CellPlan, plan: DeploymentPlan, name: str, error: Exception) -> None:
        """A fault of the rig itself, or a task that cannot be asked: the cell is invalid, the other cells run."""
        text = f"The rig itself failed: {type(error).__name__}: {error}"
        if isinstance(error, EvalError):
            text = f"It cannot be asked: {error}"
        log = self.run.cell(cell.id) / "error.txt"
        write_text(log, "".join(traceback.format_exception(error)))
        result = cells.unfinished(cell, plan, name, "invalid", text)
        verdict = Verdict("invalid", (Reason("rig", text, str(log.relative_to(self.run.path))),))
        self.run.write_cell(replace(result, verdict=verdict))
        self.display.say(f"{cell.id}: invalid, {text} ({log})")


def in_a_line(result: CellResult) -> str:
    """What a finished cell came to: `pass, accuracy 0.980`."""
    state = result.verdict.state if result.verdict else "baseline"
    value = result.accuracy.value if result.accuracy else None
    return f"{state}, accuracy {'-' if value is None else f'{value:.3f}'}"
