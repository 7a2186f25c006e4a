from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.records import RequestError, RequestRecord
from rig.errors import RunError
from rig.pairs import Side, make_pairs, repeats_of, require_same_prompts, sign_counts
from rig.records import Judged, Leg, Outcome, Pair, Repeats

MakeRecord = Callable[..., RequestRecord]
FAILED = RequestError("decode", "reset", "gone")


def judged(sample: str, outcome: Outcome = "correct", repeat: int = 0) -> Judged:
    return Judged(f"r-{sample}", sample, "s", "1", "1", outcome, repeat=repeat)


def leg(request_id: str, which: str, instance: str, error: dict[str, str] | None = None) -> Leg:
    name: Any = which
    return Leg(request_id, name, instance, None, None, 200, 0.0, 0.1, 1.0, True, error)


def side(records: Sequence[RequestRecord], legs: Sequence[Leg] | None = None) -> Side:
    return Side([judged(r.sample_id, "error" if r.error else "correct", r.repeat) for r in records], records, legs)


# make_pairs


def test_pairs_come_in_order_of_the_cells_submits(make_record: MakeRecord) -> None:
    mine = [make_record("a", t_submit=2.0, t_end=3.0), make_record("b", t_submit=1.0), make_record("c", t_submit=0.0)]
    theirs = [make_record("a"), make_record("c"), make_record("d")]
    found = make_pairs(side(mine), side(theirs), None)
    assert [(p.sample_id, p.order) for p in found] == [("c", 0), ("a", 2)]


def test_a_repeat_pairs_with_the_same_repeat_only(make_record: MakeRecord) -> None:
    mine = [make_record("a", request_id=f"r{k}", repeat=k, t_submit=float(k)) for k in range(3)]
    found = make_pairs(side(mine), side([make_record("a", repeat=1)]), None)
    assert [(p.repeat, p.request_id) for p in found] == [(1, "r1")]


def test_failures_are_pairs_whose_outcome_says_so(make_record: MakeRecord) -> None:
    whole, broken = make_record("a"), make_record("b", text="#### 1", error=FAILED)
    found = {p.sample_id: p for p in make_pairs(side([whole, broken]), side([whole, make_record("b")]), None)}
    assert (found["a"].outcome, found["a"].equal) == ("correct", True)
    assert (found["b"].outcome, found["b"].baseline_outcome, found["b"].equal) == ("error", "correct", None)


def test_a_question_answered_twice_in_one_repeat_is_refused(make_record: MakeRecord) -> None:
    twice = [make_record("a"), make_record("a", request_id="again")]
    with pytest.raises(RunError, match="the baseline answered the question a more than once"):
        make_pairs(side([make_record("a")]), Side([judged("a")], twice), None)


def test_tokens_tell_where_outputs_part_and_by_how_much(make_record: MakeRecord) -> None:
    mine = make_record("a", text="x", token_ids=(5, 6, 7), logprobs=(-0.1, -0.2, -0.1))
    theirs = make_record("a", text="y", token_ids=(5, 6, 8), logprobs=(-0.1, -3.2, -0.1))
    pair = make_pairs(side([mine]), side([theirs]), None)[0]
    assert (pair.equal, pair.first_token, pair.shift) == (False, 2, pytest.approx(3.0))
    without = make_pairs(side([replace(mine, logprobs=None)]), side([theirs]), None)[0]
    assert (without.first_token, without.shift) == (2, None)
    assert make_pairs(side([replace(mine, token_ids=None)]), side([theirs]), None)[0].first_token is None


def test_who_ran_beside_and_what_ended_before(make_record: MakeRecord) -> None:
    canary = make_record("canary-0000", kind="canary", t_submit=0.0, t_end=1.99)
    questions = [
        make_record("a", t_submit=0.0, t_end=5.0),
        make_record("b", t_submit=2.0, t_end=3.0),
        make_record("c", t_submit=5.0, t_end=6.0),
    ]
    found = make_pairs(side(questions), side(questions), None, [canary, *questions])
    assert [p.concurrency for p in found] == [2, 2, 1]
    assert [p.predecessor for p in found] == [None, "canary-0000", "a"]
    assert found[0].since_finish_ms is None
    assert found[1].since_finish_ms == pytest.approx(10.0)
    assert found[2].since_finish_ms == 0.0
    alone = make_pairs(side(questions), side(questions), None)
    assert [p.concurrency for p in alone] == [1, 2, 1] and alone[1].predecessor is None


MOMENTS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), min_size=1, max_size=30)


@given(MOMENTS)
def test_the_sweep_agrees_with_counting_every_pair_of_requests(spans: list[tuple[int, int]]) -> None:
    records = [
        RequestRecord(
            kind="question",
            sample_id=f"q{i}",
            request_id=f"r{i}",
            endpoint="completions",
            prompt_sha256="0",
            t_submit=float(start),
            t_end=float(start + length),
            text="",
        )
        for i, (start, length) in enumerate(spans)
    ]
    by_id = {r.sample_id: r for r in records}
    for pair in make_pairs(side(records), side(records), None):
        mine = by_id[pair.sample_id]
        others = [r for r in records if r is not mine]
        assert pair.concurrency == 1 + sum(r.t_submit <= mine.t_submit < r.t_end for r in others)
        ended = [r.t_end for r in others if r.t_end <= mine.t_submit]
        assert pair.since_finish_ms == ((mine.t_submit - max(ended)) * 1000 if ended else None)
        if ended:
            assert pair.predecessor is not None and by_id[pair.predecessor].t_end == max(ended)


def test_prompts_and_blocks(make_record: MakeRecord) -> None:
    mine = [make_record("a", prompt_tokens=48), make_record("b", prompt_tokens=49), make_record("c")]
    found = {p.sample_id: p for p in make_pairs(side(mine), side(mine), 16)}
    assert [(found[s].prompt_tokens, found[s].block_remainder) for s in "abc"] == [(48, 0), (49, 1), (None, None)]
    assert all(p.block_remainder is None for p in make_pairs(side(mine), side(mine), None))


def test_who_served_it(make_record: MakeRecord) -> None:
    mine = [make_record("a", request_id="ra"), make_record("b", request_id="rb"), make_record("c", request_id="rc")]
    reset = {"class": "reset"}
    legs = [
        leg("ra", "prefill", "p0"),
        leg("ra", "decode", "d1"),
        leg("ra", "decode", "d0", error=reset),
        leg("rb", "prefill", "p1"),
        leg("rb", "decode", "d1", error=reset),
        leg("elsewhere", "prefill", "p0"),
    ]
    found = {p.sample_id: (p.prefill, p.decode) for p in make_pairs(side(mine, legs), side(mine), None)}
    assert found == {"a": ("p0", "d1"), "b": ("p1", "d1"), "c": (None, None)}


# require_same_prompts


def test_other_words_are_refused_by_name(make_record: MakeRecord) -> None:
    mine = [make_record("b", t_submit=1.0, prompt_sha256="1"), make_record("a", t_submit=2.0, prompt_sha256="1")]
    theirs = [make_record("a"), make_record("b")]
    with pytest.raises(RunError, match="the question b was put to the cell and to mono in different words"):
        require_same_prompts(side(mine), side(theirs), "mono")
    require_same_prompts(side(theirs), side(theirs))
    require_same_prompts(side(mine), side([make_record("c")]))


# repeats_of


def test_asked_once_there_are_no_repeats() -> None:
    assert repeats_of([judged("a"), judged("b", "wrong")]) is None
    assert repeats_of([]) is None


def test_repeats_count_the_union_of_bad_questions() -> None:
    answers: dict[str, tuple[Outcome, ...]] = {
        "steady": ("correct", "correct", "correct"),
        "once": ("correct", "wrong", "correct"),
        "another": ("unparsed", "correct", "correct"),
        "always": ("wrong", "truncated", "wrong"),
        "failed": ("wrong", "error", "wrong"),
        "missing": ("wrong", "wrong"),
    }
    found = repeats_of([judged(s, outcome, k) for s, all_ in answers.items() for k, outcome in enumerate(all_)])
    bad = ("always", "another", "once")
    assert found == Repeats(times=3, n=4, wrong_any=3, wrong_all=1, flipped=2, bad=bad)


# sign_counts


def pair(sample: str, mine: Outcome, theirs: Outcome, repeat: int = 0) -> Pair:
    return Pair(sample, "r", "b", mine, theirs, repeat)


OUTCOMES = st.sampled_from(["correct", "wrong", "unparsed", "truncated", "error"])


@given(st.lists(st.tuples(OUTCOMES, OUTCOMES)))
def test_with_one_repeat_signs_are_mcnemars_counts(outcomes: list[tuple[Outcome, Outcome]]) -> None:
    usable = [(m, t) for m, t in outcomes if "error" not in (m, t)]
    b = sum(t == "correct" != m for m, t in usable)
    c = sum(m == "correct" != t for m, t in usable)
    assert sign_counts([pair(f"q{i}", m, t) for i, (m, t) in enumerate(outcomes)]) == (b, c)


def test_each_question_counts_once_over_its_repeats() -> None:
    pairs = [
        pair("worse", "wrong", "correct", 0),
        pair("worse", "wrong", "correct", 1),
        pair("worse", "correct", "wrong", 2),
        pair("even", "wrong", "correct", 0),
        pair("even", "correct", "wrong", 1),
        pair("better", "correct", "wrong", 0),
        pair("better", "error", "correct", 1),
    ]
    assert sign_counts(pairs) == (1, 1)
