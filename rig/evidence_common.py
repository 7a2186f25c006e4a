"""What the proofs of every connector share: counters grown, engines that could not be read, legs, blocks kept. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from evals.records import RequestRecord
from rig import series as c
from rig.evidence_requests import engine_of
from rig.records import Finding, Leg
from rig.series import Reading, still_held

WITHOUT_LEGS = (
    "the router keeps no log of its legs for the rig: the engines' counters alone speak, and how long each leg of a "
    "request took, and on which leg one failed, is not known"
)

LEFT_OUT = "cell.json: evidence.counters"
"""Where it stands which servers a router gave no request."""


def deltas(before: Sequence[Reading], after: Sequence[Reading]) -> dict[str, dict[str, float | None]]:
    """Per instance, what each series grew by; None where it is missing on either side or went backwards."""
    start = {r.instance: r.values for r in before}
    grown: dict[str, dict[str, float | None]] = {}
    for reading in after:
        grown[reading.instance] = {}
        for name in c.WATCHED:
            old, new = start.get(reading.instance, {}).get(name), reading.values.get(name)
            backwards = old is not None and new is not None and new < old and name not in c.GAUGES
            grown[reading.instance][name] = None if old is None or new is None or backwards else new - old
    return grown


def total_of(
    delta: Mapping[str, Mapping[str, float | None]], roles: Mapping[str, str], name: str, role: str | None
) -> int | None:
    """A series summed over the instances of a role; None as soon as one of them lacks the series."""
    values = [series[name] for instance, series in delta.items() if role is None or roles[instance] == role]
    known = [v for v in values if v is not None]
    return round(sum(known)) if values and len(known) == len(values) else None


def not_given_back(before: Sequence[Reading], after: Sequence[Reading]) -> list[Finding]:
    """KV cache that is in use after the run and its leases, and was not before: blocks that nobody will free."""
    return [
        Finding(
            "transfer", f"{instance}: {100 * share:.3g} % of the KV cache was not given back after the run", c.KV_USAGE
        )
        for instance, share in still_held(before, after).items()
    ]


def unreadable(before: Sequence[Reading], after: Sequence[Reading]) -> list[Finding]:
    return [
        Finding("transfer", f"{r.instance}: counters could not be read ({r.missing})", "counters", "invalid")
        for r in (*before, *after)
        if r.missing
    ]


def who_answered(
    delta: Mapping[str, Mapping[str, float | None]],
    roles: Mapping[str, str],
    answered: Sequence[RequestRecord],
    legs: Iterable[Leg] | None,
    parameters: bool = True,
) -> list[Finding]:
    """What legs say of who answered, or, behind a router that keeps none (`legs` None), the counters alone.

    With `parameters`, prefill must have given decode some.
    """
    if legs is None:
        return [Finding("transfer", WITHOUT_LEGS, "counters"), *_counted_alone(delta, roles, answered)]
    known = list(legs)
    return [*_hand_offs(answered, known, parameters), *_strangers(known)]


def _hand_offs(answered: Sequence[RequestRecord], legs: Iterable[Leg], parameters: bool) -> list[Finding]:
    """Every answered request needs a prefill leg, with `parameters` one that gave them to decode, and a decode leg."""
    good: Counter[tuple[str, str]] = Counter()
    for leg in legs:
        whole = leg.leg == "decode" or leg.params_present or not parameters
        good[leg.request_id, leg.leg] += bool(leg.error is None and whole)
    without = [r for r in answered if not (good[r.request_id, "prefill"] and good[r.request_id, "decode"])]
    if not without:
        return []
    first = without[0].request_id
    text = f"{len(without)} answered requests have no complete hand-off in the proxy's log (first: {first})"
    return [Finding("transfer", text, "legs.jsonl", "invalid")]


def _counted_alone(
    delta: Mapping[str, Mapping[str, float | None]], roles: Mapping[str, str], answered: Sequence[RequestRecord]
) -> list[Finding]:
    """What legs would say of who answered, by counters: decode wrote every answer, and each instance had its turn.

    A hand-off that was counted is not yet the answer: a router may take that from prefill, or from another engine. An
    engine counts a token that it generates with its step, those past a stop string too, so that decode's are never
    fewer than the answers' (vLLM 0.32, v1/metrics/stats.py, `update_from_output`).
    """
    findings = []
    generated = total_of(delta, roles, c.GENERATED, "decode")
    written = sum(r.completion_tokens or 0 for r in answered)
    if generated is None:
        text = f"the series {c.GENERATED} of decode is missing: nothing shows that decode wrote the answers"
        findings.append(Finding("transfer", text, "counters", "invalid"))
    elif generated < written:
        text = f"decode generated {generated} tokens, the answers have {written}: some were not written by decode"
        findings.append(Finding("transfer", text, "counters", "invalid"))
    return [*findings, *(left_out(delta) if answered else ())]


def left_out(delta: Mapping[str, Mapping[str, float | None]]) -> list[Finding]:
    """The servers on which no request ended, where there are any."""
    idle = [name for name in sorted(delta) if delta[name][c.SUCCESS] == 0]
    if not idle:
        return []
    text = f"the router left out {', '.join(idle)}: no request ended there, so nothing here speaks of it"
    return [Finding("transfer", text, LEFT_OUT)]


def _strangers(legs: Iterable[Leg]) -> list[Finding]:
    """One address is one engine: a second id on it is another process that answers there, or a restart."""
    ids: dict[str, set[str]] = {}
    for leg in legs:
        if (engine := engine_of(leg)) is not None:
            ids.setdefault(leg.instance, set()).add(engine)
    return [
        Finding("transfer", f"{instance} answered as {len(found)} different engines", "legs.jsonl", "invalid")
        for instance, found in sorted(ids.items())
        if len(found) > 1
    ]
