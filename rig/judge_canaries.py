"""Canaries from raw records to judged ones; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from evals.canaries import Canary, check
from evals.records import RequestRecord
from rig.pairs import Moments
from rig.records import Canaries, JudgedCanary


def judge_canaries(
    records: Sequence[RequestRecord], canaries: Mapping[tuple[str, int], Canary], taints: Mapping[str, tuple[str, ...]]
) -> list[JudgedCanary]:
    """Hold each canary's answer against its code, and against the codes of all others of the cell.

    `records` are all of the cell's, questions too; `canaries` by sample id and repeat. A tainted answer counts as none.
    """
    moments = Moments(records)
    owners = {canary.code: sample for (sample, _), canary in canaries.items()}
    judged = []
    for order, record in enumerate(sorted(records, key=lambda r: (r.t_submit, r.request_id))):
        canary = canaries.get((record.sample_id, record.repeat))
        if record.kind != "canary" or canary is None:
            continue
        found = JudgedCanary(
            record.request_id,
            record.sample_id,
            canary.code,
            None,
            "error",
            repeat=record.repeat,
            order=order,
            concurrency=moments.in_flight(record),
            prompt_tokens=record.prompt_tokens,
            position=canary.position,
        )
        # An answer that ends before its first word has lost the code as surely as one with other words.
        answered = record.error is None or record.error.error_class == "empty"
        if answered and record.request_id not in taints:
            outcome, answer, owner = check(canary, record.text, owners)
            found = replace(found, outcome=outcome, answer=answer, crossed_with=owner)
        judged.append(found)
    return judged


def count_canaries(judged: Sequence[JudgedCanary]) -> Canaries | None:
    """How the canaries came back; None when none were asked."""
    if not judged:
        return None
    outcomes = [j.outcome for j in judged]
    answered = [j for j in judged if j.outcome != "error"]
    lost_by = {
        "position": _thirds(answered, "position", lambda low, high: f"{100 * low:.0f} to {100 * high:.0f} %"),
        "length": _thirds(answered, "prompt_tokens", lambda low, high: f"{low:.0f} to {high:.0f} tokens"),
        "concurrency": _thirds(answered, "concurrency", lambda low, high: f"{low:.0f} to {high:.0f} in flight"),
    }
    return Canaries(
        sent=len(judged),
        wrong=outcomes.count("wrong"),
        crossed=outcomes.count("crossed"),
        error=outcomes.count("error"),
        lost_by={name: parts for name, parts in lost_by.items() if parts},
    )


def _thirds(
    judged: Sequence[JudgedCanary], what: str, named: Callable[[float, float], str]
) -> dict[str, tuple[int, int]]:
    """Lost and answered canaries by thirds of a figure; equal figures stay in one part."""
    known = sorted(((v, j) for j in judged if (v := getattr(j, what)) is not None), key=lambda one: one[0])
    values = [value for value, _ in known]
    parts: dict[str, tuple[int, int]] = {}
    start = 0
    for end in (len(known) // 3, 2 * len(known) // 3, len(known)):
        while 0 < end < len(known) and values[end] == values[end - 1]:
            end += 1
        if end > start:
            part = [j for _, j in known[start:end]]
            lost = sum(j.outcome != "right" for j in part)
            parts[named(values[start], values[end - 1])] = (lost, len(part))
            start = end
    return parts
