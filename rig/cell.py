"""One cell: warm up, read counters, ask, read counters again, judge, compare, decide."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evals.client import Request, Target
from evals.records import ErrorLeg, RequestRecord
from evals.tasks import Task
from rig import connectors, evidence, evidence_requests, metrics, verdict
from rig.asking import Clock, ask, manner_of, outcome_of, task_info, warmup_requests
from rig.comparison import compare
from rig.deploy import Deployment
from rig.deploy.record import masked_argv
from rig.early import EarlyStop
from rig.errors import DeployError, Hung
from rig.judge import judge, with_reasoning
from rig.judge_canaries import count_canaries, judge_canaries
from rig.observing import Observed, end_of, start_of
from rig.pairs import Side, make_pairs, repeats_of, require_same_prompts
from rig.planned import CellPlan, DeploymentPlan
from rig.progress import Display
from rig.ratios import ratios, slow
from rig.records import CellResult, Comparison, Evidence, Judged, JudgedCanary, Leg, Outcome, Pair, Status
from rig.rounds import Round, rounds_of
from rig.store import RunFolder
from rig.verdict_tests import share_of_each

ITSELF = "itself"
"""The name under which a baseline is held against itself."""


@dataclass(frozen=True)
class Finished:
    """A cell's result, with what others need to be paired with it.

    `records` and `judged` are of its questions, every repeat; `noise` its pairs with itself, where it has a floor.
    """

    result: CellResult
    judged: tuple[Judged, ...]
    records: tuple[RequestRecord, ...]
    noise: tuple[Pair, ...] | None = None

    @classmethod
    def read(cls, result: CellResult, run: RunFolder) -> Finished:
        """A cell that an earlier attempt finished, from disk."""
        name = result.cell_id
        reasoning = result.task is not None and result.task.score_reasoning
        records = [with_reasoning(r, reasoning) for r in run.read_requests(name) if r.kind == "question"]
        noise = run.read_pairs(name).get(ITSELF)
        return cls(result, tuple(run.read_judged(name)), tuple(records), None if noise is None else tuple(noise))

    @property
    def side(self) -> Side:
        return Side(self.judged, self.records)

    def first(self) -> list[RequestRecord]:
        """Its questions as they were asked the first time: speed is that of one round."""
        return [r for r in self.records if r.repeat == 0]

    def outcomes(self) -> dict[str, Outcome]:
        return {j.sample_id: j.outcome for j in self.judged if j.repeat == 0}


@dataclass(frozen=True)
class Gathered:
    """What an evaluation brought: `records` are questions and canaries of all rounds, reasoning applied."""

    warm: list[RequestRecord]
    records: list[RequestRecord]
    rounds: list[Round]
    observed: Observed
    early: EarlyStop | None = None


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
    tests_planned: int = 1,
) -> Finished:
    """Evaluate a cell on a deployment that is up, and judge it. Its records and result are on disk afterwards.

    `tests_planned` is how many tests the whole sweep may make: until they are corrected together, each gets its
    share of alpha. Raises DeployError when the deployment died or hung meanwhile; the records up to then are on disk.
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
    watch = _Watch(deployment, plan.limits.hang_s)
    outcome = outcome_of(task, cell.task.score_reasoning)

    async def put(requests: Iterable[Request], seen: Callable[[RequestRecord], None]) -> list[RequestRecord]:
        return await ask(target, requests, manner, clock, path, watch=watch.over, on_record=seen)

    if cell.task.warmup:
        display.say(f"{cell.id}: warming up with {cell.task.warmup} requests")
    warm = await put(warmup_requests(task, cell.task.warmup), watch.seen)
    start = await start_of(deployment)

    rounds = rounds_of(cell, task)
    early = _early(cell, rounds[0], baselines, outcome, tests_planned)
    display.evaluation(cell.id, sum(r.kind == "question" for asked in rounds for r in asked.requests))

    def seen(record: RequestRecord) -> None:
        watch.seen(record)
        if early is not None:
            early.seen(record)
        if record.kind == "question":
            display.answered(outcome(record))

    raw: list[RequestRecord] = []
    for asked in rounds:
        raw += await put(asked.requests if early is None else early.requests(), seen)
    records = [with_reasoning(record, cell.task.score_reasoning) for record in raw]
    observed = await end_of(deployment, start)
    await deployment.flush_legs()
    gathered = Gathered(warm, records, rounds, observed, early)
    return conclude(cell, plan, deployment_name, task, clock, gathered, baselines, run, tests_planned)


def _early(
    cell: CellPlan,
    first: Round,
    baselines: Mapping[str, Finished | None],
    outcome: Callable[[RequestRecord], Outcome],
    tests_planned: int,
) -> EarlyStop | None:
    """What ends the cell early, where it may and there is something to be decided against."""
    usable = {name: base.outcomes() for name, base in baselines.items() if base is not None}
    if not cell.early_stop or not usable:
        return None
    canaries = {c.sample.sample_id: c for c in first.canaries}
    return EarlyStop(first.requests, usable, cell.gates, cell.gates.alpha / tests_planned, outcome, canaries)


def conclude(
    cell: CellPlan,
    plan: DeploymentPlan,
    deployment_name: str,
    task: Task,
    clock: Clock,
    gathered: Gathered,
    baselines: Mapping[str, Finished | None],
    run: RunFolder,
    tests_planned: int,
) -> Finished:
    """From what was gathered to a result on disk."""
    records = gathered.records
    ids = {r.request_id for r in records}
    every_leg = run.read_legs(deployment_name)
    legs = None if every_leg is None else [leg for leg in every_leg if leg.request_id in ids]
    targets = {s.sample_id: s.target_text for s in task.samples}
    taints = evidence_requests.taints(every_leg, gathered.observed.logs.taints)
    judged = tuple(judge(records, targets, task.scorers, task.scorer, taints))
    codes = {(c.sample.sample_id, r.repeat): c for r in gathered.rounds for c in r.canaries}
    canaries = judge_canaries(records, codes, taints)
    proof = _evidence(plan, gathered.observed, records, legs, judged)
    proof = replace(proof, canaries=count_canaries(canaries))
    first, first_judged = [r for r in records if r.repeat == 0], [j for j in judged if j.repeat == 0]
    questions = tuple(r for r in records if r.kind == "question")
    first_ids = {r.request_id for r in first if r.kind == "question"}
    early = gathered.early
    result = CellResult(
        cell_id=cell.id,
        labels=cell.labels,
        kind=cell.kind,
        deployment=deployment_name,
        status="ok" if proof.pd_exercised is not False else "invalid",
        task=task_info(task, cell.task.score_reasoning, len(first_ids)),
        commands=commands(plan),
        gates=cell.gates,
        t0_unix=clock.t0_unix,
        warmup_requests=len(gathered.warm),
        retried=metrics.retried(first),
        accuracy=metrics.accuracy(first_judged, task.scorer, task.scorers),
        counts=metrics.counts(first_judged, first),
        latency_ms=metrics.latency_ms(first),
        legs_ms=metrics.legs_ms(leg for leg in legs or () if leg.request_id in first_ids),
        throughput=metrics.throughput(first),
        evidence=proof,
        repeats=repeats_of(judged),
        sequential=None if early is None else early.result(len(first_ids)),
        rerun_of=cell.rerun_of,
    )
    block_size = next((r.block_size for r in gathered.observed.after if r.block_size is not None), None)
    finished = Finished(result, judged, questions, _noise(cell, judged, questions, block_size))
    side = Side(judged, questions, legs)
    comparisons = []
    for name, base in baselines.items():
        if base is not None:
            require_same_prompts(side, base.side, name)
            pairs = make_pairs(side, base.side, block_size, in_flight=[*gathered.warm, *records])
            run.write_pairs(cell.id, name, pairs)
            comparisons.append(_comparison(name, cell, pairs, finished, base, canaries, early, block_size))
    floor = None
    if finished.noise is not None:
        run.write_pairs(cell.id, ITSELF, finished.noise)
        floor = compare(ITSELF, finished.noise, cell.gates, noise=finished.noise)
    result = replace(result, comparisons=tuple(comparisons), noise_floor=floor)
    held_against = {name: base.result if base else None for name, base in baselines.items()}
    tests = share_of_each(verdict.tests(result, held_against), tests_planned)
    result = replace(result, tests=tests)
    result = replace(result, verdict=verdict.decide(result, held_against, cell.xfail))
    run.write_judged(cell.id, judged)
    run.write_canaries(cell.id, canaries)
    run.write_cell(result)
    return replace(finished, result=result)


def _comparison(
    name: str,
    cell: CellPlan,
    pairs: list[Pair],
    mine: Finished,
    base: Finished,
    canaries: Sequence[JudgedCanary],
    early: EarlyStop | None,
    block_size: int | None,
) -> Comparison:
    gated = base.result.kind == mine.result.kind
    return compare(
        name,
        pairs,
        cell.gates,
        noise=base.noise,
        canaries=canaries,
        decider=None if early is None else early.deciders[name],
        ratios=ratios(mine.first(), base.first(), cell.gates, gated, cell.seed),
        slow=slow(mine.first(), base.first(), cell.gates) if gated else (),
        block_size=block_size,
    )


def _noise(
    cell: CellPlan, judged: Sequence[Judged], records: Sequence[RequestRecord], block_size: int | None
) -> tuple[Pair, ...] | None:
    """The second round of a baseline held against the first."""
    if not cell.noise_floor:
        return None

    def side(repeat: int) -> Side:
        return Side(
            [replace(j, repeat=0) for j in judged if j.repeat == repeat],
            [replace(r, repeat=0) for r in records if r.repeat == repeat],
        )

    return tuple(make_pairs(side(1), side(0), block_size))


def _evidence(
    plan: DeploymentPlan,
    observed: Observed,
    records: list[RequestRecord],
    legs: list[Leg] | None,
    judged: Sequence[Judged],
) -> Evidence:
    proof = _counted(plan, observed, records, legs)
    beside = evidence_requests.beside_failed(judged, records)
    return replace(proof, findings=(*proof.findings, *observed.logs.findings, *beside))


def _counted(
    plan: DeploymentPlan, observed: Observed, records: list[RequestRecord], legs: list[Leg] | None
) -> Evidence:
    before, after = observed.before, observed.after
    if plan.kind == "monolithic":
        return evidence.monolithic(before, after)
    tp = {role: max((s.tp for s in plan.servers if s.role == role), default=1) for role in ("prefill", "decode")}
    inside, keeps = connectors.children(plan.kv_transfer), connectors.decode_keeps(plan.kv_transfer)
    recomputes = plan.kv_transfer.get("kv_load_failure_policy") == "recompute"
    shape = evidence.Shape(plan.connector, tp["prefill"], tp["decode"], inside, keeps, recomputes)
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
