"""Asking a task of an address: warm-up, load, records on disk, running score. Used by cells and by `pdrig eval`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.client import Request, Target, Timeouts
from evals.load import ClosedLoop, ConstantRate, Poisson, Ramp, Schedule, run_load
from evals.records import RequestRecord
from evals.scorers import get_scorer, score
from evals.sink import JsonlWriter
from evals.tasks import Task, build_task
from rig.judge import with_reasoning
from rig.planned import TaskPlan
from rig.records import Outcome, TaskInfo
from rig.task_file import read_task_file

Load = Coroutine[Any, Any, None]


@dataclass(frozen=True)
class Clock:
    """A cell's own time: seconds from `t0` of the monotonic clock, which was `t0_unix` on the wall clock."""

    t0: float
    t0_unix: float

    @classmethod
    def start(cls) -> Clock:
        return cls(time.monotonic(), time.time())

    @classmethod
    def since(cls, t0_unix: float) -> Clock:
        """A clock that has run since that moment, as told by the wall clock: one that was kept by a process before."""
        return cls(time.monotonic() - max(0.0, time.time() - t0_unix), t0_unix)


@dataclass(frozen=True)
class Manner:
    """How a task is asked."""

    schedule: Schedule
    stream: bool
    timeouts: Timeouts
    retries: int


def manner_of(plan: TaskPlan) -> Manner:
    """How the plan says that a task is asked."""
    return Manner(schedule_of(plan), plan.stream, Timeouts(**plan.timeouts), plan.retries)


def schedule_of(plan: TaskPlan) -> Schedule:
    """When requests start, for the load generator."""
    wanted = plan.schedule
    if wanted is None:
        assert plan.concurrency is not None
        return ClosedLoop(plan.concurrency)
    if wanted.kind == "rate":
        return ConstantRate(wanted.rate)
    if wanted.kind == "poisson":
        return Poisson(wanted.rate, wanted.seed)
    assert wanted.last is not None and wanted.seconds is not None
    return Ramp(wanted.rate, wanted.last, wanted.seconds)


def load_task(plan: TaskPlan, data: Path | None) -> Task:
    """The planned task with its questions; `data` is the folder of the data files. Raises EvalError, ConfigError."""
    return build_task(
        plan.name,
        limit=plan.limit,
        shots=plan.shots,
        max_tokens=plan.max_tokens,
        data=data,
        params=plan.params,
        endpoint=plan.endpoint,
        divergence=plan.divergence,
        options=plan.options,
        stated=read_task_file(Path(plan.file)).task if plan.file else None,
    )


def task_info(task: Task, score_reasoning: bool, asked: int | None = None) -> TaskInfo:
    """What identifies the task in a result; `asked` where fewer questions than it has were asked."""
    scorer = get_scorer(task.scorer)
    return TaskInfo(
        name=task.name,
        version=task.version,
        prompt_sha256=task.prompt_sha256,
        scorer=scorer.name,
        scorer_sha256=scorer.sha256,
        n=len(task.samples) if asked is None else asked,
        params=dict(task.params),
        endpoint=task.endpoint,
        score_reasoning=score_reasoning,
    )


def warmup_requests(task: Task, count: int) -> Iterator[Request]:
    """The task's first prompts behind a line of their own, so that no prefix cache profits from them later."""
    for i in range(count if task.samples else 0):
        prompt = f"Warm-up {i}.\n\n{task.samples[i % len(task.samples)].prompt}"
        yield Request(f"warmup-{i}", prompt, task.params, "warmup")


def outcome_of(task: Task, score_reasoning: bool) -> Callable[[RequestRecord], Outcome]:
    """A function that scores a record by the task's deciding scorer, for the running display."""
    scorer = get_scorer(task.scorer)
    targets = {s.sample_id: scorer.target(s.target_text) for s in task.samples}

    def outcome(raw: RequestRecord) -> Outcome:
        record = with_reasoning(raw, score_reasoning)
        if record.error is not None:
            return "error"
        return score(scorer, record.text or "", record.finish_reason, targets[record.sample_id])[0]

    return outcome


async def ask(
    target: Target,
    requests: Iterable[Request],
    manner: Manner,
    clock: Clock,
    path: Path,
    *,
    watch: Callable[[Load, asyncio.Event], Load] | None = None,
    on_record: Callable[[RequestRecord], None] | None = None,
) -> list[RequestRecord]:
    """Make the requests; every record is on disk in `path` before it counts. Returned in order of their ends.

    `watch` may end the load early: it is given the load and the event that stops it.
    """
    records: list[RequestRecord] = []
    stop = asyncio.Event()
    with JsonlWriter(path) as sink:

        def keep(record: RequestRecord) -> None:
            sink.append_record(record)
            records.append(record)
            if on_record:
                on_record(record)

        load = run_load(
            target,
            requests,
            manner.schedule,
            keep,
            t0=clock.t0,
            stream=manner.stream,
            timeouts=manner.timeouts,
            stop=stop,
            retries=manner.retries,
        )
        await (watch(load, stop) if watch else load)
    return records
