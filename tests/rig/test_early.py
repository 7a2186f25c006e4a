"""When an evaluation has been asked enough: never before the decision, and whatever answers overtake others."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evals.canaries import Canary, make_canaries
from evals.client import Request
from evals.records import RequestError, RequestRecord
from rig.early import EarlyStop
from rig.records import Gates, Outcome
from rig.stats_sequential import Sequential

MakeRecord = Callable[..., RequestRecord]
GATES = Gates(max_accuracy_drop=0.1)
OUTCOMES: list[Outcome] = ["correct", "wrong", "unparsed", "truncated", "error"]


def names(n: int) -> list[str]:
    return [f"q{i}" for i in range(n)]


def said(record: RequestRecord) -> Outcome:
    """The tests write the outcome where the answer would be."""
    assert record.text in OUTCOMES
    return record.text


def stopper(
    baseline: Sequence[Outcome],
    *more: Sequence[Outcome],
    share: float = 0.05,
    gates: Gates = GATES,
    canaries: Sequence[Canary] = (),
) -> EarlyStop:
    """Over as many questions as the baseline was asked, canaries before them all."""
    requests = [Request(c.sample.sample_id, c.sample.prompt, {}, "canary") for c in canaries]
    requests += [Request(name, "?", {}) for name in names(len(baseline))]
    theirs = {f"m{i}": dict(zip(names(len(side)), side, strict=True)) for i, side in enumerate([baseline, *more])}
    return EarlyStop(requests, theirs, gates, share, said, {c.sample.sample_id: c for c in canaries})


def oracle(
    mine: Sequence[Outcome], theirs: Sequence[Outcome], share: float, gates: Gates = GATES
) -> tuple[Sequential, int | None]:
    """The pairs in the order of asking up to the decision, and after how many questions it came."""
    found = Sequential()
    for i, (m, t) in enumerate(zip(mine, theirs, strict=True)):
        if "error" not in (m, t):
            worse, better = t == "correct" != m, m == "correct" != t
            found.add("loss" if worse else "gain" if better else "tie")
        if found.decided(share, gates.alpha, gates.max_accuracy_drop):
            return found, i + 1
    return found, None


def counts(found: Sequential) -> tuple[int, int, int]:
    return found.losses, found.gains, found.n


def answer(make_record: MakeRecord, name: str, outcome: Outcome) -> RequestRecord:
    return make_record(name, text=outcome)


def run(early: EarlyStop, answers: Mapping[str, RequestRecord], in_flight: int, rng: random.Random) -> list[str]:
    """Ask as a closed loop does, answers coming in any order; the names of what was asked."""
    asked: list[str] = []
    waiting: list[str] = []
    requests = early.requests()
    while True:
        while len(waiting) < in_flight and (request := next(requests, None)) is not None:
            asked.append(request.sample_id)
            waiting.append(request.sample_id)
        if not waiting:
            return asked
        early.seen(answers[waiting.pop(rng.randrange(len(waiting)))])


sides = st.lists(st.tuples(st.sampled_from(OUTCOMES), st.sampled_from(OUTCOMES)), min_size=1, max_size=60)
mostly_right = st.lists(
    st.tuples(st.sampled_from([*["correct"] * 6, "wrong", "error"]), st.just("correct")), min_size=20, max_size=80
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sides | mostly_right, st.integers(1, 16), st.randoms(use_true_random=False), st.sampled_from([0.05, 0.005]))
def test_answers_count_in_the_order_of_asking_however_they_overtake_one_another(
    make_record: MakeRecord, both: list[tuple[Outcome, Outcome]], in_flight: int, rng: random.Random, share: float
) -> None:
    mine, theirs = [m for m, _ in both], [t for _, t in both]
    early = stopper(theirs, share=share)
    answers = {name: answer(make_record, name, m) for name, m in zip(names(len(both)), mine, strict=True)}
    asked = run(early, answers, in_flight, rng)
    expected, after = oracle(mine, theirs, share)
    assert counts(early.deciders["m0"]) == counts(expected)
    assert asked == names(len(asked)), "in order"
    if after is None:
        assert len(asked) == len(both), "nothing was decided, so all was asked"
        assert early.result(len(asked)).decided is None
    else:
        assert len(asked) >= after, "never before the decision"
        assert early.result(len(asked)).decided == expected.decided(share, 0.05, GATES.max_accuracy_drop)


@pytest.mark.parametrize(("mine", "decided"), [("wrong", "regression"), ("correct", "pass")])
def test_nothing_is_asked_after_the_decision(make_record: MakeRecord, mine: Outcome, decided: str) -> None:
    early = stopper(["correct"] * 200)
    answers = {name: answer(make_record, name, mine) for name in names(200)}
    asked = run(early, answers, 1, random.Random(0))
    _, after = oracle([mine] * 200, ["correct"] * 200, 0.05)
    assert after is not None and len(asked) == after < 200
    assert next(early.requests(), None) is None
    found = early.result(len(asked))
    assert (found.asked, found.planned, found.decided) == (after, 200, decided)
    assert (found.e_drop >= 20) == (decided == "regression") and (found.e_margin >= 20) == (decided == "pass")


def test_answers_that_come_after_the_decision_change_nothing(make_record: MakeRecord) -> None:
    early = stopper(["correct"] * 200)
    for name in names(20):
        early.seen(answer(make_record, name, "wrong"))
    decided = counts(early.deciders["m0"])
    assert decided[0] < 20
    for name in names(200)[20:]:
        early.seen(answer(make_record, name, "correct"))
    assert counts(early.deciders["m0"]) == decided and early.result(200).decided == "regression"


def test_a_late_answer_holds_up_those_after_it(make_record: MakeRecord) -> None:
    early = stopper(["correct"] * 100)
    for name in names(100)[1:]:
        early.seen(answer(make_record, name, "wrong"))
    assert early.deciders["m0"].n == 0 and next(early.requests(), None) is not None
    early.seen(answer(make_record, "q0", "wrong"))
    assert early.result(100).decided == "regression" and next(early.requests(), None) is None


@pytest.mark.parametrize(("mine", "theirs"), [("error", "correct"), ("wrong", "error"), ("error", "error")])
def test_a_question_that_failed_on_either_side_is_passed_over(
    make_record: MakeRecord, mine: Outcome, theirs: Outcome
) -> None:
    early = stopper([theirs] * 50)
    for name in names(50):
        early.seen(answer(make_record, name, mine))
    assert early.deciders["m0"].n == 0
    assert early.result(50).decided is None and len(list(early.requests())) == 50


def test_a_question_that_the_baseline_was_not_asked_is_passed_over(make_record: MakeRecord) -> None:
    early = stopper(["correct"] * 50, ["correct"] * 3)
    for name in names(4):
        early.seen(answer(make_record, name, "correct"))
    assert (early.deciders["m0"].n, early.deciders["m1"].n) == (4, 3)


def test_a_smaller_share_asks_for_more_proof(make_record: MakeRecord) -> None:
    asked = []
    for share in (0.05, 0.05 / 20):
        early = stopper(["correct"] * 100, share=share)
        answers = {name: answer(make_record, name, "wrong") for name in names(100)}
        asked.append(len(run(early, answers, 1, random.Random(0))))
    assert asked[0] < asked[1] <= 12


def test_a_regression_against_one_baseline_is_enough_and_a_pass_needs_all(make_record: MakeRecord) -> None:
    worse = stopper(["wrong"] * 100, ["correct"] * 100)
    for name in names(20):
        worse.seen(answer(make_record, name, "wrong"))
    assert worse.result(20).decided == "regression"
    one_lacks_answers = stopper(["correct"] * 100, ["error"] * 100)
    for name in names(100):
        one_lacks_answers.seen(answer(make_record, name, "correct"))
    assert one_lacks_answers.deciders["m0"].passes(0.1, 0.05)
    assert one_lacks_answers.result(100).decided is None


def test_e_values_are_those_of_the_least_decided_baseline(make_record: MakeRecord) -> None:
    early = stopper(["correct"] * 10, ["wrong"] * 10)
    for name in names(4):
        early.seen(answer(make_record, name, "wrong"))
    found = early.result(4)
    assert found.decided is None and found.e_drop == pytest.approx(0.6 * 2**4 + 0.4 * (2**5 - 1) / 5)
    assert 0 < found.e_margin < 1


# Canaries


def code_of(canary: Canary) -> str:
    return f"The code is {canary.code}.\n#### {canary.code}"


def test_a_crossed_canary_decides_at_once(make_record: MakeRecord) -> None:
    canaries = make_canaries("gsm-tiny", 4, "s", {}, "completions")
    early = stopper(["correct"] * 50, canaries=canaries)
    requests = early.requests()
    for canary in canaries[:2]:
        assert next(requests).sample_id == canary.sample.sample_id
        early.seen(make_record(canary.sample.sample_id, kind="canary", text=code_of(canary)))
    assert next(requests).sample_id == canaries[2].sample.sample_id, "a right one decides nothing"
    early.seen(make_record(canaries[2].sample.sample_id, kind="canary", text="#### 1"))
    assert next(requests).sample_id == canaries[3].sample.sample_id, "nor does a wrong one"
    early.seen(make_record(canaries[3].sample.sample_id, kind="canary", text=code_of(canaries[0])))
    assert next(requests, None) is None
    assert early.result(0).decided == "regression", "a code that crossed is a regression whatever accuracy says"


def test_a_canary_that_failed_decides_nothing(make_record: MakeRecord) -> None:
    one, other = make_canaries("gsm-tiny", 2, "s", {}, "completions")
    early = stopper(["correct"] * 5, canaries=[one, other])
    gone = RequestError("decode", "stream_cut", "gone")
    early.seen(make_record(one.sample.sample_id, kind="canary", text=code_of(other), error=gone))
    assert len(list(early.requests())) == 7


def test_warm_up_and_canaries_are_no_questions(make_record: MakeRecord) -> None:
    canaries = make_canaries("gsm-tiny", 3, "s", {}, "completions")
    early = stopper(["correct"] * 5, canaries=canaries)
    assert early.planned == 5
    early.seen(make_record("warmup-0", kind="warmup", text="correct"))
    assert early.deciders["m0"].n == 0


def test_figures_are_finite_after_any_number_of_questions(make_record: MakeRecord) -> None:
    early = stopper(["correct"] * 1319, share=1e-12, gates=replace(GATES, max_accuracy_drop=0.001))
    for name in names(1319):
        early.seen(answer(make_record, name, "wrong" if name[-1] in "13579" else "correct"))
    found = early.result(1319)
    assert math.isfinite(found.e_drop) and math.isfinite(found.e_margin) and found.decided == "regression"
