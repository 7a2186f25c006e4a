"""The shapes of tasks and their samples, and the hash of what is asked. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from evals.records import Kind

Endpoint = Literal["completions", "chat"]
Tokens = Literal["off", "tokens", "logprobs"]
"""What an answer brings besides its text: nothing, its token ids, or their logprobs too."""


@dataclass(frozen=True)
class Sample:
    """One request to make. `target_text` is the reference answer that a scorer's `target` reads."""

    sample_id: str
    prompt: str
    target_text: str
    kind: Kind = "question"
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Edges:
    """What prompts of lengths around whole blocks are made of: `multiples` counts of blocks, filler of one style."""

    multiples: int
    worked_examples: bool


@dataclass(frozen=True)
class Task:
    """Prompts, request parameters and scorers. `scorer` decides, `scorers` are all that stand beside each other.

    `prompt_sha256` is over all prompts in order, then the endpoint and the parameters. What `divergence` of build_task
    adds is not in it, since it does not change the answers. `group_by` is the key of the samples' `meta` by which the
    accuracy is told apart; `canaries` names the task whose kind of canaries a model of this one can repeat. A task with
    `edges` is not ready to be asked: its prompts have to be fitted to a server's blocks first (evals.boundaries).
    """

    name: str
    version: str
    scorer: str
    scorers: tuple[str, ...]
    endpoint: Endpoint
    params: Mapping[str, Any]
    samples: tuple[Sample, ...]
    prompt_sha256: str
    group_by: str | None = None
    canaries: str = ""
    edges: Edges | None = None


@dataclass(frozen=True)
class Draft:
    """What a task's own module makes: `params` and `scorers` before the sweep's own, the deciding scorer first."""

    version: str
    params: Mapping[str, Any]
    scorers: tuple[str, ...]
    samples: tuple[Sample, ...]
    group_by: str | None = None
    canaries: str = ""
    edges: Edges | None = None


def prompt_sha256(prompts: Iterable[str], endpoint: Endpoint, params: Mapping[str, Any]) -> str:
    """The hash of all prompts in order, the endpoint and the parameters."""
    digest = hashlib.sha256()
    for prompt in prompts:
        encoded = prompt.encode()
        # The length keeps two lists of prompts that join to the same text apart.
        digest.update(b"%d:" % len(encoded) + encoded)
    digest.update(orjson.dumps({"endpoint": endpoint, "params": dict(params)}, option=orjson.OPT_SORT_KEYS))
    return digest.hexdigest()
