"""`pdrig eval`: a task asked of any OpenAI-compatible address, and what came out as text."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Container
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import httpx

from evals.client import Target, Timeouts
from evals.load import requests_of
from evals.records import RequestRecord
from evals.tasks import Task
from rig import metrics
from rig.asking import Clock, ask, load_task, manner_of, outcome_of, task_info, warmup_requests
from rig.clients import client
from rig.errors import RunError, UsageError
from rig.fitting import fit
from rig.judge import judge, with_reasoning
from rig.plan_tasks import schedule_text
from rig.planned import SchedulePlan, TaskPlan
from rig.progress import Display
from rig.records import CellResult, Judged
from rig.report.single import format_evaluation
from rig.store import new_run_id, write_cell, write_judged

DEFAULT_CONCURRENCY = 8
TASK_FILES = (".yaml", ".yml")
"""How the names of files that state a task end."""

KEY_VARIABLE = "OPENAI_API_KEY"
MODELS_TIMEOUT_S = 10.0
PARAM_FORM = "KEY=JSON, such as temperature=0.7; text needs quotes"
TIMEOUTS = tuple(field.name for field in fields(Timeouts))
TIMEOUT_FORM = f"NAME=SECONDS with a name of {', '.join(TIMEOUTS)}"
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
    poisson: float | None
    seed: int | None
    ramp: tuple[float, float, float] | None
    no_stream: bool
    chat: bool
    param: tuple[str, ...]
    score_reasoning: bool
    timeout: tuple[str, ...]
    retries: int
    warmup: int
    model: str | None
    out: Path | None
    data: Path | None


async def evaluate_url(options: EvalOptions, display: Display) -> tuple[str, int]:
    """Ask, judge and report: the text to print, and the exit code (3 when nothing could be scored).

    Raises UsageError for what the user can mend, RunError for a server that does not answer.
    """
    plan = task_plan(options)
    task = load_task(plan, options.data)
    key = os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    blank = Target(base_url=options.url, model="", headers=headers, endpoint=task.endpoint)
    target = replace(blank, model=options.model or await served_model(blank))
    base = options.url.rstrip("/").removesuffix("/v1")
    task = await fit(task, base, f"{base}/metrics", target.model, headers)
    manner = manner_of(plan)
    folder = options.out or DEFAULT_OUT / new_run_id(task.name)
    clock = Clock.start()
    path = folder / "requests.jsonl"
    if path.exists():
        raise UsageError(f"{path} exists: give another --out")
    folder.mkdir(parents=True, exist_ok=True)
    warm = await ask(target, warmup_requests(task, options.warmup), manner, clock, path)
    outcome = outcome_of(task, plan.score_reasoning)
    display.evaluation(task.name, len(task.samples))
    records = await ask(
        *(target, requests_of(task), manner, clock, path),
        on_record=lambda record: display.answered(task.name, outcome(record)),
    )
    result, judged = summary(plan, task, records, clock, len(warm), options.url)
    write_judged(folder / "judged.jsonl", judged)
    write_cell(folder / "cell.json", result)
    scored = result.accuracy is not None and result.accuracy.value is not None
    return format_evaluation(result, str(folder)), 0 if scored else RunError.exit_code


def task_plan(options: EvalOptions) -> TaskPlan:
    """What is to be asked and how, as a sweep would plan it. Raises UsageError for options that make no sense."""
    schedule = _schedule(options)
    concurrency = options.concurrency or DEFAULT_CONCURRENCY if schedule is None else None
    return TaskPlan(
        label=options.task_name,
        name=options.task_name,
        file=options.task_name if Path(options.task_name).suffix in TASK_FILES else None,
        limit=options.limit,
        shots=options.shots,
        max_tokens=options.max_tokens,
        concurrency=concurrency,
        stream=not options.no_stream,
        warmup=options.warmup,
        params=dict(_pair("--param", text, PARAM_FORM, _json) for text in options.param),
        schedule=schedule,
        endpoint="chat" if options.chat else "completions",
        score_reasoning=options.score_reasoning,
        timeouts=dict(_pair("--timeout", text, TIMEOUT_FORM, _seconds, TIMEOUTS) for text in options.timeout),
        retries=options.retries,
    )


def _schedule(options: EvalOptions) -> SchedulePlan | None:
    if sum(bool(load) for load in (options.concurrency, options.rate, options.poisson, options.ramp)) > 1:
        raise UsageError("--concurrency, --rate, --poisson and --ramp exclude each other: give one")
    if options.seed is not None and not options.poisson:
        raise UsageError("--seed belongs to --poisson: drop it")
    if options.rate:
        return SchedulePlan("rate", options.rate)
    if options.poisson:
        return SchedulePlan("poisson", options.poisson, options.seed or 0)
    if options.ramp:
        first, last, seconds = options.ramp
        return SchedulePlan("ramp", first, last=last, seconds=seconds)
    return None


def _pair(
    option: str, text: str, form: str, read: Callable[[str], Any], names: Container[str] | None = None
) -> tuple[str, Any]:
    """Raises UsageError unless the text is a name (one of `names`), `=`, and what `read` takes."""
    name, sign, value = text.partition("=")
    try:
        if name and sign and (names is None or name in names):
            return name, read(value)
    except ValueError:
        pass
    raise UsageError(f"{option} {text}: expected {form}")


def _json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


async def served_model(target: Target) -> str:
    """The first model that the server says it has; raises RunError when it does not say."""
    address = target.url.rsplit("/v1/", 1)[0] + "/v1/models"
    try:
        async with client(timeout_s=MODELS_TIMEOUT_S) as http:
            response = await http.get(address, headers=dict(target.headers))
            response.raise_for_status()
            name = str(response.json()["data"][0]["id"])
            name.encode()
            return name
    except httpx.HTTPStatusError as error:
        raise RunError(f"{address} answered {error.response.status_code}; give --model, or check the address") from None
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise RunError(f"no server answers at {address} ({reason}); start one, or check the address") from None
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise RunError(f"{address} does not list a model; give --model") from None


def summary(
    plan: TaskPlan, task: Task, raw: list[RequestRecord], clock: Clock, warmup: int, url: str
) -> tuple[CellResult, list[Judged]]:
    """The result of an evaluation that stands alone: no deployment of ours, no evidence, no verdict."""
    records = [with_reasoning(record, plan.score_reasoning) for record in raw]
    targets = {s.sample_id: s.target_text for s in task.samples}
    judged = judge(records, targets, task.scorers, task.scorer)
    load = schedule_text(plan.schedule) if plan.schedule else None
    result = CellResult(
        cell_id=task.name,
        labels={"task": task.name, "url": url, "concurrency": plan.concurrency, "schedule": load},
        kind="monolithic",
        deployment=url,
        status="ok",
        task=task_info(task, plan.score_reasoning),
        t0_unix=clock.t0_unix,
        warmup_requests=warmup,
        retried=metrics.retried(records),
        accuracy=metrics.accuracy(judged, task.scorer, task.scorers),
        counts=metrics.counts(judged, records),
        latency_ms=metrics.latency_ms(records),
        throughput=metrics.throughput(records),
        groups=metrics.groups(judged, task),
        failure=next((r.error.message for r in records if r.error is not None), None),
    )
    return result, judged
