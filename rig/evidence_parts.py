"""Evidence of a cell that was asked in parts, on servers that were launched anew in between. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from evals.records import RequestRecord
from rig.evidence_common import LEFT_OUT, left_out
from rig.records import Evidence, Finding, Leg
from rig.series import GAUGES

MISSING_LEGS = 2
"""Legs of an answered request: prefill's and decode's."""


def together(parts: Sequence[Evidence]) -> Evidence:
    """What the parts prove together: each must prove its own. Sums are None as soon as one part lacks its number."""
    if len(parts) == 1:
        return parts[0]
    exercised = [part.pd_exercised for part in parts]
    counters = {
        instance: {name: _grown(parts, instance, name) for name in series}
        for instance, series in parts[-1].counters.items()
    }
    findings = dict.fromkeys(finding for part in parts for finding in part.findings)
    noted = [finding for finding in findings if finding.source != LEFT_OUT]
    if len(noted) < len(findings):
        # One that had its turn in another part was not left out.
        noted += left_out(counters)
    return Evidence(
        pd_exercised=None if None in exercised else all(exercised),
        transfers=_sum(part.transfers for part in parts),
        bytes=_sum(part.bytes for part in parts),
        external_tokens=_sum(part.external_tokens for part in parts),
        local_tokens=_sum(part.local_tokens for part in parts),
        failed=_sum(part.failed for part in parts),
        expired=_sum(part.expired for part in parts),
        findings=tuple(noted),
        counters=counters,
    )


def about(kept: int, under_way: int, source: str, legs: bool) -> Finding:
    """What a reader should know of answers from before a sweep was stopped; `legs`: the proxy wrote down theirs."""
    reading = f"a reading of its counters, taken while {under_way} more requests were under way,"
    proof = f"{reading} and the proxy's legs are" if legs else f"{reading} is"
    text = f"{kept} answers are of an attempt that was cut short: {proof} their proof"
    return Finding("transfer", text, source)


def unprovable(records: Iterable[RequestRecord], under_way: int) -> str | None:
    """Why a reading with so many requests under way cannot speak for the answers before it; None where it can.

    A hand-off leaves decode one token to compute, a prompt that decode prefills all of its own. Those under way may
    have computed one each: a shorter prompt could hide among them.
    """
    sizes = [r.prompt_tokens for r in records if r.error is None]
    if None in sizes:
        return "some answers did not say how many prompt tokens they had"
    shortest = min((s for s in sizes if s is not None), default=None)
    if shortest is not None and shortest - 1 <= under_way:
        return f"{under_way} requests were under way at its last reading, and its shortest prompt has {shortest} tokens"
    return None


def with_legs(records: Iterable[RequestRecord], legs: Collection[Leg] | None) -> list[RequestRecord]:
    """The records whose legs the proxy has written down, whatever they say; failed requests may have none.

    All of them where the proxy is not ours (None).
    """
    if legs is None:
        return list(records)
    known: dict[str, set[str]] = {}
    for leg in legs:
        known.setdefault(leg.request_id, set()).add(leg.leg)
    return [r for r in records if r.error is not None or len(known.get(r.request_id, ())) == MISSING_LEGS]


def _grown(parts: Sequence[Evidence], instance: str, name: str) -> float | None:
    """A counter's growth over all parts; of a gauge, that of the last."""
    if name in GAUGES:
        return parts[-1].counters[instance][name]
    known = [part.counters.get(instance, {}).get(name) for part in parts]
    return None if None in known else sum(v for v in known if v is not None)


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(v for v in known if v is not None)
