"""What is asked of a cell, and how hard. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rig.config import Config
from rig.config_matrix import Cell
from rig.config_models import CellConfig
from rig.config_tasks import ScheduleConfig, TaskConfig
from rig.planned import CellPlan, SchedulePlan, TaskPlan

STARTS_WITHIN_HANG = 10
"""At so many starts within `limits.hang_s` or more, no pause between two of them is taken for a hang.

Poisson arrivals are that far apart with a probability of exp(-10).
"""


def load_of(settings: CellConfig, task: TaskConfig) -> tuple[int | None, SchedulePlan | None]:
    """Requests in flight, or when they start: the cell's where it says either, else the task's."""
    holder = task if settings.concurrency is None and settings.schedule is None else settings
    return holder.concurrency, None if holder.schedule is None else _schedule(holder.schedule)


def _schedule(schedule: ScheduleConfig) -> SchedulePlan:
    if schedule.ramp is not None:
        ramp = schedule.ramp
        return SchedulePlan("ramp", ramp.first, last=ramp.last, seconds=ramp.seconds)
    if schedule.poisson is not None:
        return SchedulePlan("poisson", schedule.poisson, schedule.seed or 0)
    assert schedule.rate is not None
    return SchedulePlan("rate", schedule.rate)


def schedule_text(schedule: SchedulePlan) -> str:
    """A schedule as its label: `rate 5/s`, `poisson 5/s seed 1`, `ramp 1/s to 10/s in 60 s`."""
    text = f"{schedule.kind} {schedule.rate:g}/s"
    if schedule.last is not None and schedule.seconds is not None:
        return f"{text} to {schedule.last:g}/s in {schedule.seconds:g} s"
    return f"{text} seed {schedule.seed}" if schedule.seed else text


def plan_task(config: Config, cell: Cell, pass_: int | None, limit: int | None) -> TaskPlan:
    """The task of a cell; `limit` bounds its questions. A pass after the first is asked without a warm-up.

    Raises ConfigError for a schedule whose pauses would be taken for a hang.
    """
    label = cell.settings.task
    task = config.sweep.tasks[label]
    concurrency, schedule = load_of(cell.settings, task)
    stated = config.stated.get(label)
    if schedule is not None:
        _check_pauses(config, cell, schedule)
    return TaskPlan(
        label=label,
        name=stated.task.name if stated else str(task.task),
        limit=task.limit if limit is None else min(limit, task.limit or limit),
        shots=task.shots,
        max_tokens=task.max_tokens,
        concurrency=concurrency,
        stream=task.stream,
        warmup=task.warmup if pass_ in (None, 1) else 0,
        params=dict(task.params),
        schedule=schedule,
        endpoint=task.endpoint,
        score_reasoning=task.score_reasoning,
        timeouts=task.timeouts.model_dump(exclude_defaults=True),
        retries=task.retries,
        pass_=pass_ or 0,
        canaries=task.canaries,
        divergence=task.divergence,
        repeats=task.repeats,
        options=task.options,
        file=stated.path if stated else None,
        file_sha256=stated.sha256 if stated else None,
    )


def why_divergence_is_not_judged(cells: Sequence[CellPlan], noise_floor: int) -> str | None:
    """Why logprobs that are asked for cannot decide anything; None where they can, or where none are asked for."""
    if all(c.task.divergence != "logprobs" for c in cells) or any(c.noise_floor for c in cells):
        return None
    if not any(c.is_baseline for c in cells):
        return "no baseline is asked in this sweep, and stored ones hold no answers"
    if noise_floor:
        return "with `passes` no baseline is asked again, so its noise is not known"
    return "it needs `noise_floor: 1` or more"


def _check_pauses(config: Config, cell: Cell, schedule: SchedulePlan) -> None:
    slowest = min(schedule.rate, schedule.last or schedule.rate)
    hang_s = config.sweep.limits.hang_s
    if slowest * hang_s < STARTS_WITHIN_HANG:
        at = cell.at(("schedule",)) if cell.settings.schedule else ("tasks", cell.settings.task, "schedule")
        raise config.error(
            at,
            f"at {slowest:g} requests a second a pause may look like a hang; raise the rate, or limits.hang_s to "
            f"{STARTS_WITHIN_HANG / slowest:g} or more",
        )
