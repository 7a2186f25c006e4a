"""What counters and legs prove about one evaluation. Pure.

A pass needs proof that every answered request's KV cache came from the prefill side: a transfer for each,
prompt tokens from outside equal to the prompt tokens less what decode recomputes, and a prefill leg that
handed over its parameters. Which series prove a transfer belongs to the connector (`rig.connectors`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evals.records import RequestRecord
from rig import series as c
from rig.connectors import OFFLOADING, Adapter, adapter, through_storage, why_none
from rig.evidence_common import deltas, not_given_back, total_of, unreadable, who_answered
from rig.evidence_storage import stored
from rig.records import Evidence, Finding, Leg, PromptSources
from rig.series import Reading

RECOMPUTED_PER_REQUEST = 1
"""Prompt tokens that decode computes itself after a full hand-off: the last one (vLLM 0.32)."""

STORAGE = "cell.json: sources"
"""Where it stands how much came from a connector's storage."""


@dataclass(frozen=True)
class Shape:
    """What of a deployment matters to its evidence.

    `inside` are the children of a MultiConnector; `decode_keeps` says that decode holds blocks for a next turn,
    `recomputes` that it prefills by itself what it failed to load (kv_load_failure_policy).
    """

    connector: str | None
    prefill_tp: int
    decode_tp: int
    inside: tuple[str, ...] = ()
    decode_keeps: bool = False
    recomputes: bool = False


def monolithic(before: Sequence[Reading], after: Sequence[Reading], idle: bool = True) -> Evidence:
    """Evidence of a server that answers alone: counters are kept, nothing had to move. `idle`: it was, at `after`."""
    held = tuple(not_given_back(before, after)) if idle else ()
    findings = (*held, *_offloaded(before, after))
    return Evidence(pd_exercised=None, findings=findings, counters=deltas(before, after))


def disaggregated(
    shape: Shape,
    before: Sequence[Reading],
    after: Sequence[Reading],
    records: Iterable[RequestRecord],
    legs: Iterable[Leg] | None,
    under_way: int | None = None,
) -> Evidence:
    """Judge whether the KV cache of every answered request moved.

    `records` are the requests between the two readings, `legs` the proxy's legs of at least those (None: a proxy
    that is not ours, whose log is not at hand). `under_way` is None where the engines were idle at `after`; else the
    reading fell within the evaluation, when so many more requests had been begun: each may have moved its KV or not.
    """
    delta = deltas(before, after)
    findings: list[Finding] = []
    roles = {r.instance: r.role for r in after}
    if through_storage(shape.connector):
        return stored(before, after, list(records), legs, under_way)
    rule = adapter(shape.connector, shape.inside)
    if rule is None:
        reason = why_none(shape.connector, shape.inside)
        return Evidence(None, findings=(Finding("transfer", reason, "config", "invalid"),), counters=delta)

    def total(name: str, role: str | None = None) -> int | None:
        return total_of(delta, roles, name, role)

    asked = list(records)
    answered = [r for r in asked if r.error is None]
    transfers = total(rule.transfers, rule.transfers_on)
    external, local = total(c.EXTERNAL_TOKENS, "decode"), total(c.LOCAL_TOKENS, "decode")
    cached = total(c.CACHED_TOKENS, "decode")
    failed = _largest(total(name) for name in rule.failed)
    expired = total(rule.expired)
    late = total(rule.late_reads) if rule.late_reads else None
    findings += unreadable(before, after)
    redone = (failed or 0) if shape.recomputes else 0
    begun = len(asked) + (under_way or 0)
    findings += _transfers(rule, shape, transfers, answered, begun, redone)
    findings += _tokens(external, local, cached, answered, begun, redone)
    findings += who_answered(delta, roles, answered, legs)
    if late:
        text = f"{late} reads ended when prefill had given the blocks up: they may have been another request's by then"
        findings.append(Finding("transfer", text, "counters", "damage"))
    if failed:
        findings.append(Finding("transfer", f"{failed} transfers or notifications failed", "counters"))
    if expired:
        findings.append(Finding("transfer", f"{expired} KV leases expired before decode had read", "counters"))
    if failed is None or expired is None:
        findings.append(Finding("transfer", "the series of failed transfers or expired leases are missing", "counters"))
    if rule.offloads:
        findings += _offloaded(before, after)
    if under_way is None:
        kept = [r for r in before if not (shape.decode_keeps and r.role == "decode")]
        findings += not_given_back(kept, after)
    return Evidence(
        pd_exercised=not any(f.severity == "invalid" for f in findings),
        transfers=transfers,
        bytes=total(rule.bytes, rule.transfers_on),
        external_tokens=external,
        local_tokens=local,
        failed=failed,
        expired=expired,
        findings=tuple(findings),
        counters=delta,
    )


def prompt_sources(
    counters: Mapping[str, Mapping[str, float | None]], roles: Mapping[str, str]
) -> PromptSources | None:
    """Where prompt tokens came from on the servers that prefill; `counters` are grown as `deltas` has them.

    None where a series is missing. What a connector loads there comes from a storage: a hand-off ends in decode.
    """
    own = {instance: grown for instance, grown in counters.items() if roles.get(instance) != "decode"}
    found = [total_of(own, roles, name, None) for name in (c.CACHED_TOKENS, c.EXTERNAL_TOKENS, c.LOCAL_TOKENS)]
    cached, loaded, computed = found
    return None if cached is None or loaded is None or computed is None else PromptSources(cached, loaded, computed)


def storage(alone: bool, inside: Sequence[str], sources: PromptSources | None, pass_: int) -> tuple[Finding, ...]:
    """What a pass, from 1 on (0: there is but one), shows of a storage that the connector loads from.

    That is any connector of a server `alone`, and an OffloadingConnector `inside` a MultiConnector. A later pass that
    loaded nothing has tested the storage as little as a decode that prefills by itself tests a hand-off.
    """
    if pass_ == 1 or not (alone or OFFLOADING in inside):
        return ()
    severity: Literal["invalid", "note"] = "invalid" if pass_ else "note"
    if sources is None:
        text = "how many prompt tokens came from the connector's storage is not known: their series are missing"
        return (Finding("transfer", text, STORAGE, severity),)
    if sources.loaded:
        return ()
    text = f"{f'pass {pass_} loaded nothing' if pass_ else 'nothing was loaded'} from the connector's storage, so that "
    total = sources.cached + sources.computed
    if not pass_:
        text += "storing alone was tested: `passes: 2` asks the questions once more"
    elif sources.cached:
        text += (
            f"it was not tested: {sources.cached:,} of {total:,} prompt tokens were still in the server's own cache; "
            "make that smaller (num-gpu-blocks-override), or ask more questions"
        )
    else:
        text += (
            f"it was not tested: all {total:,} prompt tokens were computed; give the storage more room, or ask prompts "
            "that are longer than a block"
        )
    return (Finding("transfer", text, STORAGE, severity),)


def _largest(values: Iterable[int | None]) -> int | None:
    """None as soon as one is not known."""
    known = list(values)
    return None if None in known else max(v for v in known if v is not None)


def _offloaded(before: Sequence[Reading], after: Sequence[Reading]) -> list[Finding]:
    """KV that engines loaded from their own offload storage, which decode counts as external as well.

    The series begins with the first load (vLLM 0.32, offloading/metrics.py): where it was absent, nothing was loaded.
    """
    start = {r.instance: r.values.get(c.OFFLOAD_LOADED) or 0.0 for r in before}
    loaded = {r.instance: (r.values.get(c.OFFLOAD_LOADED) or 0.0) - start.get(r.instance, 0.0) for r in after}
    return [
        Finding("transfer", f"{instance} loaded {size:,.0f} bytes of KV from its own offload storage", "counters")
        for instance, size in loaded.items()
        if size > 0
    ]


def _transfers(
    rule: Adapter,
    shape: Shape,
    transfers: int | None,
    answered: Sequence[RequestRecord],
    asked: int,
    redone: int,
) -> list[Finding]:
    """One transfer a rank that reads and a rank it reads from; a request that failed may have had its own.

    Up to `redone` requests may have none: their load failed, and decode computed them again as it was told to.
    """
    if transfers is None:
        return [Finding("transfer", f"the series {rule.transfers} is missing", "counters", "invalid")]
    each = max(shape.decode_tp, shape.prefill_tp)
    low, high = each * max(len(answered) - redone, 1), each * asked
    if low <= transfers <= high:
        return []
    text = f"{transfers} KV transfers for {len(answered)} answered requests, expected {each} each"
    return [Finding("transfer", text, "counters", "invalid")]


def _tokens(
    external: int | None,
    local: int | None,
    cached: int | None,
    answered: Sequence[RequestRecord],
    asked: int,
    redone: int,
) -> list[Finding]:
    if external is None or local is None:
        return [Finding("transfer", "decode's series of prompt tokens by source are missing", "counters", "invalid")]
    if any(r.prompt_tokens is None for r in answered):
        return [Finding("transfer", "some answers did not say how many prompt tokens they had", "requests", "invalid")]
    prompt = sum(r.prompt_tokens or 0 for r in answered)
    findings = []
    again = sum(sorted((r.prompt_tokens or 0 for r in answered), reverse=True)[:redone])
    if local > RECOMPUTED_PER_REQUEST * asked + again:
        text = (
            f"decode computed {local} prompt tokens itself, more than the {RECOMPUTED_PER_REQUEST} a request "
            "that it recomputes after a hand-off: some requests were prefilled by decode"
        )
        findings.append(Finding("transfer", text, "counters", "invalid"))
    seen = external + local + (cached or 0)
    exact = len(answered) == asked and not redone
    if seen < prompt or (exact and seen != prompt):
        text = (
            f"decode counted {seen} prompt tokens ({external} transferred, {local} computed, {cached or 0} cached), "
            f"the answers {prompt}"
        )
        findings.append(Finding("transfer", text, "counters", "invalid"))
    return findings
