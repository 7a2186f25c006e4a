from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rig.comparison import compare
from rig.errors import ServerDied
from rig.evidence import storage
from rig.planned import Expectation
from rig.records import (
    Canaries,
    CellResult,
    Channel,
    Comparison,
    Evidence,
    Finding,
    Gates,
    Pair,
    PromptSources,
    Reason,
    State,
    TaskInfo,
    Verdict,
)
from rig.verdict import decide, exit_code, failed, state_name, sweep_summary

MakeResult = Callable[..., CellResult]
GATES = Gates()
XFAIL = Expectation("KV is zeroed after arrival", "vllm #42182")
MOVED = Evidence(True, transfers=400, failed=0, expired=0)


def versus(b: int, c: int, n: int = 400, name: str = "mono", gates: Gates = GATES) -> Comparison:
    """A comparison in which the baseline alone got b right, the cell alone c."""
    pairs = [
        Pair(
            f"q{i}",
            f"r{i}",
            f"s{i}",
            "wrong" if i < b else "correct",
            "wrong" if b <= i < b + c else "correct",
        )
        for i in range(n)
    ]
    return compare(name, pairs, gates)


def judge(
    result: CellResult, *comparisons: Comparison, base: CellResult | None, xfail: Expectation | None = None
) -> Verdict:
    verdict = decide(replace(result, comparisons=comparisons), {"mono": base}, xfail)
    assert verdict is not None
    return verdict


@pytest.fixture
def mono(make_result: MakeResult) -> CellResult:
    return make_result("mono", kind="monolithic")


# decide: accuracy


@pytest.mark.parametrize(
    ("b", "c", "n", "state"),
    [
        (0, 0, 149, "pass"),
        (0, 0, 148, "inconclusive"),
        (2, 1, 400, "pass"),
        (10, 10, 400, "pass"),
        (7, 2, 400, "inconclusive"),
        (5, 0, 400, "regression"),
        (40, 2, 400, "regression"),
        (0, 5, 400, "improved"),
        (0, 4, 400, "pass"),
        (0, 5, 40, "improved"),
        (0, 1, 20, "inconclusive"),
    ],
)
def test_state_from_accuracy(make_result: MakeResult, mono: CellResult, b: int, c: int, n: int, state: State) -> None:
    verdict = judge(make_result(), versus(b, c, n), base=mono)
    assert verdict.state == state
    assert verdict.reasons[0].channel == "accuracy"


def test_a_drop_that_is_shown_is_a_regression_even_within_the_margin(make_result: MakeResult, mono: CellResult) -> None:
    comparison = versus(8, 1, 1319)
    assert comparison.upper_drop is not None and comparison.upper_drop < 0.02
    assert judge(make_result(), comparison, base=mono).state == "regression"


def test_margin_and_level_come_from_the_gates(make_result: MakeResult, mono: CellResult) -> None:
    wide = Gates(max_accuracy_drop=0.05, alpha=0.01)
    comparison = versus(5, 0, gates=wide)
    assert judge(make_result(gates=wide), comparison, base=mono).state == "pass"


@settings(max_examples=40)
@given(st.integers(0, 30), st.integers(0, 30))
def test_states_exclude_each_other(b: int, c: int) -> None:
    comparison = versus(b, c, 100)
    assert comparison.p_value is not None and comparison.upper_drop is not None
    decided = comparison.p_value <= 0.05 or comparison.upper_drop < 0.02
    assert decided == (comparison.more_questions is None)


def test_every_baseline_must_agree(make_result: MakeResult, mono: CellResult) -> None:
    result = make_result(comparisons=(versus(1, 1), versus(20, 1, name="off")))
    verdict = decide(result, {"mono": mono, "off": make_result("off")})
    assert verdict is not None and verdict.state == "regression"
    assert "worse than on off" in verdict.reasons[0].text
    assert "not to be worse than on mono" in verdict.reasons[1].text


# decide: other channels


@pytest.mark.parametrize(
    ("fields", "b", "alarms"),
    [
        ({}, 5, ("accuracy",)),
        ({"evidence": replace(MOVED, failed=3)}, 5, ("transfer", "accuracy")),
        ({"evidence": replace(MOVED, canaries=Canaries(10, 0, 2))}, 0, ("damage",)),
        ({"evidence": replace(MOVED, findings=(Finding("transfer", "x", "log", "damage"),))}, 0, ("transfer",)),
        ({"error": {"reset": 40}}, 0, ("errors",)),
        ({"error": {"reset": 1}}, 0, ()),
        ({}, 7, ("accuracy",)),
        ({"evidence": Evidence(False)}, 7, None),
    ],
)
def test_the_verdict_hands_out_which_channels_alarmed(
    make_result: MakeResult, mono: CellResult, fields: dict[str, Any], b: int, alarms: tuple[Channel, ...] | None
) -> None:
    """Errors that chance explains, and the proof that KV moved, have their reasons and alarm in no channel."""
    result = make_result(**fields)
    verdict = judge(result, versus(b, 0), base=mono)
    assert verdict.alarms == alarms and (verdict.state == "regression") == bool(alarms)
    assert set(alarms or ()) <= {reason.channel for reason in verdict.reasons}
    expected = judge(result, versus(b, 0), base=mono, xfail=XFAIL)
    assert expected.alarms == alarms, "an expected regression is one"


def test_errors_beyond_the_baselines_are_a_regression(make_result: MakeResult, mono: CellResult) -> None:
    verdict = judge(make_result(correct=385, error={"reset": 5}), versus(0, 0, 395), base=mono)
    assert (verdict.state, verdict.reasons[0].channel) == ("regression", "errors")
    assert verdict.reasons[0].text == (
        "5 of 400 questions failed here (reset 5), 0 of 400 on mono: more than chance explains "
        "(one-sided Fisher exact p = 0.031, level 0.05)."
    )


def test_errors_that_chance_explains_are_told_and_pass(make_result: MakeResult, mono: CellResult) -> None:
    verdict = judge(make_result(correct=388, error={"reset": 2}), versus(0, 0, 398), base=mono)
    assert verdict.state == "pass"
    assert "2 of 400 questions failed here (reset 2), 0 of 400 on mono: no more than chance explains" in str(verdict)
    assert "2 more left out, as one side has no usable answer" in verdict.reasons[0].text


def test_errors_like_the_baselines_are_no_regression(make_result: MakeResult) -> None:
    base = make_result("mono", kind="monolithic", correct=360, error={"http_status": 30})
    verdict = judge(make_result(correct=358, error={"http_status": 32}), versus(0, 0, 360), base=base)
    assert verdict.state == "pass"


@pytest.mark.parametrize(("failed_count", "expired", "what"), [(1, 0, "KV transfers failed"), (0, 1, "leases expired")])
def test_one_failed_transfer_where_none_is_expected(
    make_result: MakeResult, mono: CellResult, failed_count: int, expired: int, what: str
) -> None:
    result = make_result(evidence=Evidence(True, transfers=400, failed=failed_count, expired=expired))
    verdict = judge(result, versus(0, 0), base=mono)
    assert (verdict.state, verdict.reasons[0].channel) == ("regression", "transfer")
    assert what in verdict.reasons[0].text and "none on mono" in verdict.reasons[0].text


@pytest.mark.parametrize(("here", "there", "state"), [(6, 5, "pass"), (30, 5, "regression")])
def test_failed_transfers_against_a_baseline_that_has_some(
    make_result: MakeResult, here: int, there: int, state: State
) -> None:
    off = make_result("mono", evidence=Evidence(True, transfers=400, failed=there, expired=0))
    result = make_result(evidence=Evidence(True, transfers=400, failed=here, expired=0))
    assert judge(result, versus(0, 0), base=off).state == state


def test_a_connector_without_transfers_misses_no_counters(make_result: MakeResult, mono: CellResult) -> None:
    result = make_result(evidence=Evidence(True, external_tokens=300))
    result = replace(result, labels={**result.labels, "connector": "ExampleConnector"})
    verdict = judge(result, versus(0, 0), base=mono)
    assert verdict.state == "pass"
    assert "ExampleConnector has no transfers that could fail" in str(verdict)
    assert "counters are missing" not in str(verdict)


def test_missing_counters_are_told_and_decide_nothing(make_result: MakeResult, mono: CellResult) -> None:
    verdict = judge(make_result(evidence=Evidence(True, transfers=400)), versus(0, 0), base=mono)
    assert verdict.state == "pass"
    assert "Whether KV leases expired is not known: the counters are missing." in str(verdict)


def test_leases_that_no_one_could_read_are_told_and_none_are_not(make_result: MakeResult, mono: CellResult) -> None:
    some = replace(MOVED, expired=2)
    unread = judge(make_result(correct=398, error={"reset": 2}, evidence=some), versus(0, 0, 398), base=mono)
    assert unread.state == "pass"
    assert "2 KV leases expired, no more than requests failed before decode had read." in str(unread)
    assert "leases" not in str(judge(make_result(evidence=MOVED), versus(0, 0), base=mono))


def test_damage_is_a_regression_whatever_accuracy_says(make_result: MakeResult, mono: CellResult) -> None:
    finding = Finding("damage", "stale blocks were read", "decode-0.log", "damage")
    verdict = judge(make_result(evidence=replace(MOVED, findings=(finding,))), versus(0, 9), base=mono)
    assert (verdict.state, verdict.reasons[0]) == (
        "regression",
        Reason("damage", "Stale blocks were read.", "decode-0.log"),
    )


def test_crossed_canaries_are_a_regression(make_result: MakeResult, mono: CellResult) -> None:
    verdict = judge(make_result(evidence=replace(MOVED, canaries=Canaries(40, 1, 1))), versus(0, 0), base=mono)
    assert (verdict.state, verdict.reasons[0].channel) == ("regression", "damage")


def test_notes_decide_nothing(make_result: MakeResult, mono: CellResult) -> None:
    note = Finding("damage", "a warning in the log", "decode-0.log")
    assert judge(make_result(evidence=replace(MOVED, findings=(note,))), versus(0, 0), base=mono).state == "pass"


# decide: invalid, no baseline, failed


@pytest.mark.parametrize(
    ("fields", "channel", "text"),
    [
        ({"evidence": None}, "transfer", "Nothing proves that the KV cache moved"),
        ({"evidence": Evidence(None)}, "transfer", "Nothing proves that the KV cache moved"),
        ({"evidence": Evidence(False)}, "transfer", "Nothing proves that the KV cache moved"),
        (
            {"evidence": Evidence(False, findings=(Finding("transfer", "no transfers", "counters", "invalid"),))},
            "transfer",
            "No transfers.",
        ),
        ({"error": {"internal": 1}, "correct": 389}, "rig", "1 question failed through the rig's own fault"),
        ({"status": "interrupted"}, "rig", "interrupted"),
        ({"status": "invalid", "failure": "the warm-up failed"}, "rig", "the warm-up failed"),
        ({"correct": 0, "wrong": 0, "unparsed": 0, "truncated": 0}, "rig", "No question was asked"),
    ],
)
def test_what_makes_a_cell_invalid(
    make_result: MakeResult, mono: CellResult, fields: dict[str, object], channel: Channel, text: str
) -> None:
    verdict = judge(make_result(**fields), versus(0, 0), base=mono)
    assert (verdict.state, verdict.reasons[0].channel) == ("invalid", channel)
    assert text in verdict.reasons[0].text


def test_errors_of_the_rig_are_no_regression(make_result: MakeResult, mono: CellResult) -> None:
    verdict = judge(make_result(correct=340, error={"internal": 50}), versus(30, 0, 350), base=mono)
    assert verdict.state == "invalid"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"status": "failed", "failure": "it did not start"}, "It did not start."),
        ({"correct": 0, "wrong": 0, "unparsed": 0, "truncated": 0, "error": {"reset": 400}}, "answered no question"),
        ({"verdict": Verdict("invalid", (Reason("rig", "No question was asked."),))}, "No question was asked."),
    ],
)
def test_an_unusable_baseline(make_result: MakeResult, fields: dict[str, object], text: str) -> None:
    base = make_result("mono", kind="monolithic", **fields)
    verdict = judge(make_result(), base=base)
    assert verdict.state == "invalid"
    assert "The baseline mono cannot be used" in verdict.reasons[0].text and text in verdict.reasons[0].text


@pytest.mark.parametrize(
    ("theirs", "words"),
    [(("robust", "2"), "the baseline by robust. "), (("gsm8k-strict", "2"), "the baseline by another version of it. ")],
)
def test_a_baseline_that_was_scored_otherwise(make_result: MakeResult, theirs: tuple[str, str], words: str) -> None:
    """The outcomes of both mean other things; what makes them comparable is said."""
    mine = make_result(task=TaskInfo("t", "1", "p", "gsm8k-strict", "1", 400))
    base = make_result("mono", kind="monolithic", task=TaskInfo("t", "1", "p", *theirs, 400))
    verdict = judge(mine, versus(0, 0), base=base)
    assert verdict.state == "invalid" and verdict.reasons[0].channel == "rig"
    assert f"this cell was scored by gsm8k-strict, {words}" in verdict.reasons[0].text
    for offer in ("`pdrig sweep --resume`", "`pdrig rescore RUN --scorer gsm8k-strict`", "`pdrig compare --scorer"):
        assert offer in verdict.reasons[0].text


def test_a_baseline_without_a_result(make_result: MakeResult) -> None:
    assert judge(make_result(), base=None).state == "invalid"


def test_a_regression_against_one_baseline_outlives_the_loss_of_another(
    make_result: MakeResult, mono: CellResult
) -> None:
    result = make_result(comparisons=(versus(20, 0),))
    verdict = decide(result, {"mono": mono, "off": None})
    assert verdict is not None and verdict.state == "regression"
    assert "baseline off cannot be used" in str(verdict)
    passing = decide(make_result(comparisons=(versus(0, 0),)), {"mono": mono, "off": None})
    assert passing is not None and passing.state == "invalid"


def test_a_comparison_that_was_left_out(make_result: MakeResult, mono: CellResult) -> None:
    verdict = judge(make_result(), base=mono)
    assert verdict.state == "invalid" and "was to be compared with mono" in verdict.reasons[0].text


def test_without_a_baseline_nobody_knows(make_result: MakeResult) -> None:
    verdict = decide(make_result(), {})
    assert verdict is not None and verdict.state == "no_baseline"


def test_damage_needs_no_baseline(make_result: MakeResult) -> None:
    verdict = decide(make_result(evidence=Evidence(True, transfers=400, failed=2, expired=0)), {})
    assert verdict is not None and verdict.state == "regression"
    assert verdict.reasons[0].text == "2 KV transfers failed; a sound deployment has none."


def test_a_sound_monolithic_cell_has_no_verdict(mono: CellResult) -> None:
    assert decide(mono, {}) is None
    assert state_name(mono) == "baseline"


def test_a_monolithic_cell_that_is_no_use(make_result: MakeResult) -> None:
    useless = make_result(
        "mono", kind="monolithic", correct=0, wrong=0, unparsed=0, truncated=0, error={"http_status": 9}
    )
    verdict = decide(useless, {})
    assert verdict is not None and verdict.state == "invalid"
    assert verdict.reasons[0].text == "None of 9 questions has a usable answer (http_status 9)."


def test_a_monolithic_cell_can_be_held_against_another(make_result: MakeResult, mono: CellResult) -> None:
    assert judge(make_result("new-build", kind="monolithic"), versus(20, 0), base=mono).state == "regression"


def test_a_deployment_that_died(make_result: MakeResult) -> None:
    verdict = failed(ServerDied("decode-0 ended with code -9", "decode-0", "CUDA error"))
    assert verdict.state == "failed"
    assert verdict.reasons == (
        Reason("errors", "The deployment did not come up, or died: decode-0 ended with code -9", "CUDA error"),
    )
    again = decide(make_result(status="failed", failure="decode-0 ended with code -9"), {})
    assert again is not None and again.state == "failed"


# xfail


@pytest.mark.parametrize(
    ("b", "state"), [(40, "xfail"), (0, "xpass"), (7, "inconclusive")], ids=["fails", "passes", "open"]
)
def test_an_expected_failure(make_result: MakeResult, mono: CellResult, b: int, state: State) -> None:
    verdict = judge(make_result(), versus(b, 2), base=mono, xfail=XFAIL)
    assert verdict.state == state
    if state != "inconclusive":
        assert "Expected to fail: KV is zeroed after arrival (vllm #42182)." in verdict.reasons[0].text


def test_invalid_stays_invalid_when_a_failure_is_expected(make_result: MakeResult, mono: CellResult) -> None:
    assert judge(make_result(evidence=None), versus(40, 0), base=mono, xfail=XFAIL).state == "invalid"


def test_a_death_that_was_expected() -> None:
    assert failed(ServerDied("gone"), XFAIL).state == "xfail"


# exit codes


def in_state(make_result: MakeResult, state: str) -> CellResult:
    if state == "baseline":
        return make_result(kind="monolithic")
    if state == "not judged":
        return make_result()
    return make_result(state, verdict=Verdict(state, (Reason("accuracy", "why"),)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("states", "code", "strict"),
    [
        ([], 0, 0),
        (["baseline", "pass", "improved", "xfail"], 0, 0),
        (["pass", "no_baseline"], 0, 3),
        (["inconclusive"], 0, 3),
        (["failed", "pass"], 3, 3),
        (["invalid"], 3, 3),
        (["not judged"], 3, 3),
        (["regression", "failed"], 1, 1),
        (["xpass", "invalid", "inconclusive"], 1, 1),
    ],
)
def test_exit_codes(make_result: MakeResult, states: Sequence[str], code: int, strict: int) -> None:
    results = [in_state(make_result, state) for state in states]
    assert (exit_code(results), exit_code(results, strict=True)) == (code, strict)


@pytest.mark.parametrize("state", ["pass", "improved", "xfail", "baseline"])
def test_a_stored_baseline_that_is_missing_is_green_unless_strict(make_result: MakeResult, state: str) -> None:
    cells = [in_state(make_result, "pass"), replace(in_state(make_result, state), missing_baseline="None is stored.")]
    assert (exit_code(cells), exit_code(cells, strict=True)) == (0, 3)
    assert exit_code([in_state(make_result, "regression"), *cells], strict=True) == 1
    assert exit_code([cells[0], replace(cells[1], rerun_of="x")], strict=True) == 0


def test_summary_is_one_line(make_result: MakeResult) -> None:
    results = [in_state(make_result, state) for state in ("baseline", "pass", "pass", "regression")]
    assert sweep_summary(results) == (
        "4 cells: 1 baseline, 2 pass, 1 regression. Look at: regression (regression, accuracy)"
    )
    assert sweep_summary(results[:1]) == "1 cell: 1 baseline"
    assert sweep_summary([]) == "0 cells: nothing ran"


# texts


def test_reasons_can_be_read_by_anyone(make_result: MakeResult, mono: CellResult) -> None:
    result = make_result()
    assert judge(result, versus(2, 1), base=mono).reasons[0].text == (
        "Accuracy is shown not to be worse than on mono by 2.00 points, the margin. Of 400 questions answered on both "
        "sides, 2 were right only there and 1 only here (change -0.25 points, 95 % interval -1.58 to +0.95). With 95 % "
        "confidence the true drop is below 1.57 points. A true drop of 1.80 points or more would have been found with "
        "at least 80 % chance."
    )
    assert judge(result, versus(40, 2), base=mono).reasons[0].text == (
        "Accuracy is worse than on mono. Of 400 questions answered on both sides, 40 were right only there and 2 only "
        "here (change -9.50 points, 95 % interval -12.89 to -6.75). So many more losses than gains are not chance "
        "(one-sided exact McNemar p < 0.0001, level 0.05)."
    )
    assert judge(result, versus(7, 2), base=mono).reasons[0].text == (
        "Accuracy is not decided against mono. Of 400 questions answered on both sides, 7 were right only there and 2 "
        "only here (change -1.25 points, 95 % interval -3.13 to +0.27). The true drop may be as large as 2.95 points "
        "(95 % confidence), above the margin of 2.00 points, and no drop is shown either (one-sided exact McNemar "
        "p = 0.09, level 0.05). About 286 more questions would decide if flips keep coming at this rate."
    )
    assert judge(result, versus(0, 9), base=mono).reasons[0].text == (
        "Accuracy is better than on mono. Of 400 questions answered on both sides, 0 were right only there and 9 only "
        "here (change +2.25 points, 95 % interval +1.19 to +4.22). So many more gains than losses are not chance "
        "(one-sided exact McNemar p = 0.002, level 0.05); the true gain is above 1.17 points (95 % confidence)."
    )


def test_the_proof_that_kv_moved_stands_with_the_verdict(make_result: MakeResult, mono: CellResult) -> None:
    assert judge(make_result(), versus(0, 0), base=mono).reasons[-1].text == (
        "The KV cache of every answered request moved from prefill to decode (400 transfers, 51,200 prompt tokens came "
        "from prefill, 400 were computed by decode)."
    )


def test_a_cell_that_others_are_held_against_needs_no_baseline_itself(make_result: MakeResult) -> None:
    base = make_result("base", is_baseline=True)
    assert decide(base, {}) is None
    assert state_name(base) == "baseline" and exit_code([base], strict=True) == 0
    broken = decide(replace(base, evidence=Evidence(False)), {})
    assert broken is not None and broken.state == "invalid"
    lossy = decide(replace(base, evidence=replace(MOVED, failed=3)), {})
    assert lossy is not None and lossy.state == "regression"


# decide: what a connector loaded


def test_how_much_a_connector_loaded_is_a_reason(make_result: MakeResult, mono: CellResult) -> None:
    alone = make_result("alone", kind="monolithic", evidence=Evidence(None), sources=PromptSources(100, 850, 50))
    verdict = judge(alone, versus(0, 0), base=mono)
    assert verdict.state == "pass"
    assert "A connector loaded 85.0 % of the prompt tokens (850 of 1,000)." in [r.text for r in verdict.reasons]


@pytest.mark.parametrize(("pass_", "state"), [(0, "pass"), (2, "invalid")])
def test_a_storage_that_was_not_loaded_from_is_said(
    make_result: MakeResult, mono: CellResult, pass_: int, state: State
) -> None:
    sources = PromptSources(0, 0, 1000)
    findings = storage(True, (), sources, pass_)
    alone = make_result("alone", kind="monolithic", evidence=Evidence(None, findings=findings), sources=sources)
    verdict = judge(alone, versus(0, 0), base=mono)
    assert verdict.state == state
    assert any("loaded" in reason.text and reason.channel == "transfer" for reason in verdict.reasons)
