"""What legs and records say about single requests: which are tainted, who ran beside a failed one. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from evals.records import RequestRecord
from rig.log_findings import DECODE_PREFILLED
from rig.records import Finding, Judged, Leg

FOREIGN_ENGINE = "foreign_engine"

_RANK = re.compile(r"_dp\d+$")


def engine_of(leg: Leg) -> str | None:
    """The engine that answered a leg. vLLM appends `_dp` and a number for each data-parallel rank: one engine."""
    return None if leg.engine_id is None else _RANK.sub("", leg.engine_id)


def taints(
    every_leg: Iterable[Leg] | None, logged: Mapping[str, tuple[str, ...]], parameters: bool = True
) -> dict[str, tuple[str, ...]]:
    """What stands against each request's answer, by its id: of the logs (rig.log_findings), then of the legs.

    `every_leg` are all that the deployment's proxy wrote, from its first check on: each instance is the engine that
    answered there first. Where prefill answered without parameters and decode answered, decode prefilled by itself;
    not so with a connector that needs none (`parameters` false).
    """
    found: dict[str, list[str]] = {request: list(names) for request, names in logged.items()}
    first: dict[str, str] = {}
    without: set[str] = set()
    for leg in sorted(every_leg or (), key=lambda leg: leg.t_end):
        engine = engine_of(leg)
        if engine is not None and first.setdefault(leg.instance, engine) != engine:
            found.setdefault(leg.request_id, []).append(FOREIGN_ENGINE)
        if parameters and leg.leg == "prefill" and leg.error is None and leg.params_present is False:
            without.add(leg.request_id)
        if leg.leg == "decode" and leg.error is None and leg.request_id in without:
            found.setdefault(leg.request_id, []).append(DECODE_PREFILLED)
    return {request: tuple(dict.fromkeys(names)) for request, names in found.items()}


def beside_failed(judged: Sequence[Judged], records: Sequence[RequestRecord]) -> tuple[Finding, ...]:
    """How the questions fared that were in flight beside a failed request, against all others; none without failures.

    One failed hand-off has been seen to free blocks that its neighbours still wrote (vLLM #56104). `lost` are answers
    that are not right; those that failed, are tainted themselves or are not scored belong to neither group.
    """
    failed = [r for r in records if r.error is not None and r.error.leg != "client"]
    if not failed:
        return ()
    starts, ends = _merged([(r.t_submit, r.t_end) for r in failed])
    times = {r.request_id: (r.t_submit, r.t_end) for r in records}
    lost, total = [0, 0], [0, 0]
    for answer in judged:
        if answer.outcome in ("error", "unscored") or answer.request_id not in times:
            continue
        start, end = times[answer.request_id]
        at = bisect_right(starts, end) - 1
        beside = at >= 0 and ends[at] >= start
        total[beside] += 1
        lost[beside] += answer.outcome != "correct"
    if not sum(total):
        return ()
    text = (
        f"{total[True]} questions were in flight beside a failed request, and {lost[True]} of them were not answered "
        f"right; of the {total[False]} others {lost[False]}"
    )
    return (Finding("errors", text, "requests.jsonl"),)


def _merged(spans: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Starts and ends of the times that the spans cover, in order and apart from each other."""
    starts: list[float] = []
    ends: list[float] = []
    for start, end in sorted(spans):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends
