"""One cell: warm up, read counters, ask, read counters again, judge, compare, decide."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from evals.client import Target
from evals.load import requests_of
from evals.records import ErrorLeg, RequestRecord
from evals.tasks import Task
from rig import evidence, metrics, verdict
from rig.asking import Clock, ask, manner_of, outcome_of, task_info, warmup_requests
from rig.counters import Source, read_settled
from rig.deploy import Deployment
from rig.deploy.record import masked_argv
from rig.errors import DeployError, Hung
from rig.judge import judge, with_reasoning
from rig.planned import CellPlan, DeploymentPlan
from rig.progress import Display
from rig.records import CellResult, Evidence, Judged, Leg, Status
from rig.series import Reading
from rig.store import RunFolder


@dataclass(frozen=True)
class Finished:
    """A cell's result, with what others need to be paired with it: judged records, and texts by sample."""

    result: CellResult
    judged: tuple[Judged, ...]
    texts: Mapping[str, str]


def texts_of(records: Iterable[RequestRecord]) -> dict[str, str]:
    """The answers' texts by sample, of questions that were answered."""
    return {r.sample_id: r.text for r in records if r.kind == "question" and r.error is None and r.text is not None}


def commands(plan: DeploymentPlan) -> dict[str, list[str]]:
    """The command of each process, by name; secrets masked."""
    lines = {server.name: masked_argv(server.argv) for server in plan.servers}
    if plan.proxy:
        lines["proxy"] = list(plan.proxy.argv)
    return lines


def unfinished(cell: CellPlan, plan: DeploymentPlan, deployment: str, status: Status, why: str) -> CellResult:
    """The result of a cell that could not be evaluated to its end."""
    return CellResult(
        cell_id=cell.id,
        labels=cell.labels,
        kind=cell.kind,
        deployment=deployment,
        status=status,
        commands=commands(plan),
        gates=cell.gates,
        failure=why,
    )


def failed(cell: CellPlan, plan: DeploymentPlan, deployment: str, error: DeployError) -> CellResult:
    """The result of a cell whose deployment did not come up, or died."""
    result = unfinished(cell, plan, deployment, "failed", str(error))
    return replace(result, verdict=verdict.failed(error, cell.xfail))


async def run_cell(
    cell: CellPlan,
    deployment: Deployment,
    deployment_name: str,
    task: Task,
    baselines: Mapping[str, Finished | None],
    run: RunFolder,
    display: Display,
) -> Finished:
    """Evaluate a cell on a deployment that is up, and judge it. Its records and result are on disk afterwards.

    Raises DeployError when the deployment died or hung meanwhile; the records up to then are on disk.
    """
    plan = deployment.plan
    clock = Clock.start()
    leg: ErrorLeg = "proxy" if plan.proxy else "decode"
    target = Target(
        base_url=deployment.url,
        model=deployment.model,
        headers=deployment.headers,
        endpoint=task.endpoint,
        default_leg=leg,
    )
    manner = manner_of(cell.task)
    path = run.new_requests(cell.id)
    sources = [Source(s.name, s.role, s.metrics_url) for s in deployment.servers]

    if cell.task.warmup:
        display.say(f"{cell.id}: warming up with {cell.task.warmup} requests")
    watch = _Watch(deployment, plan.limits.hang_s)
    warm = await ask(
        target,
        warmup_requests(task, cell.task.warmup),
        manner,
        clock,
        path,
        watch=watch.over,
        on_record=watch.seen,
    )
    before = await read_settled(sources)

    outcome = outcome_of(task, cell.task.score_reasoning)
    display.evaluation(cell.id, len(task.samples))

    def seen(record: RequestRecord) -> None:
        watch.seen(record)
        display.answered(outcome(record))

    questions = requests_of(task, pass_=cell.task.pass_)
    raw = await ask(target, questions, manner, clock, path, watch=watch.over, on_record=seen)
    records = [with_reasoning(record, cell.task.score_reasoning) for record in raw]
    after = await read_settled(sources)
    await deployment.flush_legs()
    return conclude(cell, plan, deployment_name, task, clock, warm, records, before, after, baselines, run)


def conclude(
    cell: CellPlan,
    plan: DeploymentPlan,
    deployment_name: str,
    task: Task,
    clock: Clock,
    warm: list[RequestRecord],
    records: list[RequestRecord],
    before: tuple[Reading, ...],
    after: tuple[Reading, ...],
    baselines: Mapping[str, Finished | None],
    run: RunFolder,
) -> Finished:
    """From what was gathered to a result on disk."""
    ids = {r.request_id for r in records}
    every_leg = run.read_legs(deployment_name)
    legs = None if every_leg is None else [leg for leg in every_leg if leg.request_id in ids]
    targets = {s.sample_id: s.target_text for s in task.samples}
    judged = tuple(judge(records, targets, task.scorers, task.scorer))
    texts = texts_of(records)
    proof = _evidence(plan, before, after, records, legs)
    result = CellResult(
        cell_id=cell.id,
        labels=cell.labels,
        kind=cell.kind,
        deployment=deployment_name,
        status="ok" if proof.pd_exercised is not False else "invalid",
        task=task_info(task, cell.task.score_reasoning),
        commands=commands(plan),
        gates=cell.gates,
        t0_unix=clock.t0_unix,
        warmup_requests=len(warm),
        retried=metrics.retried(records),
        accuracy=metrics.accuracy(judged, task.scorer, task.scorers),
        counts=metrics.counts(judged, records),
        latency_ms=metrics.latency_ms(records),
        legs_ms=metrics.legs_ms(legs or ()),
        throughput=metrics.throughput(records),
        evidence=proof,
    )
    comparisons = []
    for name, baseline in baselines.items():
        if baseline is not None:
            comparisons.append(verdict.compare(name, judged, baseline.judged, texts, baseline.texts, cell.gates))
    result = replace(result, comparisons=tuple(comparisons))
    held_against = {name: base.result if base else None for name, base in baselines.items()}
    decided = verdict.decide(result, held_against, cell.xfail)
    result = replace(result, verdict=decided)
    run.write_judged(cell.id, judged)
    run.write_cell(result)
    return Finished(result, judged, texts)


def _evidence(
    plan: DeploymentPlan,
    before: tuple[Reading, ...],
    after: tuple[Reading, ...],
    records: list[RequestRecord],
    legs: list[Leg] | None,
) -> Evidence:
    if plan.kind == "monolithic":
        return evidence.monolithic(before, after)
    tp = {role: max((s.tp for s in plan.servers if s.role == role), default=1) for role in ("prefill", "decode")}
    shape = evidence.Shape(plan.connector, tp["prefill"], tp["decode"])
    return evidence.disaggregated(shape, before, after, records, legs)


class _Watch:
    """Ends a load early when the deployment dies, or when nothing finishes for too long."""

    def __init__(self, deployment: Deployment, hang_s: float) -> None:
        self._deployment = deployment
        self._hang_s = hang_s
        self._beat = asyncio.Event()

    def seen(self, record: RequestRecord) -> None:
        self._beat.set()

    async def over(self, load: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
        """Run the load to its end; raises DeployError when the deployment ended it."""
        work = asyncio.create_task(load)
        ends = [asyncio.create_task(self._deployment.wait_failed()), asyncio.create_task(self._hung())]
        try:
            await asyncio.wait({work, *ends}, return_when=asyncio.FIRST_COMPLETED)
            fault = next((task.result() for task in ends if task.done()), None)
            if fault is None:
                await work
                return
            stop.set()
            await work
            raise fault
        finally:
            for task in (work, *ends):
                task.cancel()
            await asyncio.gather(work, *ends, return_exceptions=True)

    async def _hung(self) -> DeployError:
        while True:
            self._beat.clear()
            try:
                await asyncio.wait_for(self._beat.wait(), self._hang_s)
            except TimeoutError:
                return Hung(f"no request finished for {self._hang_s:.0f} s (limits.hang_s)")
