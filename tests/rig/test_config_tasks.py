"""The keys of a task, and the one line that each mistake gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from rig.config import parse_config
from rig.config_tasks import TaskConfig
from rig.errors import ConfigError

BASE = """\
name: s
models: {m: {path: model}}
engines: {e: {command: [vllm, serve], device: cpu}}
cell:
  model: m
  engine: e
  kv_transfer_config: {kv_connector: NixlConnector}
  task: t
"""


def task(text: str, cell: str = "") -> TaskConfig:
    return parse_config(f"{BASE}{cell}tasks:\n  t: {{task: gsm-tiny{text}}}\n", "x", Path("/")).sweep.tasks["t"]


def test_defaults_are_a_closed_loop_of_eight_asked_once() -> None:
    found = task("")
    assert (found.concurrency, found.schedule, found.passes) == (8, None, 1)
    assert (found.endpoint, found.score_reasoning, found.retries) == ("completions", False, 0)


def test_a_schedule_takes_the_place_of_the_closed_loop() -> None:
    found = task(", schedule: {poisson: 5, seed: 3}")
    assert found.concurrency is None
    assert found.schedule is not None and (found.schedule.poisson, found.schedule.seed) == (5, 3)


def test_all_keys_together() -> None:
    found = task(
        ", schedule: {ramp: {first: 1, last: 10, seconds: 60}}, passes: 2, endpoint: chat, max_tokens: 32768, "
        "params: {temperature: 0.6, stop: null, chat_template_kwargs: {enable_thinking: true}}, "
        "score_reasoning: true, timeouts: {connect: 1, idle: 30.5}, retries: 5"
    )
    assert found.timeouts.model_dump() == {"connect": 1, "first_byte": 600, "idle": 30.5, "total": 1800}
    assert found.params["stop"] is None


EITHER = "give either `concurrency`, requests in flight, or `schedule`, when they start (line 10)"
REFUSED = [
    (", concurrency: 4, schedule: {rate: 1}", f"tasks.t: {EITHER}"),
    (", schedule: {}", "tasks.t.schedule: give one of `rate`, `poisson` and `ramp` (line 10)"),
    (", schedule: {rate: 1, poisson: 1}", "tasks.t.schedule: give one of `rate`, `poisson` and `ramp` (line 10)"),
    (", schedule: {rate: 1, seed: 1}", "tasks.t.schedule: `seed` belongs to `poisson`; drop it (line 10)"),
    (", schedule: {rate: 0}", "tasks.t.schedule.rate: expected a number above 0, got 0 (line 10)"),
    (", schedule: {rate: .inf}", "tasks.t.schedule.rate: expected a number above 0, got Infinity (line 10)"),
    (", schedule: 5", "tasks.t.schedule: expected `key: value` lines, got 5 (line 10)"),
    (", schedule: {ramp: {first: 1, last: 2}}", "tasks.t.schedule.ramp.seconds: is required (line 10)"),
    (", schedule: {possion: 1}", 'tasks.t.schedule.possion: unknown key; did you mean "poisson"? (line 10)'),
    (", passes: 0", "tasks.t.passes: expected a whole number from 1 to 100, got 0 (line 10)"),
    *(
        (
            f", {key}: {most + 1}",
            f"tasks.t.{key}: expected a whole number from {least} to {most}, got {most + 1} (line 10)",
        )
        for key, least, most in [
            ("limit", 1, 1_000_000),
            ("shots", 0, 1000),
            ("max_tokens", 1, 10_000_000),
            ("concurrency", 1, 100_000),
            ("warmup", 0, 100_000),
            ("passes", 1, 100),
            ("multiples", 1, 10_000),
        ]
    ),
    (f", limit: {10**30}", f"tasks.t.limit: expected a whole number from 1 to 1000000, got {10**30} (line 10)"),
    (", endpoint: responses", "tasks.t.endpoint: expected 'completions' or 'chat', got \"responses\" (line 10)"),
    (", params: {stream: true}", "tasks.t.params: stream cannot be set here; the evaluator does (line 10)"),
    (", score_reasoning: yes", 'tasks.t.score_reasoning: expected true or false, got "yes" (line 10)'),
    (", timeouts: {idle: 0}", "tasks.t.timeouts.idle: expected a number above 0, got 0 (line 10)"),
    (", timeouts: {idel: 1}", 'tasks.t.timeouts.idel: unknown key; did you mean "idle"? (line 10)'),
    (", retries: 6", "tasks.t.retries: expected a whole number from 0 to 5, got 6 (line 10)"),
    (", canaries: 201", "tasks.t.canaries: expected a whole number from 0 to 200, got 201 (line 10)"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text for text, _ in REFUSED])
def test_a_mistake_is_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        task(text)
    assert str(caught.value) == f"x: {message}"


def test_a_task_that_does_not_exist_is_refused_when_planning() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(f"{BASE}tasks:\n  t: {{task: gsm-tinny}}\n", "x", Path("/"))
    assert str(caught.value) == 'x: tasks.t.task: no task is called "gsm-tinny"; did you mean "gsm-tiny"? (line 10)'


def test_a_cell_has_one_load_too() -> None:
    with pytest.raises(ConfigError) as caught:
        task("", "  concurrency: 4\n  schedule: {rate: 1}\n")
    assert str(caught.value).startswith("x: cell: give either `concurrency`")
