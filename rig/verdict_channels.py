"""What each channel says about one cell, in sentences for people who have not seen the code; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rig import stats
from rig.metrics import RIGS_OWN, error_texts
from rig.records import CellResult, Comparison, Counts, Reason

ChannelState = Literal["regression", "inconclusive", "improved", "pass", "note"]


@dataclass(frozen=True)
class Found:
    """One channel's word; `note` is worth knowing and decides nothing."""

    state: ChannelState
    reasons: tuple[Reason, ...] = ()


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
            f"{_questions(sum(own.values()))} failed through the rig's own fault ({_classes(own)}), not the "
            "deployment's: the numbers are incomplete."
        )
        reasons.append(Reason("rig", text, "requests.jsonl"))
    proof = result.evidence
    reasons += [
        Reason(f.channel, _sentence(f.text), f.source)
        for f in (proof.findings if proof else ())
        if f.severity == "invalid"
    ]
    if result.kind == "pd" and not (proof and proof.pd_exercised) and not reasons:
        text = "Nothing proves that the KV cache moved from prefill to decode, so the numbers may be decode's alone."
        reasons.append(Reason("transfer", text, "cell.json: evidence"))
    if not reasons and (result.counts is None or _asked(result.counts) == 0):
        reasons.append(Reason("rig", "No question was asked."))
    if not reasons and result.kind == "monolithic" and result.counts and not _scored(result.counts):
        why = ", ".join(error_texts(result.counts))
        text = f"None of {_questions(_asked(result.counts))} has a usable answer ({why})."
        reasons.append(Reason("errors", text, "requests.jsonl"))
    return tuple(reasons)


def unusable(name: str, base: CellResult | None) -> tuple[Reason, ...]:
    """Why a baseline cannot be used; empty when it can."""
    if base is None:
        why = "it has no result"
    elif base.status != "ok":
        why = base.failure or f"its status is {base.status}"
    elif base.verdict is not None and base.verdict.state in ("invalid", "failed"):
        why = base.verdict.reasons[0].text if base.verdict.reasons else f"it is {base.verdict.state}"
    elif base.counts is None or not _scored(base.counts):
        why = "it answered no question"
    else:
        return ()
    return (Reason("rig", f"The baseline {name} cannot be used: {_sentence(why)}", f"cells/{name}/cell.json"),)


def otherwise_scored(name: str, base: CellResult | None, result: CellResult) -> tuple[Reason, ...]:
    """Why a baseline's outcomes mean something else than the cell's: another scorer, or another version of it."""
    theirs, mine = base.task if base else None, result.task
    if theirs is None or mine is None or theirs.scorer_sha256 == mine.scorer_sha256:
        return ()
    which = "another version of it" if theirs.scorer == mine.scorer else theirs.scorer
    text = (
        f"The baseline {name} cannot be used: this cell was scored by {mine.scorer}, the baseline by {which}. "
        "Score the stored texts of both again with `pdrig rescore`, or run the baseline again."
    )
    return (Reason("rig", text, f"cells/{name}/cell.json"),)


def moved(result: CellResult) -> tuple[Reason, ...]:
    """What proves that the KV cache moved, as far as counters say."""
    proof = result.evidence
    if result.kind != "pd" or proof is None or not proof.pd_exercised:
        return ()
    parts = []
    if proof.transfers is not None:
        parts.append(f"{proof.transfers:,} transfers")
    if proof.bytes is not None:
        parts.append(f"{proof.bytes:,} bytes")
    if proof.external_tokens is not None:
        parts.append(f"{proof.external_tokens:,} prompt tokens came from prefill")
    if proof.local_tokens is not None:
        parts.append(f"{proof.local_tokens:,} were computed by decode")
    counted = f" ({', '.join(parts)})" if parts else ""
    text = f"The KV cache of every answered request moved from prefill to decode{counted}."
    return (Reason("transfer", text, "cell.json: evidence"),)


def damage(result: CellResult) -> Found:
    """Findings that show damage, and canaries that came back with another request's answer."""
    proof = result.evidence
    if proof is None:
        return Found("note")
    reasons = [Reason(f.channel, _sentence(f.text), f.source) for f in proof.findings if f.severity == "damage"]
    if proof.canaries and proof.canaries.crossed:
        text = (
            f"{proof.canaries.crossed} of {proof.canaries.sent} canaries came back with the code of another "
            "request: KV of one request reached another."
        )
        reasons.append(Reason("damage", text, "requests.jsonl"))
    return Found("regression", tuple(reasons)) if reasons else Found("note")


def transfers(result: CellResult, baselines: Mapping[str, CellResult]) -> Found:
    """Failed transfers and expired leases beyond the baseline's; none are expected where it has none."""
    proof = result.evidence
    if result.kind != "pd" or proof is None:
        return Found("note")
    worse: list[Reason] = []
    notes: list[Reason] = []
    for what, count in (("KV transfers failed", proof.failed), ("KV leases expired", proof.expired)):
        if count is None:
            text = f"Whether {what} is not known: the counters are missing."
            notes.append(Reason("transfer", text, "cell.json: evidence"))
        elif count:
            reasons, is_worse = _excess_events(what, count, result, baselines)
            (worse if is_worse else notes).extend(reasons)
    return Found("regression", (*worse, *notes)) if worse else Found("note", tuple(notes))


def _excess_events(
    what: str, count: int, result: CellResult, baselines: Mapping[str, CellResult]
) -> tuple[list[Reason], bool]:
    source = "cell.json: evidence"
    reference = {name: _events(what, base) for name, base in baselines.items()}
    if not all(reference.values()) or not reference:
        clean = [name for name, k in reference.items() if not k]
        beside = f", none on {', '.join(clean)}" if clean else "; a sound deployment has none"
        return [Reason("transfer", f"{count} {what}{beside}.", source)], True
    mine = _asked(result.counts)
    for name, theirs in reference.items():
        total = _asked(baselines[name].counts)
        p = stats.event_excess(count, mine, theirs, total)
        if p <= result.gates.alpha:
            text = (
                f"{count} {what} over {_questions(mine)}, {theirs} over {total} on {name}: more than chance "
                f"explains (one-sided {_p(p)}, level {result.gates.alpha:g})."
            )
            return [Reason("transfer", text, source)], True
    beside = ", ".join(f"{k} on {name}" for name, k in reference.items())
    return [Reason("transfer", f"{count} {what}, {beside}: no more than chance explains.", source)], False


def _events(what: str, base: CellResult) -> int:
    """A monolithic server transfers nothing, so its missing count is a real 0; so is a sound deployment's."""
    proof = base.evidence
    count = None if proof is None else proof.failed if what == "KV transfers failed" else proof.expired
    return count or 0


def errors(result: CellResult, baselines: Mapping[str, CellResult]) -> Found:
    """Questions that failed, against each baseline's (one-sided Fisher exact)."""
    mine, total = _failed(result.counts), _asked(result.counts)
    if result.counts is None or not mine:
        return Found("note")
    here = f"{mine} of {_questions(total)} failed here ({', '.join(error_texts(result.counts))})"
    notes: list[Reason] = []
    for name, base in baselines.items():
        theirs, base_total = _failed(base.counts), _asked(base.counts)
        p = stats.fisher_excess(mine, total, theirs, base_total)
        beside = f"{here}, {theirs} of {base_total} on {name}"
        shown = f"one-sided Fisher exact {_p(p)}, level {result.gates.alpha:g}"
        if p <= result.gates.alpha:
            text = f"{beside}: more than chance explains ({shown})."
            return Found("regression", (Reason("errors", text, "requests.jsonl"),))
        notes.append(Reason("errors", f"{beside}: no more than chance explains ({shown}).", "requests.jsonl"))
    return Found("note", tuple(notes) or (Reason("errors", f"{here}.", "requests.jsonl"),))


def accuracy(result: CellResult, comparison: Comparison) -> Found:
    """The paired comparison with one baseline: worse, shown to be no worse than the margin, better, or open."""
    gates, c = result.gates, comparison
    if c.n == 0 or c.delta is None or c.p_value is None or c.upper_drop is None:
        text = f"No question has a usable answer both here and on {c.baseline}, so accuracy cannot be compared."
        return Found("inconclusive", (Reason("accuracy", text, "judged.jsonl"),))
    facts = _facts(result, c)
    margin, confidence = _points(gates.max_accuracy_drop), f"{100 * (1 - gates.alpha):g} %"
    if c.p_value <= gates.alpha:
        text = (
            f"Accuracy is worse than on {c.baseline}. {facts} So many more losses than gains are not chance "
            f"(one-sided exact McNemar {_p(c.p_value)}, level {gates.alpha:g})."
        )
        return Found("regression", (Reason("accuracy", text, "judged.jsonl"),))
    if c.upper_drop >= gates.max_accuracy_drop:
        more = (
            f"About {c.more_questions:,} more questions would decide if flips keep coming at this rate."
            if c.more_questions
            else f"Not even {stats.QUESTIONS_CAP:,} questions would decide at this rate."
        )
        text = (
            f"Accuracy is not decided against {c.baseline}. {facts} The true drop may be as large as "
            f"{_bound(c.upper_drop, margin)} ({confidence} confidence), above the margin of {margin}, and no drop is "
            f"shown either (one-sided exact McNemar {_p(c.p_value)}, level {gates.alpha:g}). {more}"
        )
        return Found("inconclusive", (Reason("accuracy", text, "judged.jsonl"),))
    bound = (
        f"the true drop is below {_bound(c.upper_drop, margin)}"
        if c.upper_drop > 0
        else f"the true gain is above {_points(-c.upper_drop)}"
    )
    gain = stats.mcnemar_no_gain(c.b, c.c)
    if gain <= gates.alpha:
        text = (
            f"Accuracy is better than on {c.baseline}. {facts} So many more gains than losses are not chance "
            f"(one-sided exact McNemar {_p(gain)}, level {gates.alpha:g}); {bound} ({confidence} confidence)."
        )
        return Found("improved", (Reason("accuracy", text, "judged.jsonl"),))
    text = (
        f"Accuracy is shown not to be worse than on {c.baseline} by {margin}, the margin. {facts} With {confidence} "
        f"confidence {bound}.{_sensitivity(c)}"
    )
    return Found("pass", (Reason("accuracy", text, "judged.jsonl"),))


def _facts(result: CellResult, c: Comparison) -> str:
    change = f"change {100 * (c.delta or 0):+.2f} points"
    if c.ci95:
        change += f", 95 % interval {100 * c.ci95[0]:+.2f} to {100 * c.ci95[1]:+.2f}"
    left_out = _asked(result.counts) - c.n
    beside = f"; {left_out} more left out, as one side has no usable answer" if left_out > 0 else ""
    agreement = "" if c.output_agreement is None else f" {100 * c.output_agreement:.1f} % of the texts are equal."
    return (
        f"Of {_questions(c.n)} answered on both sides, {c.b} {'was' if c.b == 1 else 'were'} right only there and "
        f"{c.c} only here ({change}{beside}).{agreement}"
    )


def _sensitivity(c: Comparison) -> str:
    if c.min_detectable_drop is None:
        return ""
    return (
        f" A true drop of {_points(c.min_detectable_drop)} or more would have been found with at least "
        f"{100 * stats.POWER:g} % chance."
    )


def _asked(counts: Counts | None) -> int:
    return _scored(counts) + (sum(counts.error.values()) if counts else 0)


def _scored(counts: Counts | None) -> int:
    return counts.correct + counts.wrong + counts.unparsed + counts.truncated if counts else 0


def _failed(counts: Counts | None) -> int:
    """Errors of the deployment; the rig's own are not among them."""
    return sum(k for name, k in counts.error.items() if name not in RIGS_OWN) if counts else 0


def _questions(k: int) -> str:
    return f"{k:,} question{'' if k == 1 else 's'}"


def _classes(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {k}" for name, k in sorted(errors.items(), key=lambda item: (-item[1], item[0])))


def _points(share: float) -> str:
    return f"{100 * share:.2f} points"


def _bound(share: float, margin: str) -> str:
    """A bound in points, with more digits where two would make it look equal to the margin."""
    return f"{100 * share:.4f} points" if _points(share) == margin else _points(share)


def _p(p: float) -> str:
    return f"p = {p:.2g}" if p >= 0.0001 else "p < 0.0001"


def _sentence(text: str) -> str:
    capital = text[:1].upper() + text[1:]
    return capital if capital.endswith((".", "!", "?")) else f"{capital}."
