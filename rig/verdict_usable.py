"""Why a cell, or a baseline, cannot be judged at all; pure."""

from __future__ import annotations

from rig.metrics import RIGS_OWN, error_texts
from rig.records import CellResult, Reason
from rig.verdict_tests import asked, scored
from rig.verdict_words import classes, questions, sentence


def invalid(result: CellResult) -> tuple[Reason, ...]:
    """Why the run cannot speak about a cell at all; empty when it can."""
    reasons: list[Reason] = []
    if result.status == "interrupted":
        reasons.append(Reason("rig", "The run was interrupted before this cell was done."))
    elif result.status == "invalid" and result.failure:
        reasons.append(Reason("rig", f"The cell could not be evaluated: {result.failure}"))
    own = {name: k for name, k in result.counts.error.items() if name in RIGS_OWN} if result.counts else {}
    if own:
        text = (
            f"{questions(sum(own.values()))} failed through the rig's own fault ({classes(own)}), not the "
            "deployment's: the numbers are incomplete."
        )
        reasons.append(Reason("rig", text, "requests.jsonl"))
    proof = result.evidence
    reasons += [
        Reason(f.channel, sentence(f.text), f.source)
        for f in (proof.findings if proof else ())
        if f.severity == "invalid"
    ]
    if result.kind == "pd" and not (proof and proof.pd_exercised) and not reasons:
        text = "Nothing proves that the KV cache moved from prefill to decode, so the numbers may be decode's alone."
        reasons.append(Reason("transfer", text, "cell.json: evidence"))
    if not reasons and (result.counts is None or asked(result.counts) == 0):
        reasons.append(Reason("rig", "No question was asked."))
    if not reasons and result.kind == "monolithic" and result.counts and not scored(result.counts):
        why = ", ".join(error_texts(result.counts))
        text = f"None of {questions(asked(result.counts))} has a usable answer ({why})."
        reasons.append(Reason("errors", text, "requests.jsonl"))
    canaries = proof.canaries if proof else None
    if result.kind == "monolithic" and canaries and canaries.crossed:
        text = (
            f"{canaries.crossed} of {canaries.sent} canaries came back with another one's code on a server that shares "
            "its KV with nobody: what it answers cannot be a measure."
        )
        reasons.append(Reason("damage", text, "canaries.jsonl"))
    return tuple(reasons)


def unusable(name: str, base: CellResult | None) -> tuple[Reason, ...]:
    """Why a baseline cannot be used; empty when it can."""
    if base is None:
        why = "it has no result"
    elif base.status != "ok":
        why = base.failure or f"its status is {base.status}"
    elif base.verdict is not None and base.verdict.state in ("invalid", "failed"):
        why = base.verdict.reasons[0].text if base.verdict.reasons else f"it is {base.verdict.state}"
    elif base.counts is None or not scored(base.counts):
        why = "it answered no question"
    else:
        return ()
    return (Reason("rig", f"The baseline {name} cannot be used: {sentence(why)}", f"cells/{name}/cell.json"),)


def otherwise_scored(name: str, base: CellResult | None, result: CellResult) -> tuple[Reason, ...]:
    """Why a baseline's outcomes mean something else than the cell's: another scorer, or another version of it."""
    theirs, mine = base.task if base else None, result.task
    if theirs is None or mine is None or theirs.scorer_sha256 == mine.scorer_sha256:
        return ()
    which = "another version of it" if theirs.scorer == mine.scorer else theirs.scorer
    text = (
        f"The baseline {name} cannot be used: this cell was scored by {mine.scorer}, the baseline by {which}. Where "
        "both are of one run, `pdrig sweep --resume` judges both anew from what was answered; else score the stored "
        f"texts of both again, with `pdrig rescore RUN --scorer {mine.scorer}`, then `pdrig compare --scorer "
        f"{mine.scorer}`."
    )
    return (Reason("rig", text, f"cells/{name}/cell.json"),)
