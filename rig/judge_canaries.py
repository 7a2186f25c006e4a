"""Canaries from raw records to judged ones; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    return Canaries(len(judged), outcomes.count("wrong"), outcomes.count("crossed"), outcomes.count("error"))
