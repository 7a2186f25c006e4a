"""Verdicts on cells whose questions have no right answers: outputs like the baseline's, or not decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from scipy.stats import beta

from evals.scorers import NO_SCORER, get_scorer, score
from rig import verdict
from rig.comparison import compare
from rig.early import EarlyStop
from rig.metrics import accuracy, counts
from rig.pairs import repeats_of
from rig.records import CellResult, Comparison, Counts, Gates, Judged, Pair, State, TaskInfo, Verdict
from rig.verdict import decide

MakeResult = Callable[..., CellResult]
GATES = Gates()
TASK = TaskInfo("prefill-heavy", "1", "aa", NO_SCORER, get_scorer(NO_SCORER).sha256, 400)


def pair(i: int, equal: bool | None = True, shift: float | None = None, error: bool = False) -> Pair:
    outcome = "error" if error else "unscored"
    first = None if shift is None else (None if equal else 3)
    return Pair(f"q{i}", f"r{i}", f"s{i}", outcome, "unscored", equal=equal, first_token=first, shift=shift)  # type: ignore[arg-type]


def unscored(result: CellResult, error: int = 0) -> CellResult:
    told = Counts(0, 0, 0, 0, {"reset": error} if error else {}, unscored=400 - error)
    return replace(result, task=TASK, counts=told, accuracy=None)


def judge(make_result: MakeResult, comparison: Comparison, floor: Comparison | None = None, error: int = 0) -> Verdict:
    mono = replace(unscored(make_result("mono", kind="monolithic")), noise_floor=floor)
    result = replace(unscored(make_result(), error), comparisons=(comparison,))
    result = replace(result, tests=verdict.tests(result, {"mono": mono}))
    found = decide(result, {"mono": mono})
    assert found is not None
    return found


def test_no_answer_is_right_or_wrong() -> None:
    scorer = get_scorer(NO_SCORER)
    assert score(scorer, "#### 5", "stop", scorer.target("#### 5")) == ("unscored", None)
    judged = [Judged(f"r{i}", f"q{i}", NO_SCORER, None, "", "unscored", repeat=i) for i in range(2)]
    assert accuracy(judged, NO_SCORER).value is None
    assert counts(judged, ()).unscored == 2
    assert repeats_of(judged) is None


@pytest.mark.parametrize(
    ("differ", "n", "state"), [(0, 149, "pass"), (0, 148, "inconclusive"), (9, 400, "inconclusive")]
)
def test_without_noise_the_texts_decide(make_result: MakeResult, differ: int, n: int, state: State) -> None:
    comparison = compare("mono", [pair(i, equal=i >= differ) for i in range(n)], GATES)
    assert (comparison.n, comparison.delta, comparison.more_questions) == (n, None, None)
    assert comparison.output_agreement == (n - differ) / n
    verdict = judge(make_result, comparison)
    assert verdict.state == state
    assert verdict.reasons[0].channel == "damage"
    bound = beta.ppf(0.95, differ + 1, n - differ)
    assert f"{100 * bound:.2f} %" in verdict.reasons[0].text
    assert ("noise_floor: true" in verdict.reasons[0].text) == (state == "inconclusive")


@pytest.mark.parametrize(("moved", "state"), [(0, "pass"), (3, "pass"), (4, "inconclusive")])
def test_with_noise_the_tokens_decide_whatever_the_texts(make_result: MakeResult, moved: int, state: State) -> None:
    """Half of the texts differ, and by no more than a near-tie does."""
    noise = [pair(i, i % 2 == 0, 0.1) for i in range(400)]
    floor = compare("itself", noise, GATES, noise=noise)
    pairs = [pair(i, i % 2 == 0, 3.0 if i < moved else 0.1) for i in range(400)]
    verdict = judge(make_result, compare("mono", pairs, GATES, noise=noise), floor)
    assert verdict.state == state


@pytest.mark.parametrize(("noise", "state"), [(1.0, "pass"), (1.2, "inconclusive")])
def test_a_baseline_as_noisy_as_damage_decides_nothing(make_result: MakeResult, noise: float, state: State) -> None:
    """Else answers of which none is the baseline's would pass, where it does not repeat its own either."""
    rounds = [pair(i, False, noise if i == 0 else 0.1) for i in range(400)]
    floor = compare("itself", rounds, GATES, noise=rounds)
    verdict = judge(make_result, compare("mono", [pair(i, False, 0.1) for i in range(400)], GATES, noise=rounds), floor)
    assert verdict.state == state
    assert ("above 1.8 nats" in verdict.reasons[0].text) == (state == "inconclusive")


def test_failed_requests_are_no_sameness(make_result: MakeResult) -> None:
    comparison = compare("mono", [pair(i, None if i < 30 else True, error=i < 30) for i in range(400)], GATES)
    assert comparison.n == 370
    verdict = judge(make_result, comparison, error=30)
    assert (verdict.state, verdict.reasons[0].channel) == ("regression", "errors")


def test_nothing_to_compare_is_open(make_result: MakeResult) -> None:
    comparison = compare("mono", [pair(i, None) for i in range(400)], GATES)
    assert judge(make_result, comparison).state == "inconclusive"


def test_an_unscored_answer_is_no_tie_that_ends_a_cell_early() -> None:
    from evals.client import Request
    from evals.records import RequestRecord

    asked = [Request(f"q{i}", "?", {}) for i in range(400)]
    outcomes = dict.fromkeys((r.sample_id for r in asked), "unscored")
    early = EarlyStop(asked, {"mono": outcomes}, GATES, 0.05, lambda _: "unscored", {})  # type: ignore[dict-item]
    for request in early.requests():
        early.seen(
            RequestRecord(
                kind="question",
                sample_id=request.sample_id,
                request_id=request.sample_id,
                endpoint="completions",
                prompt_sha256="",
                t_submit=0.0,
                t_end=1.0,
                text="x",
            )
        )
    assert early.result(400).decided is None
