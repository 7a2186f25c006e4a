"""Canaries, divergence and findings: damage is a regression whatever accuracy says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rig.comparison import compare
from rig.records import (
    Canaries,
    CellResult,
    Comparison,
    Divergence,
    Evidence,
    Finding,
    Gates,
    Outcome,
    Pair,
    Reason,
    Verdict,
)
from rig.verdict import decide
from rig.verdict_damage import divergence_text

MakeResult = Callable[..., CellResult]
MOVED = Evidence(True, transfers=400, failed=0, expired=0)


def pairs(n: int = 400, damaged: int = 0, outcome: Outcome = "correct") -> list[Pair]:
    """n questions, the first of them with outputs that leave the baseline's at the first token, by 5 nats."""
    return [
        Pair(f"q{i}", f"r{i}", f"s{i}", outcome, outcome, equal=False, first_token=0, shift=5.0)
        if i < damaged
        else Pair(f"q{i}", f"r{i}", f"s{i}", outcome, outcome, equal=True, shift=0.1)
        for i in range(n)
    ]


def decided(
    make_result: MakeResult,
    canaries: Canaries | None = None,
    base_canaries: Canaries | None = None,
    comparison: Comparison | None = None,
    noise: Comparison | None = None,
    **fields: Any,
) -> Verdict:
    proof = replace(MOVED, canaries=canaries)
    base = make_result("mono", kind="monolithic", evidence=Evidence(None, canaries=base_canaries), noise_floor=noise)
    result = make_result(evidence=proof, comparisons=(comparison or compare("mono", pairs(), Gates()),), **fields)
    verdict = decide(result, {"mono": base})
    assert verdict is not None
    return verdict


def told(verdict: Verdict) -> list[str]:
    return [r.text for r in verdict.reasons if r.channel == "damage"]


# Canaries


@pytest.mark.parametrize("base_canaries", [Canaries(50, 0, 0), Canaries(50, 9, 0), None])
def test_a_crossed_canary_is_red_whatever_the_baseline(make_result: MakeResult, base_canaries: Canaries | None) -> None:
    verdict = decided(make_result, Canaries(20, 0, 1), base_canaries)
    assert (verdict.state, verdict.reasons[0].evidence) == ("regression", "canaries.jsonl")
    assert verdict.reasons[0].text == (
        "1 of 20 canaries came back with the code of another request: KV of one request reached another."
    )


def test_a_crossed_canary_is_red_without_any_baseline(make_result: MakeResult) -> None:
    verdict = decide(make_result(evidence=replace(MOVED, canaries=Canaries(20, 0, 1))), {})
    assert verdict is not None and (verdict.state, verdict.reasons[0].channel) == ("regression", "damage")


@pytest.mark.parametrize(
    ("mine", "theirs", "state"),
    [
        (Canaries(20, 5, 0), Canaries(50, 0, 0), "regression"),
        (Canaries(20, 1, 0), Canaries(50, 0, 0), "pass"),
        (Canaries(20, 5, 0), Canaries(50, 12, 0), "pass"),
        (Canaries(20, 5, 0, error=15), Canaries(50, 0, 0), "regression"),
        (Canaries(20, 0, 0, error=20), Canaries(50, 0, 0), "pass"),
    ],
    ids=["more", "one", "as weak a model", "of those answered", "none answered"],
)
def test_wrong_canaries_against_the_baselines(
    make_result: MakeResult, mine: Canaries, theirs: Canaries, state: str
) -> None:
    verdict = decided(make_result, mine, theirs)
    assert verdict.state == state
    if state == "regression":
        assert verdict.reasons[0].channel == "damage" and "more than chance explains" in verdict.reasons[0].text


@pytest.mark.parametrize(
    ("mine", "theirs", "text"),
    [
        (
            Canaries(20, 5, 0),
            Canaries(50, 0, 0, error=1),
            "5 of 20 canaries lost the code that their prompt states, 0 of 49 on mono: more than chance explains "
            "(one-sided Fisher exact p = 0.0014, level 0.05).",
        ),
        (
            Canaries(20, 1, 0),
            Canaries(50, 1, 0),
            "1 of 20 canaries lost the code that their prompt states, 1 of 50 on mono: no more than chance explains "
            "(one-sided Fisher exact p = 0.49, level 0.05).",
        ),
        (
            Canaries(20, 0, 0, error=1),
            Canaries(50, 0, 0),
            "All 19 canaries that were answered repeated the code of their own prompt.",
        ),
        (
            Canaries(20, 3, 0),
            None,
            "3 of 20 canaries lost the code that their prompt states; no baseline was asked any.",
        ),
        (None, None, None),
        (Canaries(0, 0, 0), None, None),
        (Canaries(20, 0, 0, error=20), Canaries(50, 0, 0), None),
    ],
)
def test_canaries_in_words(
    make_result: MakeResult, mine: Canaries | None, theirs: Canaries | None, text: str | None
) -> None:
    *shown, outputs = told(decided(make_result, mine, theirs))
    assert outputs == "All 400 outputs are the same tokens as on mono."
    assert shown == ([] if text is None else [text])


def test_a_monolithic_server_whose_canaries_cross_is_no_measure(make_result: MakeResult) -> None:
    """It shares its KV with nobody, so what crosses there is not the hand-off's doing."""
    verdict = decide(make_result("mono", kind="monolithic", evidence=Evidence(None, canaries=Canaries(20, 0, 2))), {})
    assert verdict is not None and verdict.state == "invalid"
    assert "2 of 20 canaries came back with another one's code" in verdict.reasons[0].text


def test_a_monolithic_candidate_can_lose_canaries_too(make_result: MakeResult) -> None:
    base = make_result("mono", kind="monolithic", evidence=Evidence(None, canaries=Canaries(50, 0, 0)))
    new = make_result(
        "new-build",
        kind="monolithic",
        evidence=Evidence(None, canaries=Canaries(20, 9, 0)),
        comparisons=(compare("mono", pairs(), Gates()),),
    )
    verdict = decide(new, {"mono": base})
    assert verdict is not None and (verdict.state, verdict.reasons[0].channel) == ("regression", "damage")


# Divergence


def floor(damaged: int = 0, n: int = 400) -> Comparison:
    noise = pairs(n, damaged=damaged)
    return compare("itself", noise, Gates(), noise=noise)


def test_outputs_that_moved_nowhere_are_told_without_a_test(make_result: MakeResult) -> None:
    verdict = decided(make_result, comparison=compare("mono", pairs(), Gates(), noise=pairs()), noise=floor())
    assert told(verdict) == [
        "All 400 outputs are the same tokens as on mono. None of 400 moved a token's log probability by more than "
        "1 nat, here or when mono was asked once more."
    ]


@pytest.mark.parametrize("outcome", ["correct", "wrong"])
def test_divergence_is_red_alone_where_accuracy_has_no_power(make_result: MakeResult, outcome: Outcome) -> None:
    """A model that gets every question wrong on both sides says nothing by its accuracy."""
    struck = pairs(damaged=8, outcome=outcome)
    comparison = compare("mono", struck, Gates(), noise=pairs(outcome=outcome))
    assert (comparison.b, comparison.c) == (0, 0)
    verdict = decided(make_result, comparison=comparison, noise=floor())
    assert (verdict.state, verdict.reasons[0].channel) == ("regression", "damage")
    assert verdict.reasons[0].text.startswith(
        "8 of 400 outputs leave those of mono somewhere (8 at the first token, half of them by token 0). 8 of 400 "
        "moved a token's log probability by more than 1.00 nats. Of the 8 questions that moved by more than 1 nat here "
        "or when mono was asked once more, 8 moved furthest here: more than that noise explains (one-sided exact, were "
        "each asking as likely to move furthest: p = 0.0039, level 0.05)."
    )
    assert verdict.reasons[0].evidence == "pairs.mono.jsonl"


def test_without_a_noise_floor_there_is_no_threshold_and_no_alarm(make_result: MakeResult) -> None:
    comparison = compare("mono", pairs(damaged=200), Gates())
    assert comparison.first_divergence is not None and comparison.first_divergence.threshold is None
    verdict = decided(make_result, comparison=comparison)
    assert verdict.state == "pass"
    assert told(verdict) == [
        "200 of 400 outputs leave those of mono somewhere (200 at the first token, half of them by token 0)."
    ]


def test_noise_like_the_baselines_own_is_no_damage(make_result: MakeResult) -> None:
    comparison = compare("mono", pairs(damaged=8), Gates(), noise=pairs(damaged=8))
    assert comparison.first_divergence is not None and comparison.first_divergence.threshold == 7.5
    verdict = decided(make_result, comparison=comparison, noise=floor(damaged=8))
    assert verdict.state == "pass" and "no more than that noise explains" in told(verdict)[0]


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (Divergence(9, 9, 0), "All 9 outputs are the same tokens as on mono."),
        (
            Divergence(9, 4, 1, position={"p50": 12.4}),
            "5 of 9 outputs leave those of mono somewhere (1 at the first token, half of them by token 12).",
        ),
        (Divergence(9, 4, 0), "5 of 9 outputs leave those of mono somewhere (0 at the first token)."),
    ],
)
def test_divergence_in_words(seen: Divergence, text: str) -> None:
    assert divergence_text(seen, "mono") == text


# Findings


@pytest.mark.parametrize(("severity", "state"), [("damage", "regression"), ("note", "pass")])
def test_findings_that_show_damage_are_red_in_their_own_channel(
    make_result: MakeResult, severity: Any, state: str
) -> None:
    finding = Finding("transfer", "blocks were freed while they were read", "prefill-0.log", severity)
    proof = replace(MOVED, findings=(finding,))
    result = make_result(evidence=proof, comparisons=(compare("mono", pairs(), Gates()),))
    verdict = decide(result, {"mono": make_result("mono", kind="monolithic")})
    assert verdict is not None and verdict.state == state
    if state == "regression":
        expected = Reason("transfer", "Blocks were freed while they were read.", "prefill-0.log")
        assert verdict.reasons[0] == expected
