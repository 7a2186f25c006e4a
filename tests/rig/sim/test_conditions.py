"""Conditions of the field's cases, planted on one of two instances, as logprobs and canaries show them; and noise."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from sim_sweeps import free_ports

from evals.canaries import Canary, check, make_canaries
from evals.tiny_hybrid import problems

LATE = 100
CONDITIONS: dict[str, dict[str, Any]] = {
    "any": {},
    "case_2": {"after_finish_within_ms": 1e6},
    "case_3": {"after_requests": LATE},
    "case_6": {"prompt_multiple_of": 16},
    "case_7": {"by": "request", "rate": 0.5},
    "predecessor": {"predecessor_contains": "[before]"},
}


def planted(port: int) -> Iterator[dict[str, Any]]:
    """Damage under each condition, to prompts that name it in square brackets, on the instance at one port."""
    for tag, condition in CONDITIONS.items():
        more: dict[str, Any] = {key: condition[key] for key in ("by", "rate") if key in condition}
        when = {key: value for key, value in condition.items() if key not in more}
        yield {"fault": "wrong_answer", **more, "when": {"prompt_contains": f"[{tag}]", "port": port, **when}}


@pytest.fixture(scope="module")
def instances(start: Any) -> tuple[Any, Any]:
    """Two instances with the same settings, of which the faults name the first."""
    (port,) = free_ports(1)
    faults = list(planted(port))
    settings = {"noise": 0.2}
    struck = start("--reasoning-parser", "any", faults=faults, settings=settings, port=port, wait=False)
    spared = start("--reasoning-parser", "any", faults=faults, settings=settings, wait=False)
    for sim in (struck, spared):
        sim.wait_until(sim.healthy)
    return struck, spared


@pytest.fixture
def struck(instances: tuple[Any, Any]) -> Any:
    return instances[0]


@pytest.fixture
def spared(instances: tuple[Any, Any]) -> Any:
    return instances[1]


@pytest.fixture(scope="module", params=["gsm-tiny", "gsm8k"])
def canary(request: pytest.FixtureRequest) -> Canary:
    return make_canaries(request.param, 1, "a cell", {"max_tokens": 96}, "completions")[0]


def choice(sim: Any, prompt: str, **more: Any) -> dict[str, Any]:
    answer = sim.complete(prompt, **{"logprobs": 1, "return_token_ids": True, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["choices"][0]
    return found


def damaged(canary: Canary, prompt: str, struck: Any, spared: Any) -> bool:
    """Whether the struck instance answers a canary wrong; its logprobs say the same, and the other is right."""
    here, there = (choice(sim, prompt, **canary.params) for sim in (struck, spared))
    assert check(canary, there["text"], {})[0] == "right"
    pairs = zip(here["token_ids"], there["token_ids"], strict=True)
    at = next((index for index, (a, b) in enumerate(pairs) if a != b), None)
    lower = [
        a - b for a, b in zip(here["logprobs"]["token_logprobs"], there["logprobs"]["token_logprobs"], strict=True)
    ]
    wrong = check(canary, here["text"], {})[0] == "wrong"
    assert lower[at] < -1.4 if wrong and at is not None else not any(lower)
    return wrong


def test_only_the_named_instance_is_struck(canary: Canary, struck: Any, spared: Any) -> None:
    assert not damaged(canary, canary.sample.prompt, struck, spared)
    assert damaged(canary, f"[any] {canary.sample.prompt}", struck, spared)
    assert not damaged(canary, f"[any] {canary.sample.prompt}", spared, spared)


def test_case_2_soon_after_another_and_by_predecessor(canary: Canary, struck: Any, spared: Any) -> None:
    prompt = f"[predecessor] {canary.sample.prompt}"
    choice(struck, "[before] anything")
    assert damaged(canary, prompt, struck, spared)
    assert not damaged(canary, prompt, struck, spared), "the one before was another"
    assert damaged(canary, f"[case_2] {canary.sample.prompt}", struck, spared)


def test_case_3_after_so_many(canary: Canary, struck: Any, spared: Any) -> None:
    prompt = f"[case_3] {canary.sample.prompt}"
    served = len(struck.ledger())
    assert damaged(canary, prompt, struck, spared) == (served >= LATE)
    for _ in range(served + 1, LATE):
        choice(struck, "anything", max_tokens=1)
    assert damaged(canary, prompt, struck, spared)


def test_case_6_by_length(canary: Canary, struck: Any, spared: Any) -> None:
    for extra in range(16):
        prompt = f"[case_6]{' x' * extra} {canary.sample.prompt}"
        wrong = damaged(canary, prompt, struck, spared)
        assert wrong == (struck.ledger()[-1]["prompt_tokens"] % 16 == 0)


def test_case_7_another_one_every_time(canary: Canary, struck: Any, spared: Any) -> None:
    prompt = f"[case_7] {canary.sample.prompt}"
    assert {damaged(canary, prompt, struck, spared) for _ in range(20)} == {True, False}


def test_noise_is_late_close_and_nowhere_else(spared: Any) -> None:
    prompts = [problems.ask(problem.question) for problem in problems.distinct("test", 1, 60)]
    sides = [[choice(spared, prompt, logprobs=2) for prompt in prompts] for _ in range(2)]
    differing = 0
    for one, other in zip(*sides, strict=True):
        values, others = (side["logprobs"]["token_logprobs"] for side in (one, other))
        at = next((i for i, (a, b) in enumerate(zip(one["token_ids"], other["token_ids"], strict=False)) if a != b), 0)
        assert values[:at] == others[:at]
        assert all(-0.51 < value < 0 for value in [*values[:at], *values[at + 1 :]]) or one["text"] == other["text"]
        if one["text"] == other["text"]:
            assert values == others
            continue
        differing += 1
        for mine, its in ((one, other), (other, one)):
            first, second = mine["logprobs"]["top_logprobs"][at].items()
            assert -0.71 < second[1] <= first[1] < -0.69
            assert (first[0], second[0]) == (mine["logprobs"]["tokens"][at], its["logprobs"]["tokens"][at])
    assert 2 <= differing <= 25, "12 expected"


@pytest.mark.parametrize(
    ("endpoint", "stream", "ask_text"),
    [
        (endpoint, stream, text)
        for endpoint, stream in itertools.product(("completions", "chat/completions"), (False, True))
        for text in ("Question: Ann has 3 apples and buys 4 more. How many apples does Ann have now?\nAnswer:", "Hello")
    ],
)
def test_every_token_has_an_id_and_a_logprob(spared: Any, endpoint: str, stream: bool, ask_text: str) -> None:
    chat = endpoint.startswith("chat")
    body: dict[str, Any] = {"return_token_ids": True, "max_tokens": 60, "stop": ["\n\n"], "stream": stream}
    body |= {"messages": [{"role": "user", "content": ask_text}]} if chat else {"prompt": ask_text}
    body |= {"logprobs": True if chat else 1} | ({"stream_options": {"include_usage": True}} if stream else {})
    text = spared.client.post(f"/v1/{endpoint}", json=body).text
    parts = [line.removeprefix("data: ") for line in text.split("\n\n") if line] if stream else [text]
    answers = [json.loads(part) for part in parts if part != "[DONE]"]
    ids: list[int] = []
    values: list[float] = []
    for part in (choice for answer in answers for choice in answer["choices"]):
        ids += part.get("token_ids") or []
        logprobs = part["logprobs"] or {}
        values += logprobs.get("token_logprobs") or [token["logprob"] for token in logprobs.get("content") or ()]
    assert len(ids) == len(values) == answers[-1]["usage"]["completion_tokens"] > 3
    assert all(value < 0 for value in values)
