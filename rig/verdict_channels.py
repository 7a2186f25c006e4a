"""What accuracy, errors and transfers say about one cell, in sentences for people who have not seen the code; pure."""

from __future__ import annotations

from collections.abc import Mapping

from rig import stats
from rig.connectors import through_storage
from rig.evidence import STORAGE
from rig.evidence_requests import FOREIGN_ENGINE
from rig.log_findings import DECODE_PREFILLED, EXPIRED_LEASE, STALE_BLOCKS
from rig.metrics import error_texts
from rig.records import CellResult, Comparison, Reason
from rig.verdict_tests import Tests, asked, failed
from rig.verdict_words import Found, bound, points, questions, sentence, worse_or_not

TAINTS = (EXPIRED_LEASE, STALE_BLOCKS, DECODE_PREFILLED, FOREIGN_ENGINE, "empty")
"""Classes of failed questions that decode did answer."""

MCNEMAR = "one-sided exact McNemar"
SIGNS = "one-sided exact sign test over the repeats of each question"
SEQUENTIAL = "e-process over the questions in random order"


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


def loaded(result: CellResult) -> tuple[Reason, ...]:
    """How much of its prompts a server that prefills loaded through its connector, or that it loaded nothing."""
    proof, sources = result.evidence, result.sources
    if sources is not None and sources.loaded:
        total = sources.cached + sources.loaded + sources.computed
        share = f"{100 * sources.loaded / total:.1f} %"
        text = f"A connector loaded {share} of the prompt tokens ({sources.loaded:,} of {total:,})."
        return (Reason("transfer", text, "cell.json: sources"),)
    found = [f for f in (proof.findings if proof else ()) if f.source == STORAGE and f.severity == "note"]
    return tuple(Reason(f.channel, sentence(f.text), f.source) for f in found)


def transfers(result: CellResult, baselines: Mapping[str, CellResult], tests: Tests) -> Found:
    """Failed transfers and expired leases beyond the baseline's; none are expected where it has none."""
    proof = result.evidence
    if result.kind != "pd" or proof is None:
        return Found("note")
    worse: list[Reason] = []
    notes: list[Reason] = []
    connector = result.labels.get("connector")
    if through_storage(connector):
        text = f"{connector} has no transfers that could fail and no leases: what it did not load, decode computed."
        return Found("note", (Reason("transfer", text, "cell.json: evidence"),))
    for event, what in (("failed", "KV transfers failed"), ("expired", "KV leases expired")):
        count = getattr(proof, event)
        if count is None:
            text = f"Whether {what} is not known: the counters are missing."
            notes.append(Reason("transfer", text, "cell.json: evidence"))
        elif event == "expired" and 0 < count <= _unread(result):
            text = f"{count} KV leases expired, no more than requests failed before decode had read."
            notes.append(Reason("transfer", text, "cell.json: evidence"))
        elif count:
            reason, is_worse = _excess_events(event, f"{count} {what}", result, baselines, tests)
            (worse if is_worse else notes).append(reason)
    return worse_or_not(worse, notes)


def _unread(result: CellResult) -> int:
    """Requests that failed in a way that leaves prefill's blocks unread: their leases run out for no other reason."""
    canaries = result.evidence.canaries if result.evidence else None
    questions = sum(k for name, k in result.counts.error.items() if name not in TAINTS) if result.counts else 0
    return questions + (canaries.error if canaries else 0)


def _excess_events(
    event: str, what: str, result: CellResult, baselines: Mapping[str, CellResult], tests: Tests
) -> tuple[Reason, bool]:
    source = "cell.json: evidence"
    reference = {name: getattr(base.evidence, event, None) for name, base in baselines.items()}
    # A monolithic server transfers nothing, so its missing count is a real 0; so is a sound deployment's.
    clean = [name for name, count in reference.items() if not count]
    if clean or not reference:
        beside = f", none on {', '.join(clean)}" if clean else "; a sound deployment has none"
        return Reason("transfer", f"{what}{beside}.", source), True
    for name, theirs in reference.items():
        if tests.alarms(f"{event}/{name}"):
            shown = tests.shown(f"{event}/{name}", "one-sided test of two Poisson counts")
            over = f"{what} over {questions(asked(result.counts))}, {theirs} over {asked(baselines[name].counts)}"
            return Reason("transfer", f"{over} on {name}: more than chance explains ({shown}).", source), True
    beside = ", ".join(f"{k} on {name}" for name, k in reference.items())
    return Reason("transfer", f"{what}, {beside}: no more than chance explains.", source), False


def errors(result: CellResult, baselines: Mapping[str, CellResult], tests: Tests) -> Found:
    """Questions that failed, against each baseline's."""
    mine, total = failed(result.counts), asked(result.counts)
    if result.counts is None or not mine:
        return Found("note")
    here = f"{mine} of {questions(total)} failed here ({', '.join(error_texts(result.counts))})"
    notes: list[Reason] = []
    for name, base in baselines.items():
        if not tests.has(f"errors/{name}"):
            continue
        beside = f"{here}, {failed(base.counts)} of {asked(base.counts)} on {name}"
        shown = tests.shown(f"errors/{name}", "one-sided Fisher exact")
        if tests.alarms(f"errors/{name}"):
            text = f"{beside}: more than chance explains ({shown})."
            return worse_or_not([Reason("errors", text, "requests.jsonl")])
        notes.append(Reason("errors", f"{beside}: no more than chance explains ({shown}).", "requests.jsonl"))
    return Found("note", tuple(notes) or (Reason("errors", f"{here}.", "requests.jsonl"),))


def accuracy(result: CellResult, comparison: Comparison, tests: Tests) -> Found:
    """The paired comparison with one baseline: worse, shown to be no worse than the margin, better, or open."""
    gates, c = result.gates, comparison
    source = f"pairs.{c.baseline}.jsonl"
    if c.n == 0 or c.delta is None or c.p_value is None or c.upper_drop is None:
        text = f"No question has a usable answer both here and on {c.baseline}, so accuracy cannot be compared."
        return Found("inconclusive", (Reason("accuracy", text, source),))
    facts = _facts(result, c)
    margin, confidence = points(gates.max_accuracy_drop), f"{100 * (1 - gates.alpha):g} %"
    shown = tests.shown(f"accuracy/{c.baseline}", _method(result, c))
    if tests.alarms(f"accuracy/{c.baseline}"):
        text = (
            f"Accuracy is worse than on {c.baseline}. {facts} So many more losses than gains are not chance ({shown})."
        )
        return worse_or_not([Reason("accuracy", text, source)])
    if c.upper_drop >= gates.max_accuracy_drop:
        more = (
            f"About {c.more_questions:,} more questions would decide if flips keep coming at this rate."
            if c.more_questions
            else f"Not even {stats.QUESTIONS_CAP:,} questions would decide at this rate."
        )
        text = (
            f"Accuracy is not decided against {c.baseline}. {facts} The true drop may be as large as "
            f"{bound(c.upper_drop, margin)} ({confidence} confidence), above the margin of {margin}, and no drop is "
            f"shown either ({shown}). {more}"
        )
        return Found("inconclusive", (Reason("accuracy", text, source),))
    limit = (
        f"the true drop is below {bound(c.upper_drop, margin)}"
        if c.upper_drop > 0
        else f"the true gain is above {points(-c.upper_drop)}"
    )
    gain = stats.mcnemar_no_gain(c.b, c.c)
    if gain <= gates.alpha and result.sequential is None:
        text = (
            f"Accuracy is better than on {c.baseline}. {facts} So many more gains than losses are not chance "
            f"({MCNEMAR} p = {gain:.2g}, level {gates.alpha:g}); {limit} ({confidence} confidence)."
        )
        return Found("improved", (Reason("accuracy", text, source),))
    text = (
        f"Accuracy is shown not to be worse than on {c.baseline} by {margin}, the margin. {facts} With {confidence} "
        f"confidence {limit}.{_sensitivity(result, c)}"
    )
    return Found("pass", (Reason("accuracy", text, source),))


def _method(result: CellResult, c: Comparison) -> str:
    if result.sequential is not None:
        return SEQUENTIAL
    return MCNEMAR if c.repeats == 1 else SIGNS


def _facts(result: CellResult, c: Comparison) -> str:
    change = f"change {100 * (c.delta or 0):+.2f} points"
    if c.ci95:
        change += f", 95 % interval {100 * c.ci95[0]:+.2f} to {100 * c.ci95[1]:+.2f}"
    left_out = asked(result.counts) - c.n
    beside = f"; {left_out} more left out, as one side has no usable answer" if left_out > 0 else ""
    agreement = "" if c.output_agreement is None else f" {100 * c.output_agreement:.1f} % of the texts are equal."
    early = result.sequential
    stopped = (
        f" It stopped after {early.asked:,} of {early.planned:,} questions, as the verdict was decided."
        if early is not None and early.decided is not None and early.asked < early.planned
        else ""
    )
    return (
        f"Of {questions(c.n)} answered on both sides, {c.b} {'was' if c.b == 1 else 'were'} right only there and "
        f"{c.c} only here ({change}{beside}).{agreement}{stopped}"
    )


def _sensitivity(result: CellResult, c: Comparison) -> str:
    if c.min_detectable_drop is None or result.sequential is not None:
        return ""
    return (
        f" A true drop of {points(c.min_detectable_drop)} or more would have been found with at least "
        f"{100 * stats.POWER:g} % chance."
    )
