"""From a canary's answer to what it shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evals.canaries import Canary, make_canaries
from evals.records import RequestError, RequestRecord
from rig.judge_canaries import count_canaries, judge_canaries
from rig.records import Canaries, CanaryOutcome, JudgedCanary

MakeRecord = Callable[..., RequestRecord]
GONE = RequestError("decode", "stream_cut", "gone")


@pytest.fixture
def canaries() -> dict[tuple[str, int], Canary]:
    """Three, in each of two rounds."""
    return {
        (c.sample.sample_id, repeat): c
        for repeat in (0, 1)
        for c in make_canaries("gsm-tiny", 3, f"cell/{repeat}", {}, "completions")
    }


def said(code: str) -> str:
    return f"The code is {code}.\n#### {code}"


@pytest.mark.parametrize(
    ("answer", "outcome", "crossed_with"),
    [
        (("canary-0000", 0), "right", None),
        (("canary-0001", 0), "crossed", "canary-0001"),
        (("canary-0002", 1), "crossed", "canary-0002"),
        (("canary-0000", 1), "crossed", "canary-0000"),
        ("#### 000000", "wrong", None),
        ("I do not know.", "wrong", None),
        ("", "wrong", None),
        (None, "wrong", None),
    ],
    ids=["own", "another's", "another round's", "its own of another round", "nobody's", "none", "empty", "no text"],
)
def test_what_an_answer_shows(
    make_record: MakeRecord,
    canaries: dict[tuple[str, int], Canary],
    answer: tuple[str, int] | str | None,
    outcome: str,
    crossed_with: str | None,
) -> None:
    text = said(canaries[answer].code) if isinstance(answer, tuple) else answer
    [judged] = judge_canaries([make_record("canary-0000", kind="canary", text=text)], canaries, {})
    assert (judged.outcome, judged.crossed_with) == (outcome, crossed_with)
    assert judged.expected == canaries["canary-0000", 0].code


def test_the_code_is_that_of_the_round(make_record: MakeRecord, canaries: dict[tuple[str, int], Canary]) -> None:
    record = make_record("canary-0000", kind="canary", repeat=1, text=said(canaries["canary-0000", 1].code))
    [judged] = judge_canaries([record], canaries, {})
    assert (judged.outcome, judged.repeat) == ("right", 1)


@pytest.mark.parametrize("why", ["failed", "tainted"])
def test_no_usable_answer_is_neither_right_nor_wrong(
    make_record: MakeRecord, canaries: dict[tuple[str, int], Canary], why: str
) -> None:
    other = said(canaries["canary-0001", 0].code)
    record = make_record("canary-0000", kind="canary", text=other, error=GONE if why == "failed" else None)
    taints = {record.request_id: ("stale_blocks",)} if why == "tainted" else {}
    [judged] = judge_canaries([record], canaries, taints)
    assert (judged.outcome, judged.answer, judged.crossed_with) == ("error", None, None)


def test_place_and_company_are_counted_among_all_requests(
    make_record: MakeRecord, canaries: dict[tuple[str, int], Canary]
) -> None:
    records = [
        make_record("q0", t_submit=0.0, t_end=9.0),
        make_record("canary-0001", kind="canary", t_submit=3.0, t_end=4.0, prompt_tokens=77),
        make_record("q1", t_submit=1.0, t_end=2.0),
        make_record("canary-0000", kind="canary", t_submit=5.0, t_end=6.0),
        make_record("q2", t_submit=4.5, t_end=8.0),
    ]
    found = {j.sample_id: j for j in judge_canaries(records, canaries, {})}
    assert list(found) == ["canary-0001", "canary-0000"], "in order of arrival; questions are no canaries"
    assert (found["canary-0001"].order, found["canary-0001"].concurrency) == (2, 2)
    assert (found["canary-0000"].order, found["canary-0000"].concurrency) == (4, 3)
    assert (found["canary-0001"].prompt_tokens, found["canary-0000"].prompt_tokens) == (77, None)


def test_counts() -> None:
    outcomes = ["right", "wrong", "wrong", "crossed", "error", "right"]
    judged = [JudgedCanary(f"r{i}", f"c{i}", "1", None, o) for i, o in enumerate(outcomes)]  # type: ignore[arg-type]
    assert count_canaries(judged) == Canaries(sent=6, wrong=2, crossed=1, error=1)
    assert count_canaries([]) is None, "none asked is missing, not 0"


def test_lost_canaries_are_counted_by_place_length_and_concurrency() -> None:
    def one(i: int, outcome: CanaryOutcome) -> JudgedCanary:
        where = {"order": i, "concurrency": 8, "prompt_tokens": 100 * i, "position": i / 10}
        return JudgedCanary(f"r{i}", f"canary-{i:04d}", "123456", None, outcome, **where)  # type: ignore[arg-type]

    found = count_canaries([*(one(i, "wrong" if i < 2 else "right") for i in range(9)), one(9, "error")])
    assert found is not None and (found.sent, found.wrong, found.error) == (10, 2, 1)
    assert found.lost_by == {
        "position": {"0 to 20 %": (2, 3), "30 to 50 %": (0, 3), "60 to 80 %": (0, 3)},
        "length": {"0 to 200 tokens": (2, 3), "300 to 500 tokens": (0, 3), "600 to 800 tokens": (0, 3)},
        "concurrency": {"8 to 8 in flight": (2, 9)},
    }
