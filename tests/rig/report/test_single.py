"""The text of `pdrig eval`."""

from __future__ import annotations

from collections.abc import Callable

from rig.records import CellResult, TaskInfo
from rig.report.single import format_evaluation

TASK = TaskInfo("gsm8k", "3.0", "p", "gsm8k-strict", "s", 400)


def test_load_warm_up_retries_and_errors_are_told(make_result: Callable[..., CellResult]) -> None:
    result = make_result(
        kind="monolithic",
        task=TASK,
        labels={"concurrency": None, "schedule": "poisson 5/s"},
        error={"reset": 3},
        warmup_requests=16,
        retried=2,
    )
    lines = format_evaluation(result, "out").splitlines()
    assert lines[1] == "load: poisson 5/s"
    assert "  error reset 3" in lines
    assert "warm-up requests before, not counted: 16" in lines
    assert "questions that took more than one attempt to connect: 2" in lines


def test_what_did_not_happen_is_not_told(make_result: Callable[..., CellResult]) -> None:
    labels = {"concurrency": 8, "schedule": None}
    text = format_evaluation(make_result(task=TASK, labels=labels, warmup_requests=0, retried=0), "out")
    assert "load: 8 requests in flight" in text
    assert "warm-up" not in text and "attempt" not in text
