"""One cell: warm up, read counters, ask, read counters again; then what came of it is concluded."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from evals.client import Request, Target
from evals.records import ErrorLeg, RequestRecord
from evals.tasks import Task
from rig import verdict
from rig.asking import Clock, ask, manner_of, outcome_of, warmup_requests
from rig.attempts import Attempt, Kept, Part, write_attempt
from rig.concluding import Finished as Finished
from rig.concluding import Gathered, commands, conclude
from rig.deploy import Deployment
from rig.early import EarlyStop
from rig.ending import end
from rig.errors import DeployError, Hung
from rig.judge import with_reasoning
from rig.observing import Tally, end_of, follow, part_of, readings_of, start_of
from rig.planned import CellPlan, DeploymentPlan
from rig.progress import Display
from rig.records import CellResult, Outcome, Resumed, Status
from rig.rounds import Round, rounds_of
from rig.series import Reading
from rig.store import RunFolder
from rig.verdict_words import classes, questions


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
    kept: Kept | None = None,
) -> Finished:
    """Evaluate a cell on a deployment that is up, and judge it. Its records and result are on disk afterwards.

    What an earlier attempt has `kept` is not asked again: its records count, on the clock that they were taken by.
    `tests_planned` is how many tests the whole sweep may make: until they are corrected together, each gets its
    share of alpha. Raises DeployError when the deployment died or hung meanwhile; the records up to then are on disk.
    """
    plan = deployment.plan
    clock = Clock.start() if kept is None else Clock.since(kept.t0_unix)
    leg: ErrorLeg = "decode" if plan.proxy is None else "proxy" if plan.proxy.kind == "pdrig" else "unknown"
    target = Target(
        base_url=deployment.url,
        model=deployment.model,
        headers=deployment.headers,
        endpoint=task.endpoint,
        default_leg=leg,
    )
    manner = manner_of(cell.task)
    path = run.new_requests(cell.id, kept.records if kept else ())
    parts = kept.parts if kept else ()
    write_attempt(run, cell.id, Attempt(clock.t0_unix, parts))
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
    raw: list[RequestRecord] = []
    between: tuple[Reading, ...] | None = None
    begun = 0

    def seen(record: RequestRecord) -> None:
        raw.append(record)
        if early is not None:
            early.seen(record)
        if record.kind == "question":
            display.answered(cell.id, outcome(record))

    def arrived(record: RequestRecord) -> None:
        watch.seen(record)
        seen(record)

    for record in kept.records if kept else ():
        seen(record)
    earlier = {(r.kind, r.sample_id, r.repeat) for r in raw}
    since_s, first_new = time.monotonic() - clock.t0, len(raw)

    def left(requests: Iterable[Request]) -> Iterator[Request]:
        nonlocal begun
        for request in requests:
            if (request.kind, request.sample_id, request.repeat) not in earlier:
                begun += 1
                yield request

    def tally() -> Tally:
        return Tally(tuple(r.request_id for r in raw[first_new:]), begun)

    def keep(part: Part) -> None:
        write_attempt(run, cell.id, Attempt(clock.t0_unix, (*parts, part)))

    async with _beside(follow(deployment, deployment_name, start, tally, keep)):
        try:
            for asked in rounds:
                await put(left(asked.requests if early is None else early.requests()), arrived)
                if asked is rounds[0] and len(rounds) > 1:
                    between = await readings_of(deployment)
        except DeployError as error:
            error.add(_so_far(raw, rounds))
            raise
    display.evaluated(cell.id)
    records = [with_reasoning(record, cell.task.score_reasoning) for record in raw]
    observed = await end_of(deployment, start)
    await deployment.flush_legs()
    # So that nothing is asked again should all of it have to be judged once more.
    if (whole := part_of(deployment, deployment_name, start, observed.after, tally())) is not None:
        keep(whole)
    launches = tuple(dict.fromkeys(part.deployment for part in parts))
    resumed = Resumed(len(kept.records), kept.again, launches, since_s) if kept else None
    gathered = Gathered(warm, records, rounds, observed, early, kept, resumed, between)
    return conclude(cell, plan, deployment_name, task, clock, gathered, baselines, run, tests_planned)


def _so_far(records: Iterable[RequestRecord], rounds: Iterable[Round]) -> str:
    """How far a cell had come when its deployment was lost."""
    planned = sum(r.kind == "question" for asked in rounds for r in asked.requests)
    ends = Counter(
        "answered" if r.error is None else f"{r.error.leg} {r.error.error_class}"
        for r in records
        if r.kind == "question"
    )
    answered = ends.pop("answered", 0)
    failed = f", {ends.total()} had failed ({classes(ends)})" if ends else ""
    return f"by then {answered} of {questions(planned)} had an answer{failed}"


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs `work` for as long as the block; whatever ended it is raised then."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await end(task)


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
                fault = await self._deployment.lost()
            if fault is None:
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
                async with asyncio.timeout(self._hang_s):
                    await self._beat.wait()
            except TimeoutError:
                return Hung(f"no request finished for {self._hang_s:.0f} s (limits.hang_s)")
