"""What is asked of a cell, in which order: its questions, canaries among them, as often as wanted. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from evals.canaries import Canary, default_count, make_canaries, mix
from evals.client import Request
from evals.load import requests_of
from evals.tasks import Task
from rig.planned import CellPlan


@dataclass(frozen=True)
class Round:
    """All questions once: `requests` in the order of asking, `canaries` those among them, `repeat` from 0."""

    repeat: int
    requests: tuple[Request, ...]
    canaries: tuple[Canary, ...]


def rounds_of(cell: CellPlan, task: Task) -> list[Round]:
    """The rounds of a cell, the first in the task's order unless the plan says otherwise, each later one in its own.

    A canary's code belongs to the cell and the round alone, so that what an earlier one left in the KV cache is never
    the right answer.
    """
    times = max(cell.task.repeats, 1 + cell.noise_floor)
    return [_round(cell, task, repeat) for repeat in range(times)]


def _round(cell: CellPlan, task: Task, repeat: int) -> Round:
    questions = list(requests_of(task, pass_=cell.task.pass_, repeat=repeat))
    if repeat or cell.early_stop or cell.shuffled:
        random.Random(f"order/{cell.seed}/{repeat}").shuffle(questions)
    count = default_count(len(questions)) if cell.task.canaries is None else cell.task.canaries
    canaries = make_canaries(task.canaries, count, f"{cell.id}/{repeat}", task.params, task.endpoint)
    asked = [
        Request(c.sample.sample_id, c.sample.prompt, c.params, "canary", cell.task.pass_, repeat) for c in canaries
    ]
    return Round(repeat, tuple(mix(questions, asked, cell.seed + repeat)), tuple(canaries))
