from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from evals.errors import BadParams
from evals.records import RequestError, RequestRecord
from rig.errors import RunError
from rig.judge import judge, with_reasoning

SCORERS = ("gsm8k-strict", "gsm8k-flexible", "gsm8k-vllm", "robust")
Record = Callable[..., RequestRecord]


def one(record: RequestRecord, target: str = "6 x 3 = 18\n#### 18") -> tuple[str, str | None, dict[str, str]]:
    [judged] = judge([record], {"q": target}, SCORERS, "gsm8k-strict")
    return judged.outcome, judged.answer, dict(judged.by_scorer)


def test_every_scorer_is_asked_and_one_decides(make_record: Record) -> None:
    outcome, answer, by_scorer = one(make_record("q", text="The answer is 18."))
    assert (outcome, answer) == ("unparsed", None)
    assert set(by_scorer) == set(SCORERS)
    assert by_scorer["gsm8k-flexible"] == by_scorer["gsm8k-vllm"] == by_scorer["robust"] == "correct"


@pytest.mark.parametrize(
    ("text", "finish", "outcome"),
    [
        (" 18\n#### 18", "stop", "correct"),
        (" 18\n#### 18", "length", "correct"),
        ("#### 7", "stop", "wrong"),
        ("I do not know", "stop", "unparsed"),
        ("I do not know", "length", "truncated"),
    ],
)
def test_a_text_is_scored_before_it_counts_as_truncated(
    make_record: Record, text: str, finish: str, outcome: str
) -> None:
    assert one(make_record("q", text=text, finish_reason=finish))[0] == outcome


def test_an_error_is_never_a_wrong_answer(make_record: Record) -> None:
    error = RequestError("decode", "stream_cut", "cut")
    outcome, answer, by_scorer = one(make_record("q", text="#### 7", error=error))
    assert (outcome, answer) == ("error", None)
    assert set(by_scorer.values()) == {"error"}


@pytest.mark.parametrize("text", ["#### 18", "#### 7"])
def test_a_tainted_answer_is_neither_right_nor_wrong(make_record: Record, text: str) -> None:
    records = [make_record("q", text=text), make_record("p")]
    taints = {"r-q": ("expired_lease", "stale_blocks"), "elsewhere": ("foreign_engine",)}
    tainted, other = judge(records, {"q": "#### 18", "p": "#### 18"}, SCORERS, "robust", taints)
    assert (tainted.outcome, tainted.answer, tainted.tainted) == ("error", None, ("expired_lease", "stale_blocks"))
    assert set(tainted.by_scorer.values()) == {"error"}
    assert (other.outcome, other.tainted) == ("correct", ())


def test_a_success_without_text_is_an_error(make_record: Record) -> None:
    assert one(make_record("q", text=None))[0] == "error"


def test_only_questions_are_judged(make_record: Record) -> None:
    records = [make_record("w", kind="warmup"), make_record("q"), make_record("p", kind="preflight")]
    assert [j.sample_id for j in judge(records, {"q": "#### 18"}, SCORERS, "robust")] == ["q"]


def test_judged_records_carry_what_was_expected(make_record: Record) -> None:
    [judged] = judge([make_record("q", request_id="r-1")], {"q": "so\n#### 1,018"}, (), "robust")
    assert (judged.request_id, judged.scorer, judged.target) == ("r-1", "robust", "1018")
    assert judged.by_scorer == {"robust": "wrong"}


def test_a_question_that_is_not_the_tasks_is_named(make_record: Record) -> None:
    with pytest.raises(RunError, match="question other is not one of the task's"):
        judge([make_record("other")], {"q": "#### 18"}, SCORERS, "robust")


def test_an_unknown_scorer_is_named(make_record: Record) -> None:
    with pytest.raises(BadParams, match="nonsense"):
        judge([make_record("q")], {"q": "#### 18"}, ("nonsense",), "robust")


def test_reasoning_is_scored_only_where_it_is_asked_for(make_record: Record) -> None:
    empty = make_record("q", text=None, reasoning="so\n#### 18", error=RequestError("decode", "empty", "no text"))
    assert one(with_reasoning(empty, False))[0] == "error"
    assert one(with_reasoning(empty, True))[:2] == ("correct", "18")
    assert one(with_reasoning(replace(empty, error=None), True))[0] == "correct"


def test_reasoning_never_stands_for_a_text_or_a_fault(make_record: Record) -> None:
    answered = make_record("q", text="#### 7", reasoning="#### 18")
    assert with_reasoning(answered, True) is answered
    cut = make_record("q", text=None, reasoning="#### 18", error=RequestError("decode", "stream_cut", "cut"))
    assert with_reasoning(cut, True) is cut
    silent = make_record("q", text=None, error=RequestError("decode", "empty", "no text"))
    assert with_reasoning(silent, True) is silent


def test_reasoning_that_ended_by_length_without_an_answer_is_truncated(make_record: Record) -> None:
    error = RequestError("decode", "empty", "no text")
    record = make_record("q", text=None, reasoning="let me think", finish_reason="length", error=error)
    assert one(with_reasoning(record, True))[0] == "truncated"
