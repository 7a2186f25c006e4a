"""The tasks by name: prompts, request parameters and scorers, fixed and hashed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from evals.boundaries import MULTIPLES, boundaries
from evals.bounds import BOUNDS
from evals.custom import Custom, custom
from evals.data import Row, load_gsm8k
from evals.errors import BadParams, DataError, UnknownTask
from evals.gsm8k import LM_EVAL_PARAMS, VLLM_PARAMS, lm_eval_prompts, vllm_prompts
from evals.gsm_tiny import MOST, PARAMS, tiny_prompt, tiny_questions
from evals.needles import DEPTHS, needles
from evals.needles import PROMPTS as NEEDLES
from evals.needles import WORDS as NEEDLE_WORDS
from evals.prefill_heavy import PROMPTS, WORDS, prefill_heavy
from evals.robust import read_target
from evals.shapes import Draft as Draft
from evals.shapes import Endpoint as Endpoint
from evals.shapes import Sample as Sample
from evals.shapes import Task as Task
from evals.shapes import Tokens as Tokens
from evals.shapes import prompt_sha256

TASK_NAMES = ("gsm8k", "gsm8k-vllm", "gsm-tiny")
"""Tasks that are questions and nothing else."""

OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "prefill-heavy": ("words", "shared"),
        "needles": ("words", "depths", "questions"),
        "boundaries": ("questions", "multiples"),
    }
)
"""Tasks made for a kind of load or of fault, and the options that are theirs alone."""

DEFAULT_SHOTS = 5
BOUNDARY_SHOTS = 2
"""Few, so that questions begin at a small number of blocks."""

TINY_QUESTIONS = 1000
BOUNDARY_QUESTIONS = 192

RESERVED_PARAMS = frozenset({"prompt", "messages", "model", "stream", "stream_options", "n", "kv_transfer_params"})


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
    options: Mapping[str, Any] = MappingProxyType({}),
    stated: Custom | None = None,
) -> Task:
    """A task of TASK_NAMES or OPTIONS, or the one that a file has `stated`, with its first `limit` questions.

    `data` is the folder of the GSM8K files (None: the hub); `params` replace request parameters by name, and
    None takes one away. As chat, the whole prompt is one message of the user, and the task's
    own stop words are not sent. `divergence` asks for token ids, or for the chosen tokens' logprobs with them, unless
    `params` say otherwise. `options` are those of OPTIONS.
    Raises UnknownTask, BadParams, DataError.
    """
    if stated is None and name not in (*TASK_NAMES, *OPTIONS):
        raise UnknownTask(f"no task is called {name!r}; there are {', '.join((*TASK_NAMES, *OPTIONS))}")
    for label, value in (("limit", limit), ("shots", shots), ("max_tokens", max_tokens)):
        least, most = BOUNDS[label]
        if value is not None and not least <= value <= most:
            raise BadParams(f"{name}: {label} is {value}; it must be {least} to {most}")
    if reserved := sorted(RESERVED_PARAMS & (params or {}).keys()):
        raise BadParams(f"{name}: params may not set {', '.join(reserved)}; the evaluator does")
    allowed = () if stated is not None else OPTIONS.get(name, ())
    if strange := sorted(set(options) - set(allowed)):
        known = f"; it has {', '.join(allowed)}" if allowed else ""
        raise BadParams(f"{name}: has no option {', '.join(strange)}{known}")
    if stated is not None:
        draft, name = custom(stated, limit, shots), stated.name
    elif name in OPTIONS:
        draft = _workload(name, limit, shots, data, options)
    else:
        draft = _questions(name, limit, DEFAULT_SHOTS if shots is None else shots, data)
    request = _request_params(draft.params, max_tokens, params, endpoint)
    digest = prompt_sha256([s.prompt for s in draft.samples], endpoint, request)
    more = {key: value for key, value in _token_params(divergence, endpoint).items() if key not in (params or {})}
    return Task(
        name=name,
        version=draft.version,
        scorer=draft.scorers[0],
        scorers=draft.scorers,
        endpoint=endpoint,
        params=request | more,
        samples=draft.samples,
        prompt_sha256=digest,
        group_by=draft.group_by,
        canaries=draft.canaries or name,
        edges=draft.edges,
    )


def _questions(name: str, limit: int | None, shots: int, data: Path | None) -> Draft:
    if name == "gsm-tiny":
        scorers: tuple[str, ...] = ("gsm8k-strict", "gsm8k-flexible", "gsm8k-vllm", "robust")
        return Draft("1", PARAMS, scorers, _tiny_samples(limit or TINY_QUESTIONS, shots))
    if name == "gsm8k":
        scorers = ("gsm8k-strict", "gsm8k-flexible", "gsm8k-vllm", "robust")
        return Draft("3.0", LM_EVAL_PARAMS, scorers, _gsm8k_samples(name, data, limit, shots))
    scorers = ("gsm8k-vllm", "gsm8k-strict", "gsm8k-flexible", "robust")
    return Draft("1", VLLM_PARAMS, scorers, _gsm8k_samples(name, data, limit, shots))


def _workload(name: str, limit: int | None, shots: int | None, data: Path | None, options: Mapping[str, Any]) -> Draft:
    if shots is not None and name != "boundaries":
        raise BadParams(f"{name}: has no shots; drop `shots`")
    questions = options.get("questions")
    if name == "prefill-heavy":
        return prefill_heavy(limit or PROMPTS, options.get("words", WORDS), options.get("shared", 0.0))
    if name == "needles":
        if questions not in (None, "gsm-tiny"):
            raise BadParams(f"needles: questions is {questions!r}; it may be gsm-tiny, the tiny model's kind of codes")
        tiny = questions is not None
        return needles(limit or NEEDLES, options.get("words", NEEDLE_WORDS), options.get("depths", DEPTHS), tiny)
    questions = questions or "gsm8k"
    if questions not in TASK_NAMES:
        raise BadParams(f"boundaries: questions is {questions!r}; it must be one of {', '.join(TASK_NAMES)}")
    count = BOUNDARY_SHOTS if shots is None else shots
    padded = _questions(questions, limit or BOUNDARY_QUESTIONS, count, data)
    return boundaries(replace(padded, canaries=questions), options.get("multiples", MULTIPLES))


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
