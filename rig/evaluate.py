"""`pdrig eval`: a task asked of any OpenAI-compatible address, and what came out as text."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from evals.client import Target, Timeouts
from evals.load import ClosedLoop, ConstantRate, Schedule, requests_of
from evals.records import RequestRecord
from evals.tasks import Task, build_task
from rig import metrics
from rig.asking import Clock, Manner, ask, outcome_of, task_info, warmup_requests
from rig.errors import RunError, UsageError
from rig.judge import judge
from rig.progress import Display
from rig.records import CellResult, Judged
from rig.report.single import format_evaluation
from rig.store import new_run_id, write_cell, write_judged

DEFAULT_CONCURRENCY = 8
KEY_VARIABLE = "OPENAI_API_KEY"
MODELS_TIMEOUT_S = 10.0
DEFAULT_OUT = Path("results/evals")


@dataclass(frozen=True)
class EvalOptions:
    """The options of `pdrig eval`."""

    url: str
    task_name: str
    limit: int | None
    shots: int | None
    max_tokens: int | None
    concurrency: int | None
    rate: float | None
    no_stream: bool
    warmup: int
    model: str | None
    out: Path | None
    data: Path | None


async def evaluate_url(options: EvalOptions, display: Display) -> tuple[str, int]:
    """Ask, judge and report: the text to print, and the exit code (3 when nothing could be scored).

    Raises UsageError for what the user can mend, RunError for a server that does not answer.
    """
    if options.concurrency and options.rate:
        raise UsageError("--concurrency and --rate exclude each other: give one")
    task = build_task(
        options.task_name,
        limit=options.limit,
        shots=options.shots,
        max_tokens=options.max_tokens,
        data=options.data,
    )
    key = os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    blank = Target(base_url=options.url, model="", headers=headers, endpoint=task.endpoint)
    target = replace(blank, model=options.model or await served_model(blank))
    schedule: Schedule = (
        ConstantRate(options.rate) if options.rate else ClosedLoop(options.concurrency or DEFAULT_CONCURRENCY)
    )
    manner = Manner(schedule, not options.no_stream, Timeouts())
    folder = options.out or DEFAULT_OUT / new_run_id(task.name)
    clock = Clock.start()
    path = folder / "requests.jsonl"
    if path.exists():
        raise UsageError(f"{path} exists: give another --out")
    folder.mkdir(parents=True, exist_ok=True)
    warm = await ask(target, warmup_requests(task, options.warmup), manner, clock, path)
    outcome = outcome_of(task)
    display.evaluation(task.name, len(task.samples))
    records = await ask(
        target, requests_of(task), manner, clock, path, on_record=lambda record: display.answered(outcome(record))
    )
    result, judged = summary(task, records, clock, len(warm), options.url)
    write_judged(folder / "judged.jsonl", judged)
    write_cell(folder / "cell.json", result)
    scored = result.accuracy is not None and result.accuracy.value is not None
    return format_evaluation(result, str(folder)), 0 if scored else RunError.exit_code


async def served_model(target: Target) -> str:
    """The first model that the server says it has; raises RunError when it does not say."""
    address = target.url.rsplit("/v1/", 1)[0] + "/v1/models"
    try:
        async with httpx.AsyncClient(timeout=MODELS_TIMEOUT_S, trust_env=False) as client:
            response = await client.get(address, headers=dict(target.headers))
            response.raise_for_status()
            return str(response.json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        raise RunError(f"{address} answered {error.response.status_code}; give --model, or check the address") from None
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise RunError(f"no server answers at {address} ({reason}); start one, or check the address") from None
    except (ValueError, KeyError, IndexError, TypeError):
        raise RunError(f"{address} does not list a model; give --model") from None


def summary(
    task: Task, records: list[RequestRecord], clock: Clock, warmup: int, url: str
) -> tuple[CellResult, list[Judged]]:
    """The result of an evaluation that stands alone: no deployment of ours, no evidence, no verdict."""
    targets = {s.sample_id: s.target_text for s in task.samples}
    judged = judge(records, targets, task.scorers, task.scorer)
    result = CellResult(
        cell_id=task.name,
        labels={"task": task.name, "url": url},
        kind="monolithic",
        deployment=url,
        status="ok",
        task=task_info(task),
        t0_unix=clock.t0_unix,
        warmup_requests=warmup,
        accuracy=metrics.accuracy(judged, task.scorer, task.scorers),
        counts=metrics.counts(judged, records),
        latency_ms=metrics.latency_ms(records),
        throughput=metrics.throughput(records),
    )
    return result, judged
