"""What latencies and throughput say, where a bound is given; pure."""

from __future__ import annotations

from collections.abc import Mapping

from rig.records import CellResult, Ratio, Reason
from rig.verdict_tests import Tests, speed_channel, warm
from rig.verdict_words import Found, worse_or_not

BOOTSTRAP = "one-sided bootstrap"
WORDS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E latency"}


def speed(result: CellResult, baselines: Mapping[str, CellResult], tests: Tests) -> Found:
    """Ratios beyond their bounds, and single requests far beyond the baseline's p99."""
    worse: list[Reason] = []
    notes: list[Reason] = []
    for comparison in result.comparisons:
        name = comparison.baseline
        if name not in baselines:
            continue
        gated = [r for r in comparison.ratios if r.gate is not None]
        if (gated or comparison.slow) and not (warm(result) and warm(baselines[name])):
            text = f"Its speed is not judged against {name}: one of the two was cold (no warm-up)."
            notes.append(Reason("latency", text, "cell.json: warmup_requests"))
            continue
        notes += _unjudged(result, baselines[name], name, {ratio.metric for ratio in gated})
        for ratio in gated:
            if tests.alarms(f"{ratio.metric}/{name}"):
                worse.append(_ratio(ratio, name, tests))
        for slow in comparison.slow:
            test = f"slow_{slow.metric}/{name}"
            if tests.alarms(test):
                text = (
                    f"{slow.k} of {slow.n} requests had a {WORDS[slow.metric]} above {slow.limit_ms:.0f} ms, "
                    f"{slow.factor:g} times the p99 of {name}, where {slow.base_k} of {slow.base_n} had "
                    f"({tests.shown(test, 'one-sided Fisher exact')})."
                )
                worse.append(Reason("latency", text, "requests.jsonl"))
    return worse_or_not(worse, notes)


def _unjudged(result: CellResult, base: CellResult, name: str, tested: set[str]) -> list[Reason]:
    """The bounds that could not be held against a baseline: too few requests on one side, or no times at all."""
    gates = result.gates
    bounds = {"ttft_p50": gates.max_ttft_ratio, "tpot_p50": gates.max_tpot_ratio, "e2e_p50": gates.max_e2e_ratio}
    bounds["requests_per_s"] = gates.min_throughput_ratio
    missing = [metric for metric, bound in bounds.items() if bound is not None and metric not in tested]
    if not missing or result.kind != base.kind:
        return []
    text = f"{', '.join(missing)} cannot be held to a bound against {name}: too few requests, or no times are known."
    return [Reason("latency", text, "cell.json: comparisons")]


def _ratio(ratio: Ratio, name: str, tests: Tests) -> Reason:
    channel = speed_channel(ratio.metric)
    metric, _, statistic = ratio.metric.partition("_")
    what = "Throughput (requests/s)" if channel == "throughput" else f"{WORDS[metric]} ({statistic})"
    beyond = "below" if channel == "throughput" else "above"
    text = (
        f"{what} is {ratio.value:.2f} times that of {name} (95 % interval {ratio.ci95[0]:.2f} to {ratio.ci95[1]:.2f}), "
        f"{beyond} the bound of {ratio.gate:g} ({tests.shown(f'{ratio.metric}/{name}', BOOTSTRAP)})."
    )
    return Reason(channel, text, "requests.jsonl")
