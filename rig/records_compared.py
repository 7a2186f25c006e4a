"""The shapes of what comes of holding a cell against a baseline. No logic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Channel = Literal["accuracy", "damage", "errors", "transfer", "latency", "throughput", "rig"]


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
