"""What canaries, divergence and findings say about damage to the KV cache; pure."""

from __future__ import annotations

from collections.abc import Mapping

from rig.divergence import FLOOR_NATS
from rig.records import Canaries, CellResult, Divergence, Reason
from rig.verdict_tests import Tests
from rig.verdict_words import Found, sentence, worse_or_not

FEWEST_SPLIT = 12
"""Canaries below which their thirds say nothing."""

FISHER = "one-sided Fisher exact"
LEADING = "one-sided exact, were each asking as likely to move furthest:"


def damage(result: CellResult, baselines: Mapping[str, CellResult], tests: Tests) -> Found:
    """Findings that show damage; canaries crossed or lost; outputs that left the baseline's by more than its noise."""
    proof = result.evidence
    worse = [
        Reason(f.channel, sentence(f.text), f.source)
        for f in (proof.findings if proof else ())
        if f.severity == "damage"
    ]
    notes: list[Reason] = []
    for reason, is_worse in [*_canaries(result, baselines, tests), *_divergence(result, baselines, tests)]:
        (worse if is_worse else notes).append(reason)
    return worse_or_not(worse, notes)


def _canaries(result: CellResult, baselines: Mapping[str, CellResult], tests: Tests) -> list[tuple[Reason, bool]]:
    canaries = result.evidence.canaries if result.evidence else None
    if canaries is None or not canaries.sent or (result.kind == "monolithic" and not baselines):
        return []
    found: list[tuple[Reason, bool]] = []
    if canaries.crossed:
        text = (
            f"{canaries.crossed} of {canaries.sent} canaries came back with the code of another request: KV of one "
            "request reached another."
        )
        found.append((Reason("damage", text, "canaries.jsonl"), True))
    answered = canaries.sent - canaries.error
    lost = canaries.wrong + canaries.crossed
    for name, base in baselines.items():
        test, theirs = f"canaries/{name}", base.evidence.canaries if base.evidence else None
        if theirs is not None and tests.has(test) and (lost or tests.alarms(test)):
            there = f"{theirs.wrong + theirs.crossed} of {theirs.sent - theirs.error} on {name}"
            worse = tests.alarms(test)
            told = "more than chance explains" if worse else "no more than chance explains"
            text = f"{lost} of {answered} canaries lost the code that their prompt states, {there}: {told}"
            text += f" ({tests.shown(test, FISHER)}).{_lost_by(canaries) if lost else ''}"
            found.append((Reason("damage", text, "canaries.jsonl"), worse))
    if not found:
        text = f"All {answered} canaries that were answered repeated the code of their own prompt."
        if answered and not lost:
            found.append((Reason("damage", text, "canaries.jsonl"), False))
        elif answered:
            text = f"{lost} of {answered} canaries lost the code that their prompt states; no baseline was asked any."
            found.append((Reason("damage", text, "canaries.jsonl"), False))
    return found


def _lost_by(canaries: Canaries) -> str:
    """Where the lost ones were, by each figure that splits them."""
    words = {"position": "place of the code in the prompt", "length": "length", "concurrency": "concurrency"}
    told = [
        f"by {words[name]} {', '.join(f'{part}: {lost} of {n}' for part, (lost, n) in parts.items())}"
        for name, parts in canaries.lost_by.items()
        if len(parts) > 1 and sum(n for _, n in parts.values()) >= FEWEST_SPLIT
    ]
    return f" Lost {'; '.join(told)}." if told else ""


def _divergence(result: CellResult, baselines: Mapping[str, CellResult], tests: Tests) -> list[tuple[Reason, bool]]:
    found = []
    for comparison in result.comparisons:
        name, seen = comparison.baseline, comparison.first_divergence
        if seen is None or name not in baselines:
            continue
        test = f"divergence/{name}"
        worse = tests.alarms(test)
        text = divergence_text(seen, name)
        if tests.has(test) and seen.threshold is not None:
            again = "once more" if seen.rounds == 1 else f"{seen.rounds} times more"
            told = "more than that noise explains" if worse else "no more than that noise explains"
            text += (
                f" {seen.damaged} of {seen.measured} moved a token's log probability by more than {seen.threshold:.2f} "
                f"nats. Of the {seen.moved} questions that moved by more than {FLOOR_NATS:g} nat here or when {name} "
                f"was asked {again}, {seen.led} moved furthest here: {told} ({tests.shown(test, LEADING)})."
                if seen.moved
                else f" None of {seen.measured} moved a token's log probability by more than {FLOOR_NATS:g} nat, here "
                f"or when {name} was asked {again}."
            )
        found.append((Reason("damage", text, f"pairs.{name}.jsonl"), worse))
    return found


def divergence_text(seen: Divergence, name: str) -> str:
    """Where outputs leave the baseline's, in a sentence."""
    differ = seen.n - seen.equal
    if not differ:
        return f"All {seen.n} outputs are the same tokens as on {name}."
    median = seen.position.get("p50")
    where = "" if median is None else f", half of them by token {median:.0f}"
    first = f" ({seen.at_zero} at the first token{where})"
    return f"{differ} of {seen.n} outputs leave those of {name} somewhere{first}."
