"""From a planned task to what the load generator and the client are given."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from evals.client import Timeouts
from evals.load import ClosedLoop, ConstantRate, Poisson, Ramp, Schedule
from rig.asking import load_task, manner_of, task_info
from rig.config_tasks import TimeoutsConfig
from rig.planned import SchedulePlan, TaskPlan


def task(**fields: Any) -> TaskPlan:
    given: dict[str, Any] = {"concurrency": 8, "stream": True, "warmup": 0}
    return TaskPlan("t", "gsm-tiny", 2, 0, 16, **(given | fields))


@pytest.mark.parametrize(
    ("planned", "schedule"),
    [
        (None, ClosedLoop(8)),
        (SchedulePlan("rate", 5.0), ConstantRate(5.0)),
        (SchedulePlan("poisson", 5.0, 3), Poisson(5.0, 3)),
        (SchedulePlan("ramp", 1.0, last=9.0, seconds=60.0), Ramp(1.0, 9.0, 60.0)),
    ],
)
def test_every_schedule_is_that_of_the_load_generator(planned: SchedulePlan | None, schedule: Schedule) -> None:
    assert manner_of(task(schedule=planned, concurrency=None if planned else 8)).schedule == schedule


def test_timeouts_and_retries() -> None:
    manner = manner_of(task(timeouts={"idle": 5.0}, retries=2))
    assert (manner.timeouts, manner.retries) == (Timeouts(idle=5.0), 2)
    assert manner_of(task()).timeouts == Timeouts()


def test_a_files_timeouts_have_the_clients_defaults() -> None:
    assert TimeoutsConfig().model_dump() == asdict(Timeouts())


def test_endpoint_and_parameters_reach_the_task() -> None:
    params = {"temperature": 0.6, "stop": None, "chat_template_kwargs": {"enable_thinking": True}}
    built = load_task(task(endpoint="chat", params=params), None)
    info = task_info(built, True)
    assert (info.endpoint, info.score_reasoning) == ("chat", True)
    assert info.params["max_tokens"] == 16
    assert info.params["chat_template_kwargs"] == {"enable_thinking": True}
    assert "stop" not in info.params
