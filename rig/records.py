"""The shapes of results that everything else reads, with those of single requests. No logic.

Requests are `evals.records.RequestRecord`. JSON keys equal the field names; times are ms unless the
name ends in `_s`; absent is None (null), never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rig.records_requests import CanaryOutcome as CanaryOutcome
from rig.records_requests import Judged as Judged
from rig.records_requests import JudgedCanary as JudgedCanary
from rig.records_requests import Leg as Leg
from rig.records_requests import Outcome as Outcome
from rig.records_requests import Pair as Pair

SCHEMA = 1

State = Literal["pass", "improved", "regression", "inconclusive", "no_baseline", "invalid", "failed", "xfail", "xpass"]
Channel = Literal["accuracy", "damage", "errors", "transfer", "latency", "throughput", "rig"]
Status = Literal["ok", "invalid", "failed", "interrupted"]
Role = Literal["prefill", "decode", "monolithic"]


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

    `unscored` are answers to questions that have no right one: they are in no accuracy.

    An error that names no leg is in `error` alone, and so are all those of a result that was stored before.
    """

    correct: int
    wrong: int
    unparsed: int
    truncated: int
    error: dict[str, int] = field(default_factory=dict)
    error_by_leg: dict[str, dict[str, int]] = field(default_factory=dict)
    unscored: int = 0


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
    """Canaries of one cell: `wrong` have another answer, `crossed` another canary's code, `error` none at all.

    `lost_by` splits those that are wrong or crossed by `position` of the code in the prompt, `length` of the prompt and
    `concurrency` at admission: for each part, lost and answered.
    """

    sent: int
    wrong: int
    crossed: int
    error: int = 0
    lost_by: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)


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
class Divergence:
    """Where outputs leave the baseline's, over `n` pairs whose token ids are known on both sides.

    `equal` whole outputs are the same; `at_zero` differ in the first token already. `position` has p10, p50 and p90
    of the first differing token among those that differ, `shift` p50, p90 and max of the shifts in nats (where
    logprobs are known: `measured` pairs); `damaged` pairs shifted by more than `threshold` nats. `histogram` counts
    pairs by the first differing token: `0`, `1-3`, `4-15`, `16+`.
    Against a baseline that was asked `rounds` times more: of the `moved` questions that any asking shifted by more than
    rig.divergence.FLOOR_NATS, the cell's own shift is the largest in `led`.
    """

    n: int
    equal: int
    at_zero: int
    measured: int = 0
    damaged: int | None = None
    threshold: float | None = None
    position: dict[str, float] = field(default_factory=dict)
    shift: dict[str, float] = field(default_factory=dict)
    histogram: dict[str, int] = field(default_factory=dict)
    rounds: int | None = None
    moved: int | None = None
    led: int | None = None


@dataclass(frozen=True)
class Segment:
    """A part of the requests that is hit more than the rest: `hits` of `n` in it, `rest_hits` of `rest_n` outside.

    `axis` says by what the requests were split (`order`, `concurrency`, ...), `value` which part it is, `of` what
    was counted: answers lost against the baseline, outputs damaged, requests failed, canaries wrong. `p_adjusted` is
    the one-sided Fisher exact p-value after Holm over all segments looked at.
    """

    axis: str
    value: str
    of: Literal["lost", "damaged", "error", "canary"]
    hits: int
    n: int
    rest_hits: int
    rest_n: int
    p_value: float
    p_adjusted: float


@dataclass(frozen=True)
class Ratio:
    """The cell's latency or throughput over the baseline's, with a bootstrap interval.

    `metric` is `ttft_p50` and the like, or `requests_per_s`; `gate` the bound it is held to, if any, and `p_value`
    the one-sided p-value of "not beyond the gate".
    """

    metric: str
    value: float
    ci95: tuple[float, float]
    n: int
    base_n: int
    gate: float | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class Slow:
    """Requests whose `metric` was above `limit_ms`, `factor` times the baseline's p99: `k` of `n`, there `base_k`.

    `p_value` is Fisher's, one-sided. A stall of a few requests shows here and in no median.
    """

    metric: str
    factor: float
    limit_ms: float
    k: int
    n: int
    base_k: int
    base_n: int
    p_value: float


@dataclass(frozen=True)
class Sequential:
    """How an evaluation that may stop early ended: after how many of the planned questions, decided as what.

    `e_drop` and `e_margin` are the e-values against "no drop" and "a drop of the margin or more".
    """

    asked: int
    planned: int
    decided: Literal["pass", "regression"] | None
    e_drop: float
    e_margin: float


@dataclass(frozen=True)
class Tested:
    """One significance test that can alarm: `p_adjusted` after correction for all those of the sweep.

    `name` is unique within its cell, such as `accuracy/whole-tiny`.
    """

    name: str
    channel: Channel
    p_value: float
    p_adjusted: float | None = None


@dataclass(frozen=True)
class Repeats:
    """A cell's questions asked several times: `wrong_any` were wrong at least once, `wrong_all` each time.

    `flipped` changed between right and not right. Questions with an error in any repeat are left out of all three.
    `bad` are the samples behind `wrong_any`.
    """

    times: int
    n: int
    wrong_any: int
    wrong_all: int
    flipped: int
    bad: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """A cell against one baseline, paired by question.

    `b` counts questions that only the baseline answered right, `c` those that only the cell did, `n` the
    pairs; `delta` is (c - b) / n, so a drop is negative. Where both sides were asked several times, `p_value` is that
    of the sign of each question's difference over the repeats (`repeats` of them), and the rest is of the first.
    Of questions without a right answer `n` counts the pairs whose texts could be compared, and `delta` is None.
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
    first_divergence: Divergence | None = None
    upper_drop: float | None = None
    more_questions: int | None = None
    repeats: int = 1
    where: tuple[Segment, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    slow: tuple[Slow, ...] = ()


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
    """What counts as worse: the margin of the accuracy drop, and the level of all the sweep's tests together.

    Latencies and throughput are gated only where a bound is given, and only against a baseline that is P/D as well:
    the largest ratio to it (of p50, of p99, and of the baseline's p99 for single slow requests), the smallest for
    throughput.
    """

    max_accuracy_drop: float = 0.02
    alpha: float = 0.05
    max_ttft_ratio: float | None = None
    max_tpot_ratio: float | None = None
    max_e2e_ratio: float | None = None
    min_throughput_ratio: float | None = None


@dataclass(frozen=True)
class Resumed:
    """A cell that was gone on with after its sweep was killed: `kept` records are from before, `again` were asked anew.

    `deployments` are the launches that answered what was kept. Latencies and throughput are of the questions begun
    from `since_s` on, in seconds from the cell's start: the gap is in none of them.
    """

    kept: int
    again: int
    deployments: tuple[str, ...]
    since_s: float


@dataclass(frozen=True)
class CellResult:
    """All that `cell.json` holds. `retried` counts questions that took more than one attempt to connect.

    `noise_floor` is a baseline held against itself, asked again in another order. `rerun_of` names the red cell
    that this one repeats on fresh servers.
    """

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
    noise_floor: Comparison | None = None
    repeats: Repeats | None = None
    sequential: Sequential | None = None
    tests: tuple[Tested, ...] = ()
    verdict: Verdict | None = None
    failure: str | None = None
    rerun_of: str | None = None
    resumed: Resumed | None = None
    schema: int = SCHEMA


@dataclass(frozen=True)
class RunInfo:
    """All that `run.json` holds beside the sweep itself.

    `engines` is what each engine's environment holds, by its name in the sweep; `server_env` the variables that were
    set for each server, by deployment and server, secrets masked.
    """

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
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    server_env: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    schema: int = SCHEMA


@dataclass(frozen=True)
class RunResult:
    """A finished or unfinished run, as read back from its folder."""

    info: RunInfo
    cells: tuple[CellResult, ...]
    reference: tuple[dict[str, Any], ...] = ()
