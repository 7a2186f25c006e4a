"""The self-test on running engines: launch a few times, plant case after case, keep what came of each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evals.errors import EvalError
from evals.tasks import Task
from rig import cell as cells
from rig import run as runs
from rig.asking import load_task
from rig.connectors import children
from rig.deploy import Deployment
from rig.errors import DataError, DeployError, UsageError
from rig.faults.control import ENVIRONMENT, Control, Hit, append_hit, read_hits
from rig.planned import CellPlan, DeploymentPlan, SweepPlan
from rig.progress import Display
from rig.records import CellResult
from rig.selftest.cases import CONTROL, Case, Policy, baseline_of, cases, cell_of, left_out
from rig.selftest.rows import Row, row_of
from rig.settling import settled_alone, tests_planned
from rig.store import RunFolder

CONTROL_FILE = "faults.json"
HITS = "hits.json"
POLICY_LABEL = "kv_transfer_config.kv_load_failure_policy"


@dataclass(frozen=True)
class Templates:
    """The cells of the sweep file that the self-test starts from."""

    baseline: CellPlan
    by_policy: Mapping[Policy, CellPlan]


def templates(plan: SweepPlan) -> Templates:
    """Raises UsageError for a sweep that is not made for a self-test."""
    baselines = [cell for cell in plan.cells if cell.kind == "monolithic"]
    found: dict[Policy, CellPlan] = {}
    for cell in plan.cells:
        policy = cell.labels.get(POLICY_LABEL)
        if cell.kind == "pd" and policy in ("fail", "recompute"):
            found[policy] = cell
    if len(baselines) != 1 or len(found) != 2:
        raise UsageError(
            f"{plan.config_file}: a self-test needs one monolithic baseline and P/D cells under the failure policies "
            "fail and recompute (see configs/selftest.yaml)"
        )
    return Templates(baselines[0], found)


class SelfTest:
    """A self-test under way in a run folder."""

    def __init__(self, plan: SweepPlan, run: RunFolder, data: Path | None, display: Display, short: bool) -> None:
        self.run = run
        self.display = display
        self.control_file = run.path.resolve() / CONTROL_FILE
        self._templates = templates(plan)
        kv = next(d.kv_transfer for d in plan.deployments if d.id == self._templates.by_policy["fail"].deployment)
        connectors = (str(kv.get("kv_connector")), *children(kv))
        self.cases = cases(short, connectors)
        self.left_out = left_out(connectors)
        self._launches = runs.launches(plan, run, display)
        self._deployments = {d.id: self._with_control(d) for d in plan.deployments}
        self.baseline = baseline_of(self._templates.baseline, short)
        self._tasks = self._load(data)
        self._finished: dict[str, cells.Finished] = {}

    def _with_control(self, deployment: DeploymentPlan) -> DeploymentPlan:
        servers = tuple(replace(s, env={**s.env, ENVIRONMENT: str(self.control_file)}) for s in deployment.servers)
        return replace(deployment, servers=servers)

    def _load(self, data: Path | None) -> dict[int | None, Task]:
        tasks: dict[int | None, Task] = {}
        try:
            for cell in [self.baseline, *(self._cell(case) for case in self.cases)]:
                if cell.task.limit not in tasks:
                    tasks[cell.task.limit] = load_task(cell.task, data)
        except EvalError as error:
            raise DataError(f"the self-test's task: {error}") from None
        return tasks

    def _cell(self, case: Case) -> CellPlan:
        template = self._templates.by_policy[case.policy]
        control = None
        if case.name != CONTROL and case.policy == "fail":
            control = self._cell(next(c for c in self.cases if c.name == CONTROL))
        return cell_of(case, template, self.baseline, control)

    async def all(self) -> list[Row]:
        """Run every case that has no result yet; returns the rows of all."""
        Control().write(self.control_file)
        await self._on(self._deployments[self.baseline.deployment], [(self.baseline, None)])
        if self.baseline.id not in self._finished:
            raise DataError(f"{self.run.path}: the monolithic baseline could not be asked; see its cell.json and logs")
        for policy in dict.fromkeys(case.policy for case in self.cases):
            wanted = [(self._cell(case), case) for case in self.cases if case.policy == policy]
            await self._on(self._deployments[wanted[0][0].deployment], wanted)
        return self.rows()

    async def _on(self, plan: DeploymentPlan, wanted: Sequence[tuple[CellPlan, Case | None]]) -> None:
        """Ask cells of one deployment, launched again only when it died."""
        left = [(cell, case) for cell, case in wanted if not self._is_finished(cell)]

        def lost(asked: tuple[CellPlan, Case | None], name: str, error: DeployError) -> None:
            self._launches.fail(asked[0], plan, name, error)

        await self._launches.ask(plan, left, self._ask, lost)

    async def _ask(self, asked: tuple[CellPlan, Case | None], deployment: Deployment, name: str) -> bool:
        """One case from planting to its result; False when the deployment is of no more use."""
        cell, case = asked
        (case.control if case else Control()).write(self.control_file)
        before = len(read_hits(self.control_file))
        baselines = {b: self._finished.get(b) for b in cell.baselines}
        plan = SweepPlan("", "", (), (cell,), {})
        begun = time.monotonic()
        try:
            finished = await cells.run_cell(
                cell,
                deployment,
                name,
                self._tasks[cell.task.limit],
                baselines,
                self.run,
                self.display,
                tests_planned(plan),
            )
        except DeployError as error:
            self._launches.fail(cell, deployment.plan, name, error)
            return False
        finally:
            Control().write(self.control_file)
            self._keep_hits(cell, read_hits(self.control_file)[before:])
        if case is not None:
            held_against = {name: base.result if base else None for name, base in baselines.items()}
            finished = replace(finished, result=settled_alone(finished.result, held_against))
            self.run.write_cell(finished.result)
        self._finished[cell.id] = finished
        self.display.say(f"{cell.id}: {runs.in_a_line(finished.result)}, {time.monotonic() - begun:.0f} s")
        return True

    def _keep_hits(self, cell: CellPlan, hits: Sequence[Hit]) -> None:
        path = self.run.cell(cell.id) / HITS
        path.parent.mkdir(parents=True, exist_ok=True)
        for hit in hits:
            append_hit(path, hit)

    def _is_finished(self, cell: CellPlan) -> bool:
        result = self.run.read_cell(cell.id)
        if result is None or result.status in ("failed", "interrupted") or self.run.damage(result):
            return False
        if result.verdict and result.verdict.state == "regression" and result.verdict.alarms is None:
            # An older rig did not write down where it was seen, which is what the case is about.
            return False
        self._finished[cell.id] = cells.Finished.read(result, self.run)
        return True

    def rows(self) -> list[Row]:
        """A row a case, from what is on disk."""
        base = self._finished[self.baseline.id].result
        return [row for case in self.cases if (row := self._row(case, base)) is not None]

    def _row(self, case: Case, base: CellResult) -> Row | None:
        result = self.run.read_cell(case.name)
        if result is None:
            return None
        pairs = self.run.read_pairs(case.name).get(base.cell_id, [])
        hits = read_hits(self.run.cell(case.name) / HITS)
        noise = self._finished[base.cell_id].noise or ()
        return row_of(case, result, base, pairs, self.run.read_canaries(case.name), hits, noise)
