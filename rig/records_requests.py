"""The shapes of single requests after judging: legs, judged records, canaries, pairs. No logic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["correct", "wrong", "unparsed", "truncated", "unscored", "error"]
"""`unscored`: an answer to a question that has no right one."""
CanaryOutcome = Literal["right", "wrong", "crossed", "error"]

ITSELF = "itself"
"""The name under which a baseline's further rounds are held against its first: the noise floor."""


@dataclass(frozen=True)
class Judged:
    """One request after scoring: a line of `judged.jsonl`.

    `target` is what the deciding scorer reads in `target_text`, the reference answer as the task has it. `repeat`
    counts from 0. What `tainted` names is an infrastructure fault: the outcome is `error` then, whatever the text says.
    """

    request_id: str
    sample_id: str
    scorer: str
    answer: str | None
    target: str | None
    outcome: Outcome
    tainted: tuple[str, ...] = ()
    by_scorer: dict[str, Outcome] = field(default_factory=dict)
    target_text: str | None = None
    repeat: int = 0


@dataclass(frozen=True)
class JudgedCanary:
    """One canary after scoring: a line of `canaries.jsonl`.

    `crossed`: the answer holds the code of another canary of the cell, `crossed_with`. `concurrency` counts the
    requests in flight when it was admitted, itself included; `order` is its place in order of arrival, from 0;
    `position` the place of the code in the prompt, 0 to 1.
    """

    request_id: str
    sample_id: str
    expected: str
    answer: str | None
    outcome: CanaryOutcome
    crossed_with: str | None = None
    repeat: int = 0
    order: int | None = None
    concurrency: int | None = None
    prompt_tokens: int | None = None
    position: float | None = None


@dataclass(frozen=True)
class Pair:
    """One question on both sides: a line of `pairs.<baseline>.jsonl`.

    `first_token` is the first position at which the token ids differ (None: they are equal, or unknown), `shift` the
    smallest change of a token's logprob, in nats, that explains what both sides show (rig.divergence). The rest
    describes the cell's request: its place in order of arrival from 0, requests in flight at its admission, prompt
    tokens, their remainder modulo the block size, who served it, and the request that ended last before it
    began: which one, and how many ms before.
    """

    sample_id: str
    request_id: str
    baseline_request_id: str
    outcome: Outcome
    baseline_outcome: Outcome
    repeat: int = 0
    equal: bool | None = None
    first_token: int | None = None
    shift: float | None = None
    order: int | None = None
    concurrency: int | None = None
    prompt_tokens: int | None = None
    block_remainder: int | None = None
    prefill: str | None = None
    decode: str | None = None
    since_finish_ms: float | None = None
    predecessor: str | None = None


@dataclass(frozen=True)
class Leg:
    """One upstream request of a hand-off: a line of `legs.jsonl`. Times are unix seconds."""

    request_id: str
    leg: Literal["prefill", "decode"]
    instance: str
    engine_request_id: str | None
    engine_id: str | None
    status: int | None
    t_start: float
    t_first_byte: float | None
    t_end: float
    params_present: bool | None
    error: dict[str, str] | None
