"""Asking a task of an address: warm-up, load, records on disk, running score. Used by cells and by `pdrig eval`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.client import Request, Target, Timeouts
from evals.load import Schedule, run_load
from evals.records import RequestRecord
from evals.scorers import get_scorer, score
from evals.sink import JsonlWriter
from evals.tasks import Task
from rig.records import Outcome, TaskInfo

Load = Coroutine[Any, Any, None]


@dataclass(frozen=True)
class Clock:
    """A cell's own time: seconds from `t0` of the monotonic clock, which was `t0_unix` on the wall clock."""

    t0: float
    t0_unix: float

    @classmethod
    def start(cls) -> Clock:
        return cls(time.monotonic(), time.time())


@dataclass(frozen=True)
class Manner:
    """How a task is asked."""

    schedule: Schedule
    stream: bool
    timeouts: Timeouts


def task_info(task: Task) -> TaskInfo:
    """What identifies the task in a result."""
    scorer = get_scorer(task.scorer)
    return TaskInfo(
        name=task.name,
        version=task.version,
        prompt_sha256=task.prompt_sha256,
        scorer=scorer.name,
        scorer_sha256=scorer.sha256,
        n=len(task.samples),
        params=dict(task.params),
    )


def warmup_requests(task: Task, count: int) -> Iterator[Request]:
    """The task's first prompts behind a line of their own, so that no prefix cache profits from them later."""
    for i in range(count if task.samples else 0):
        prompt = f"Warm-up {i}.\n\n{task.samples[i % len(task.samples)].prompt}"
        yield Request(f"warmup-{i}", prompt, task.params, "warmup")


def outcome_of(task: Task) -> Callable[[RequestRecord], Outcome]:
    """A function that scores a record by the task's deciding scorer, for the running display."""
    scorer = get_scorer(task.scorer)
    targets = {s.sample_id: scorer.target(s.target_text) for s in task.samples}

    def outcome(record: RequestRecord) -> Outcome:
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
        )
        await (watch(load, stop) if watch else load)
    return records
