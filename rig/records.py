"""The shapes of results that everything else reads, with those of single requests. No logic.

Requests are `evals.records.RequestRecord`. JSON keys equal the field names; times are ms unless the
name ends in `_s`; absent is None (null), never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rig.records_compared import Channel as Channel
from rig.records_compared import Comparison as Comparison
from rig.records_compared import Divergence as Divergence
from rig.records_compared import Ratio as Ratio
from rig.records_compared import Repeats as Repeats
from rig.records_compared import Segment as Segment
from rig.records_compared import Sequential as Sequential
from rig.records_compared import Slow as Slow
from rig.records_compared import Tested as Tested
from rig.records_requests import CanaryOutcome as CanaryOutcome
from rig.records_requests import Judged as Judged
from rig.records_requests import JudgedCanary as JudgedCanary
from rig.records_requests import Leg as Leg
from rig.records_requests import Outcome as Outcome
from rig.records_requests import Pair as Pair

SCHEMA = 1

State = Literal["pass", "improved", "regression", "inconclusive", "no_baseline", "invalid", "failed", "xfail", "xpass"]
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
class Group:
    """Questions told apart by what the task says of them: `correct` of the `scored` in it."""

    name: str
    correct: int
    scored: int


@dataclass(frozen=True)
class Groups:
    """Accuracy by `axis`, such as the depth of a needle."""

    axis: str
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class PromptSources:
    """Prompt tokens on the servers that prefill, over the first asking of all questions: from their own prefix cache,
    loaded by a connector, computed."""

    cached: int
    loaded: int
    computed: int

    @property
    def hit_rate(self) -> float | None:
        """The share that was not computed."""
        total = self.cached + self.loaded + self.computed
        return (self.cached + self.loaded) / total if total else None


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
class Reason:
    """Why a verdict is what it is, with the file or number it rests on."""

    channel: Channel
    text: str
    evidence: str | None = None


@dataclass(frozen=True)
class Verdict:
    """`alarms` are the channels in which a regression was found, an expected one too, in the order of the reasons.

    None where that is not known: nothing was judged, or the rig that did so did not write it down.
    """

    state: State
    reasons: tuple[Reason, ...] = ()
    alarms: tuple[Channel, ...] | None = None


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

    Others are held against an `is_baseline`;
    `noise_floor` is one held against itself, asked again in another order. `rerun_of` names the red cell
    that this one repeats on fresh servers. `block_size` is in tokens, as the engine's metrics told it.
    `missing_baseline` says why no stored baseline could be had that was asked for, where the verdict does without.
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
    sources: PromptSources | None = None
    block_size: int | None = None
    groups: Groups | None = None
    comparisons: tuple[Comparison, ...] = ()
    noise_floor: Comparison | None = None
    repeats: Repeats | None = None
    sequential: Sequential | None = None
    tests: tuple[Tested, ...] = ()
    verdict: Verdict | None = None
    failure: str | None = None
    is_baseline: bool = False
    missing_baseline: str | None = None
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

    @property
    def planned(self) -> list[dict[str, Any]]:
        """The planned cells, each with its `id`, `labels`, `deployment` and `task`; none where that is damaged."""
        cells = self.resolved.get("cells", [])
        return [cell for cell in cells if isinstance(cell, dict)] if isinstance(cells, list) else []


@dataclass(frozen=True)
class RunResult:
    """A finished or unfinished run, as read back from its folder."""

    info: RunInfo
    cells: tuple[CellResult, ...]
    reference: tuple[dict[str, Any], ...] = ()
