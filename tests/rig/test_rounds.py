"""What a cell is asked: every question once a round, canaries of its own among them, in an order that repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.canaries import default_count
from evals.tasks import Task
from rig.asking import load_task
from rig.planned import CellPlan, TaskPlan
from rig.records import Gates
from rig.rounds import Round, rounds_of

QUESTIONS = 40
TASK = TaskPlan("t", "gsm-tiny", QUESTIONS, 2, 64, 8, True, 0)


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(TASK, None)


def cell(name: str = "cell", task: dict[str, Any] | None = None, **fields: Any) -> CellPlan:
    return CellPlan(name, {}, "pd", "d", replace(TASK, **(task or {})), Gates(), **fields)


def asked(round_: Round, kind: str = "question") -> list[str]:
    return [r.sample_id for r in round_.requests if r.kind == kind]


def codes(rounds: Sequence[Round]) -> list[str]:
    return [c.code for r in rounds for c in r.canaries]


@settings(max_examples=25)
@given(
    repeats=st.integers(1, 4),
    noise=st.booleans(),
    early=st.booleans(),
    shuffled=st.booleans(),
    canaries=st.none() | st.integers(0, 30),
    seed=st.integers(0, 5),
)
def test_every_round_has_every_question_once_and_its_own_canaries(
    repeats: int, noise: bool, early: bool, shuffled: bool, canaries: int | None, seed: int
) -> None:
    task = load_task(TASK, None)
    fields = {"noise_floor": noise, "early_stop": early, "shuffled": shuffled, "seed": seed}
    plan = cell(task={"repeats": repeats, "canaries": canaries}, **fields)
    rounds = rounds_of(plan, task)
    assert [r.repeat for r in rounds] == list(range(max(repeats, 2 if noise else 1)))
    in_order = [s.sample_id for s in task.samples]
    for one in rounds:
        assert sorted(asked(one)) == sorted(in_order)
        assert {r.repeat for r in one.requests} == {one.repeat}
        assert asked(one, "canary") == [c.sample.sample_id for c in one.canaries]
        assert len(one.canaries) == (default_count(QUESTIONS) if canaries is None else canaries)
    assert (asked(rounds[0]) == in_order) == (not early and not shuffled)
    orders = [tuple(asked(r)) for r in rounds]
    assert len(set(orders)) == len(orders), "each round has an order of its own"
    assert len(set(codes(rounds))) == len(codes(rounds)), "no code is right in two rounds"
    assert rounds_of(plan, task) == rounds, "the same again for the same plan"


def test_the_order_follows_the_seed(task: Task) -> None:
    first = {seed: asked(rounds_of(cell(shuffled=True, seed=seed), task)[0]) for seed in (0, 1)}
    assert first[0] != first[1]


def test_two_cells_on_the_same_servers_share_no_code_and_ask_the_same_questions(task: Task) -> None:
    one, other = rounds_of(cell("a"), task), rounds_of(cell("b"), task)
    assert not set(codes(one)) & set(codes(other))
    assert asked(one[0]) == asked(other[0])
    assert [r.prompt for r in one[0].requests if r.kind == "question"] == [s.prompt for s in task.samples]


def test_a_canary_is_asked_in_the_manner_of_the_task_and_its_pass(task: Task) -> None:
    [round_] = rounds_of(cell(task={"pass_": 2, "canaries": 4}), task)
    assert {r.pass_ for r in round_.requests} == {2}
    for request, canary in zip([r for r in round_.requests if r.kind == "canary"], round_.canaries, strict=True):
        assert request.prompt == canary.sample.prompt and request.params == canary.params
        assert " ".join(canary.code) in request.prompt


def test_canaries_can_be_left_out(task: Task) -> None:
    [round_] = rounds_of(cell(task={"canaries": 0}), task)
    assert not round_.canaries and {r.kind for r in round_.requests} == {"question"}
