"""The shapes of legs, judged records and results that everything else reads. No logic.

Requests are `evals.records.RequestRecord`. JSON keys equal the field names; times are ms unless the
name ends in `_s`; absent is None (null), never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = 1

Outcome = Literal["correct", "wrong", "unparsed", "truncated", "error"]
State = Literal["pass", "improved", "regression", "inconclusive", "no_baseline", "invalid", "failed", "xfail", "xpass"]
Channel = Literal["accuracy", "damage", "errors", "transfer", "latency", "throughput", "rig"]
Status = Literal["ok", "invalid", "failed", "interrupted"]
Role = Literal["prefill", "decode", "monolithic"]


@dataclass(frozen=True)
class Judged:
    """One request after scoring: a line of `judged.jsonl`.

    `target` is what the deciding scorer reads in `target_text`, the reference answer as the task has it.
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


@dataclass(frozen=True)
class TaskInfo:
    """What was asked, so that two results can be compared or refused."""

    name: str
    version: str
    prompt_sha256: str
    scorer: str
    scorer_sha256: str
    n: int
    params: dict[str, Any] = field(default_factory=dict)
    endpoint: Literal["completions", "chat"] = "completions"
    score_reasoning: bool = False


@dataclass(frozen=True)
class Accuracy:
    """correct / (correct + wrong + unparsed + truncated), with a Wilson interval; None when n is 0."""

    scorer: str
    value: float | None
    ci95: tuple[float, float] | None
    by_scorer: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Counts:
    """How many questions ended in each class; `error` by class, `error_by_leg` by leg and class.

    An error that names no leg is in `error` alone, and so are all those of a result that was stored before.
    """

    correct: int
    wrong: int
    unparsed: int
    truncated: int
    error: dict[str, int] = field(default_factory=dict)
    error_by_leg: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Percentiles:
    """Of one latency, in ms."""

    p50: float
    p90: float
    p99: float
    mean: float


@dataclass(frozen=True)
class Throughput:
    """Over the time from the first submit to the last end; answers that failed give no tokens."""

    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    total_output_tokens: int | None
    duration_s: float


@dataclass(frozen=True)
class Finding:
    """One thing that was noticed: in a counter, in a log, in the records."""

    channel: Channel
    text: str
    source: str
    severity: Literal["note", "damage", "invalid"] = "note"


@dataclass(frozen=True)
class Canaries:
    sent: int
    wrong: int
    crossed: int


@dataclass(frozen=True)
class Evidence:
    """What the counters and logs prove. `pd_exercised` is None where it does not apply (monolithic).

    `transfers` counts NIXL transfers (one a tensor-parallel rank and request), `bytes` their sum,
    `external_tokens` and `local_tokens` prompt tokens of decode by source, `failed` and `expired`
    transfers and leases; each over the evaluation alone.
    """

    pd_exercised: bool | None
    transfers: int | None = None
    bytes: int | None = None
    external_tokens: int | None = None
    local_tokens: int | None = None
    failed: int | None = None
    expired: int | None = None
    canaries: Canaries | None = None
    findings: tuple[Finding, ...] = ()
    counters: dict[str, dict[str, float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """A cell against one baseline, paired by question.

    `b` counts questions that only the baseline answered right, `c` those that only the cell did, `n` the
    pairs; `delta` is (c - b) / n, so a drop is negative.
    """

    baseline: str
    delta: float | None
    ci95: tuple[float, float] | None
    p_value: float | None
    b: int
    c: int
    n: int
    min_detectable_drop: float | None
    output_agreement: float | None
    first_divergence: dict[str, float] = field(default_factory=dict)
    upper_drop: float | None = None
    more_questions: int | None = None


@dataclass(frozen=True)
class Reason:
    """Why a verdict is what it is, with the file or number it rests on."""

    channel: Channel
    text: str
    evidence: str | None = None


@dataclass(frozen=True)
class Verdict:
    state: State
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class Gates:
    """What counts as worse: the margin of the accuracy drop, and the level of every test."""

    max_accuracy_drop: float = 0.02
    alpha: float = 0.05


@dataclass(frozen=True)
class CellResult:
    """All that `cell.json` holds. `retried` counts questions that took more than one attempt to connect."""

    cell_id: str
    labels: dict[str, Any]
    kind: Literal["pd", "monolithic"]
    deployment: str
    status: Status
    task: TaskInfo | None = None
    commands: dict[str, list[str]] = field(default_factory=dict)
    gates: Gates = field(default_factory=Gates)
    t0_unix: float | None = None
    warmup_requests: int | None = None
    retried: int | None = None
    accuracy: Accuracy | None = None
    counts: Counts | None = None
    latency_ms: dict[str, Percentiles] = field(default_factory=dict)
    legs_ms: dict[str, Percentiles] = field(default_factory=dict)
    throughput: Throughput | None = None
    evidence: Evidence | None = None
    comparisons: tuple[Comparison, ...] = ()
    verdict: Verdict | None = None
    failure: str | None = None
    schema: int = SCHEMA


@dataclass(frozen=True)
class RunInfo:
    """All that `run.json` holds beside the sweep itself."""

    run_id: str
    name: str
    config_file: str
    config_text: str
    resolved: dict[str, Any]
    started: str
    ended: str | None
    argv: list[str]
    versions: dict[str, str]
    host: dict[str, Any]
    git: dict[str, Any] | None
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True)
class RunResult:
    """A finished or unfinished run, as read back from its folder."""

    info: RunInfo
    cells: tuple[CellResult, ...]
    reference: tuple[dict[str, Any], ...] = ()
