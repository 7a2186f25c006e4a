"""Raw records to judged records. Pure, so that it can be run again on stored texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from evals.records import RequestRecord
from evals.scorers import get_scorer, score
from rig.errors import RunError
from rig.records import Judged, Outcome


def with_reasoning(record: RequestRecord, score_reasoning: bool) -> RequestRecord:
    """The record to score: where it is asked for and the answer has no text, its reasoning stands for the text."""
    empty = not record.text and record.reasoning is not None
    if not (score_reasoning and empty and (record.error is None or record.error.error_class == "empty")):
        return record
    return replace(record, text=record.reasoning, error=None)


def judge(
    records: Iterable[RequestRecord],
    targets: Mapping[str, str],
    scorers: Sequence[str],
    deciding: str,
    taints: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> list[Judged]:
    """Score every question by every scorer; other kinds of requests are left out.

    `targets` are the reference texts by sample id, as the task has them; `deciding` names the scorer whose
    outcome and answer count; `taints` what stands against answers, by request id. A request that failed, has no text
    at all, or is tainted is an `error` for every scorer.
    Raises RunError for a question without a target, evals.errors.BadParams for an unknown scorer.
    """
    names = list(dict.fromkeys([deciding, *scorers]))
    chosen = [get_scorer(name) for name in names]
    expected: dict[str, list[str]] = {}
    judged = []
    for record in records:
        if record.kind != "question":
            continue
        sample = record.sample_id
        if sample not in expected:
            if sample not in targets:
                raise RunError(f"the question {sample} is not one of the task's: there is nothing to score it against")
            expected[sample] = [scorer.target(targets[sample]) for scorer in chosen]
        outcomes: dict[str, Outcome]
        tainted = taints.get(record.request_id, ())
        if record.error is not None or record.text is None or tainted:
            outcomes, answer = dict.fromkeys(names, "error"), None
        else:
            scored = [
                score(scorer, record.text, record.finish_reason, target)
                for scorer, target in zip(chosen, expected[sample], strict=True)
            ]
            outcomes = {name: outcome for name, (outcome, _) in zip(names, scored, strict=True)}
            answer = scored[0][1]
        judged.append(
            Judged(
                request_id=record.request_id,
                sample_id=sample,
                scorer=deciding,
                answer=answer,
                target=expected[sample][0],
                outcome=outcomes[deciding],
                tainted=tainted,
                by_scorer=outcomes,
                target_text=targets[sample],
                repeat=record.repeat,
            )
        )
    return judged
