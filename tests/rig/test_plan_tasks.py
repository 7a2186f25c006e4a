"""What the plan says about load, endpoint and passes: labels, ids, order, baselines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rig.config import parse_config
from rig.errors import ConfigError
from rig.machine import Machine
from rig.plan import plan_sweep
from rig.plan_order import order_cells
from rig.plan_text import format_plan
from rig.planned import CellPlan, SchedulePlan, SweepPlan

ATTACH = {
    "launcher": "attach",
    "attach": {"prefill": [{"url": "http://a:1"}], "decode": [{"url": "http://b:1"}]},
}


def sweep(task: dict[str, Any], **more: Any) -> dict[str, Any]:
    cell = {
        "model": "m",
        "engine": "e",
        "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
        "task": "t",
        **more.pop("cell", {}),
    }
    return {
        "name": "s",
        "models": {"m": {"path": "/m"}},
        "engines": {"e": {"command": ["vllm", "serve"], "device": "cpu"}},
        "cell": cell,
        "tasks": {"t": {"task": "gsm-tiny", **task}, "u": {"task": "gsm-tiny"}},
        **more,
    }


def plan(data: dict[str, Any], **options: Any) -> SweepPlan:
    return plan_sweep(parse_config(yaml.safe_dump(data, sort_keys=False), "x", Path("/")), Machine(), **options)


def pd(planned: SweepPlan) -> list[CellPlan]:
    return [cell for cell in planned.cells if cell.kind == "pd"]


SCHEDULES = [
    ({"rate": 5}, SchedulePlan("rate", 5.0), "rate 5/s"),
    ({"poisson": 0.5}, SchedulePlan("poisson", 0.5), "poisson 0.5/s"),
    ({"poisson": 5, "seed": 3}, SchedulePlan("poisson", 5.0, 3), "poisson 5/s seed 3"),
    (
        {"ramp": {"first": 1, "last": 10, "seconds": 60}},
        SchedulePlan("ramp", 1.0, last=10.0, seconds=60.0),
        "ramp 1/s to 10/s in 60 s",
    ),
]


@pytest.mark.parametrize(("written", "planned", "label"), SCHEDULES)
def test_a_schedule_is_planned_and_labelled(written: dict[str, Any], planned: SchedulePlan, label: str) -> None:
    found = plan(sweep({"schedule": written}))
    for cell in found.cells:
        assert (cell.task.schedule, cell.task.concurrency) == (planned, None)
        assert (cell.labels["schedule"], cell.labels["concurrency"]) == (label, None)
    assert label in format_plan(found, "table")


def test_schedules_are_an_axis_and_share_servers() -> None:
    planned = plan(sweep({"schedule": {"rate": 9}}, matrix={"schedule": [{"rate": 1}, {"poisson": 2}]}))
    assert len(planned.deployments) == 2
    assert [cell.labels["schedule"] for cell in pd(planned)] == ["rate 1/s", "poisson 2/s"]
    assert [cell.labels["schedule"] for cell in planned.cells[:2]] == ["rate 1/s", "poisson 2/s"]
    assert "-rate-1-s-" in pd(planned)[0].id


def test_closed_and_open_loops_are_one_axis() -> None:
    planned = plan(sweep({}, matrix={"concurrency, schedule": [[4, None], [None, {"rate": 5}]]}))
    assert [(c.task.concurrency, c.labels["schedule"]) for c in pd(planned)] == [(4, None), (None, "rate 5/s")]


def test_the_cells_load_replaces_the_tasks() -> None:
    (cell,) = pd(plan(sweep({"schedule": {"rate": 5}}, cell={"concurrency": 3})))
    assert (cell.task.concurrency, cell.task.schedule) == (3, None)


def test_cells_are_matched_by_their_schedule() -> None:
    data = sweep(
        {},
        matrix={"schedule": [{"rate": 1}, {"rate": 2}]},
        baseline={"cell": {"schedule": "rate 1/s"}},
        expect=[{"match": {"schedule": "rate 2/s"}, "xfail": {"reason": "r"}}],
    )
    first, second = plan(data).cells
    assert (first.baselines, second.baselines) == ((), (first.id,))
    assert second.xfail is not None


def test_pauses_that_look_like_a_hang_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(sweep({"schedule": {"rate": 0.02}}))
    assert str(caught.value).startswith(
        "x: tasks.t.schedule: at 0.02 requests a second a pause may look like a hang; raise the rate, or "
        "limits.hang_s to 500 or more (line "
    )
    assert plan(sweep({"schedule": {"rate": 0.02}}, limits={"hang_s": 500})).cells


def test_how_a_task_is_asked_reaches_the_plan() -> None:
    params = {"temperature": 0.6, "stop": None}
    task = {"endpoint": "chat", "params": params, "score_reasoning": True, "timeouts": {"idle": 5}, "retries": 2}
    (cell,) = pd(plan(sweep(task)))
    asked = cell.task
    assert (asked.endpoint, asked.params, asked.score_reasoning) == ("chat", params, True)
    assert (asked.timeouts, asked.retries) == ({"idle": 5}, 2)
    assert "t, as chat, reasoning scored, retries 2" in format_plan(plan(sweep(task)), "table")


def told(cells: Sequence[CellPlan]) -> list[tuple[int, int | None, bool, bool, int]]:
    return [(c.task.pass_, c.labels["pass"], c.fresh, c.continues, c.task.warmup) for c in cells]


def test_passes_are_cells_in_order_on_one_deployment() -> None:
    planned = plan(sweep({"passes": 3}))
    assert (
        told(planned.cells[:3])
        == told(planned.cells[3:])
        == [
            (1, 1, True, False, 16),
            (2, 2, False, True, 0),
            (3, 3, False, True, 0),
        ]
    )
    assert len(planned.deployments) == 2
    assert len({cell.id for cell in planned.cells}) == 6
    assert planned.cells[4].id.startswith("m-1p1d-tp1-tp1-async-on-pass-2-")
    assert [cell.baselines for cell in pd(planned)] == [(cell.id,) for cell in planned.cells[:3]]
    assert any("servers are fresh for the first pass" in note for note in planned.notes)


def test_one_pass_is_no_series() -> None:
    planned = plan(sweep({}))
    assert told(list(planned.cells)) == [(0, None, False, False, 16)] * 2
    assert not any("pass" in note for note in planned.notes)


def test_passes_and_concurrencies_together() -> None:
    planned = plan(sweep({"passes": 2}, matrix={"concurrency": [1, 64]}))
    order = [(cell.kind, cell.task.concurrency, cell.task.pass_) for cell in planned.cells]
    assert order == [(kind, c, p) for kind in ("monolithic", "pd") for c in (1, 64) for p in (1, 2)]
    assert "8 cells, 4 launches" in format_plan(planned, "table")


def test_reuse_can_be_held_against_the_cold_pass() -> None:
    first, second = plan(sweep({"passes": 2}, baseline={"cell": {"pass": 1}})).cells
    assert (first.baselines, second.baselines) == ((), (first.id,))


def test_a_pass_cannot_be_held_against_a_later_one() -> None:
    with pytest.raises(ConfigError, match="baselines of one another in a circle"):
        plan(sweep({"passes": 2}, baseline={"cell": {"pass": 2}}))


def test_passes_against_a_cell_that_is_asked_once_and_the_other_way_round() -> None:
    data = sweep({"passes": 2}, matrix={"task": ["t", "u"]}, baseline={"cell": {"task": "u"}})
    by_pass = {cell.labels["pass"]: cell for cell in plan(data).cells}
    assert by_pass[1].baselines == by_pass[2].baselines == (by_pass[None].id,)
    by_pass = {cell.labels["pass"]: cell for cell in plan(data | {"baseline": {"cell": {"task": "t"}}}).cells}
    assert by_pass[None].baselines == (by_pass[1].id,)


def test_a_glob_takes_earlier_passes_along() -> None:
    planned = plan(sweep({"passes": 3}), cell_glob="*1p1d*-pass-2-*")
    assert [(cell.kind, cell.task.pass_) for cell in planned.cells] == [
        *(("monolithic", 1), ("monolithic", 2), ("pd", 1), ("pd", 2))
    ]


def test_a_pass_cannot_be_excluded() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(sweep({"passes": 2}, exclude=[{"pass": 1}]))
    assert "exclude[0].pass: passes belong together; lower `passes` of the task instead" in str(caught.value)


def test_attached_servers_are_as_cold_as_they_are() -> None:
    planned = plan(sweep({"passes": 2}, **ATTACH))
    assert any("as cold as they are" in note for note in planned.notes)


def test_passes_stay_together_whatever_could_run_between_them() -> None:
    baselines: dict[str, list[str]] = {"a1": [], "a2": ["b2"], "b1": [], "b2": [], "c": ["a1"]}
    before = {"a1": None, "a2": "a1", "b1": None, "b2": "b1", "c": None}
    running = {"a1": "x", "a2": "x", "b1": "y", "b2": "y", "c": "x"}
    assert order_cells(baselines, running, before) == ["b1", "b2", "a1", "a2", "c"]
