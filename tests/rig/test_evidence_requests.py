"""Legs and records taint single requests, and show who ran beside a failed one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.records import RequestError, RequestRecord
from rig.evidence_requests import beside_failed, taints
from rig.records import Judged, Leg

Record = Callable[..., RequestRecord]


def leg(
    request: str,
    engine: str | None = "e",
    *,
    end: float = 1.0,
    side: str = "prefill",
    instance: str = "prefill-0",
    params: bool | None = True,
    error: dict[str, str] | None = None,
) -> Leg:
    return Leg(request, side, instance, None, engine, 200, 0.0, 0.1, end, params, error)  # type: ignore[arg-type]


def test_sound_legs_taint_nothing() -> None:
    assert taints([leg("r1"), leg("r1", None, side="decode", instance="decode-0", params=None)], {}) == {}
    assert taints(None, {}) == {}


def test_another_engine_than_the_first_of_its_instance_taints() -> None:
    legs = [leg("late", "other", end=9), leg("check", "e", end=0.5), leg("r1", end=2)]
    assert taints(legs, {}) == {"late": ("foreign_engine",)}, "first is by time, not by place in the file"


def test_ranks_are_one_engine_and_instances_have_their_own() -> None:
    legs = [leg("r1", "e_dp0"), leg("r2", "e_dp1", end=2), leg("r3", "f", end=3, instance="prefill-1")]
    assert taints(legs, {}) == {}


def test_prefill_without_parameters_left_the_prompt_to_decode() -> None:
    decode = leg("r1", None, end=2, side="decode", instance="decode-0", params=None)
    assert taints([leg("r1", params=False), decode], {}) == {"r1": ("decode_prefilled",)}
    assert taints([leg("r1", params=False)], {}) == {}, "decode was never asked"
    failed = leg("r1", None, params=False, error={"class": "reset", "message": ""})
    assert taints([failed, decode], {}) == {}, "a leg that failed says nothing of the next"


def test_what_the_logs_say_comes_first_and_once() -> None:
    decode = leg("r1", None, end=3, side="decode", instance="decode-0", params=None)
    legs = [leg("check"), leg("r1", "other", end=2, params=False), decode]
    logged = {"r1": ("expired_lease", "stale_blocks", "decode_prefilled"), "r2": ("stale_blocks",)}
    assert taints(legs, logged) == {
        "r1": ("expired_lease", "stale_blocks", "decode_prefilled", "foreign_engine"),
        "r2": ("stale_blocks",),
    }


def answer(sample: str, outcome: str) -> Judged:
    return Judged(f"r-{sample}", sample, "robust", None, None, outcome)  # type: ignore[arg-type]


RESET = RequestError("decode", "reset", "gone")


def test_who_ran_beside_a_failed_request(make_record: Record) -> None:
    records = [
        make_record("f", t_submit=2.0, t_end=4.0, error=RESET),
        make_record("a", t_submit=0.0, t_end=2.0),
        make_record("b", t_submit=3.0, t_end=9.0),
        make_record("c", t_submit=0.0, t_end=1.5),
        make_record("d", t_submit=4.5, t_end=5.0),
        make_record("t", t_submit=3.0, t_end=3.5),
    ]
    outcomes = {"f": "error", "a": "correct", "b": "wrong", "c": "correct", "d": "truncated", "t": "error"}
    [finding] = beside_failed([answer(s, o) for s, o in outcomes.items()], records)
    assert finding.text == (
        "2 questions were in flight beside a failed request, and 1 of them were not answered right; of the 2 others 1"
    )
    assert (finding.channel, finding.severity) == ("errors", "note")


def test_questions_without_a_right_answer_fare_neither_well_nor_badly(make_record: Record) -> None:
    records = [make_record("f", error=RESET), make_record("a")]
    assert beside_failed([answer("f", "error"), answer("a", "unscored")], records) == ()


def test_without_failures_there_is_nothing_to_stand_beside(make_record: Record) -> None:
    own = make_record("f", error=RequestError("client", "internal", "ours"))
    assert beside_failed([answer("a", "wrong")], [make_record("a"), own]) == ()


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=12)


@given(failed=spans, asked=spans)
def test_beside_is_overlap_with_any_failed_request(failed: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    def record(name: str, start: int, length: int, error: RequestError | None) -> RequestRecord:
        return RequestRecord(
            kind="question", sample_id=name, request_id=f"r-{name}", endpoint="completions", prompt_sha256="",
            t_submit=start, t_end=start + length, error=error,
        )  # fmt: skip

    records = [record(f"f{i}", *span, RESET) for i, span in enumerate(failed)]
    records += [record(f"q{i}", *span, None) for i, span in enumerate(asked)]
    beside = sum(any(s <= t + m and t <= s + n for s, n in failed) for t, m in asked)
    [finding] = beside_failed([answer(f"q{i}", "correct") for i in range(len(asked))], records)
    assert finding.text.startswith(f"{beside} questions were in flight beside")


@pytest.mark.parametrize("outcome", ["wrong", "unparsed", "truncated"])
def test_any_answer_that_is_not_right_is_lost(make_record: Record, outcome: str) -> None:
    records = [make_record("f", error=RESET), make_record("a")]
    [finding] = beside_failed([answer("a", outcome)], records)
    assert "and 1 of them were not answered right" in finding.text
