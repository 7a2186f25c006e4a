"""The tasks by name: prompts, request parameters and scorers, fixed and hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from evals.data import Row, load_gsm8k
from evals.errors import BadParams, DataError, UnknownTask
from evals.gsm8k import LM_EVAL_PARAMS, VLLM_PARAMS, lm_eval_prompts, vllm_prompts
from evals.gsm_tiny import MOST, PARAMS, tiny_prompt, tiny_questions
from evals.records import Kind
from evals.robust import read_target

Endpoint = Literal["completions", "chat"]
Tokens = Literal["off", "tokens", "logprobs"]
"""What an answer brings besides its text: nothing, its token ids, or their logprobs too."""

TASK_NAMES = ("gsm8k", "gsm8k-vllm", "gsm-tiny")
DEFAULT_SHOTS = 5
TINY_QUESTIONS = 1000

RESERVED_PARAMS = frozenset({"prompt", "messages", "model", "stream", "stream_options", "n", "kv_transfer_params"})


@dataclass(frozen=True)
class Sample:
    """One request to make. `target_text` is the reference answer that a scorer's `target` reads."""

    sample_id: str
    prompt: str
    target_text: str
    kind: Kind = "question"
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """Prompts, request parameters and scorers. `scorer` decides, `scorers` are all that stand beside each other.

    `prompt_sha256` is over all prompts in order, then the endpoint and the parameters. What `divergence` of build_task
    adds is not in it, since it does not change the answers.
    """

    name: str
    version: str
    scorer: str
    scorers: tuple[str, ...]
    endpoint: Endpoint
    params: Mapping[str, Any]
    samples: tuple[Sample, ...]
    prompt_sha256: str


def build_task(
    name: str,
    *,
    limit: int | None = None,
    shots: int | None = None,
    max_tokens: int | None = None,
    data: Path | None = None,
    params: Mapping[str, Any] | None = None,
    endpoint: Endpoint = "completions",
    divergence: Tokens = "off",
) -> Task:
    """A task of TASK_NAMES with its first `limit` questions.

    `data` is the folder of the GSM8K files (None: the hub); `params` replace request parameters by name, and
    None takes one away. As chat, the whole prompt is one message of the user, and the task's
    own stop words are not sent. `divergence` asks for token ids, or for the chosen tokens' logprobs with them, unless
    `params` say otherwise.
    Raises UnknownTask, BadParams, DataError.
    """
    if name not in TASK_NAMES:
        raise UnknownTask(f"no task is called {name!r}; there are {', '.join(TASK_NAMES)}")
    for label, value, least in (("limit", limit, 1), ("shots", shots, 0), ("max_tokens", max_tokens, 1)):
        if value is not None and value < least:
            raise BadParams(f"{name}: {label} is {value}; it must be at least {least}")
    if reserved := sorted(RESERVED_PARAMS & (params or {}).keys()):
        raise BadParams(f"{name}: params may not set {', '.join(reserved)}; the evaluator does")
    count = DEFAULT_SHOTS if shots is None else shots
    if name == "gsm-tiny":
        version, defaults, samples = "1", PARAMS, _tiny_samples(limit or TINY_QUESTIONS, count)
        scorers: tuple[str, ...] = ("gsm8k-strict", "gsm8k-flexible", "gsm8k-vllm", "robust")
    elif name == "gsm8k":
        version, defaults, samples = "3.0", LM_EVAL_PARAMS, _gsm8k_samples(name, data, limit, count)
        scorers = ("gsm8k-strict", "gsm8k-flexible", "gsm8k-vllm", "robust")
    else:
        version, defaults, samples = "1", VLLM_PARAMS, _gsm8k_samples(name, data, limit, count)
        scorers = ("gsm8k-vllm", "gsm8k-strict", "gsm8k-flexible", "robust")
    request = _request_params(defaults, max_tokens, params, endpoint)
    digest = _prompt_sha256([s.prompt for s in samples], endpoint, request)
    more = {key: value for key, value in _token_params(divergence, endpoint).items() if key not in (params or {})}
    return Task(name, version, scorers[0], scorers, endpoint, request | more, samples, digest)


def _token_params(divergence: Tokens, endpoint: Endpoint) -> dict[str, Any]:
    """The request parameters that make vLLM's answers bring token ids, and the logprobs of the chosen tokens."""
    if divergence == "off":
        return {}
    ids = {"return_token_ids": True}
    return ids if divergence == "tokens" else ids | {"logprobs": 1 if endpoint == "completions" else True}


def _request_params(
    defaults: Mapping[str, Any], max_tokens: int | None, params: Mapping[str, Any] | None, endpoint: Endpoint
) -> dict[str, Any]:
    if endpoint == "chat":
        # a server looks for stop words in the reasoning too, where they would cut a thought
        defaults = {key: value for key, value in defaults.items() if key != "stop"}
    request = {**defaults, **({} if max_tokens is None else {"max_tokens": max_tokens}), **(params or {})}
    request = {key: value for key, value in request.items() if value is not None}
    return request


def _gsm8k_samples(name: str, data: Path | None, limit: int | None, shots: int) -> tuple[Sample, ...]:
    train, test = load_gsm8k(data)
    if len(train) < shots:
        raise DataError(f"{train[0].where}: {len(train)} training rows; {shots} shots need at least that many")
    asked = test[:limit]
    for row in asked:
        if "####" not in row.answer or read_target(row.answer) is None:
            raise DataError(f"{row.where}: `answer` has no `#### number` at its end")
    make = lm_eval_prompts if name == "gsm8k" else vllm_prompts
    return _samples("gsm8k-test", make(train, asked, shots), asked)


def _samples(stem: str, prompts: Sequence[str], rows: Sequence[Row]) -> tuple[Sample, ...]:
    pairs = enumerate(zip(prompts, rows, strict=True))
    return tuple(Sample(f"{stem}-{i:04d}", prompt, row.answer) for i, (prompt, row) in pairs)


def _tiny_samples(count: int, shots: int) -> tuple[Sample, ...]:
    if count > MOST:
        raise BadParams(f"gsm-tiny: limit is {count}; there are {MOST} questions")
    problems = tiny_questions(count)
    return tuple(
        Sample(f"gsm-tiny-{i:04d}", tiny_prompt(problem, i, shots), problem.solution)
        for i, problem in enumerate(problems)
    )


def _prompt_sha256(prompts: Sequence[str], endpoint: Endpoint, params: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for prompt in prompts:
        encoded = prompt.encode()
        # The length keeps two lists of prompts that join to the same text apart.
        digest.update(b"%d:" % len(encoded) + encoded)
    digest.update(orjson.dumps({"endpoint": endpoint, "params": dict(params)}, option=orjson.OPT_SORT_KEYS))
    return digest.hexdigest()
