from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from evals.records import ErrorClass, ErrorLeg, RequestError, RequestRecord
from rig import metrics
from rig.records import Counts, Judged, Leg, Outcome

Record = Callable[..., RequestRecord]
MakeJudged = Callable[..., list[Judged]]


def judged(*outcomes: Outcome, by_scorer: dict[str, Outcome] | None = None) -> list[Judged]:
    return [Judged(f"r{i}", f"q{i}", "s", None, "1", o, by_scorer=by_scorer or {}) for i, o in enumerate(outcomes)]


def failure(leg: ErrorLeg, error_class: ErrorClass) -> RequestError:
    return RequestError(leg, error_class, "")


def test_counts_by_outcome_and_errors_by_class(make_record: Record) -> None:
    records = [
        make_record("a"),
        make_record("b", error=failure("decode", "http_status"), text=None),
        make_record("c", error=failure("prefill", "http_status"), text=None),
        make_record("d", text=None),
        make_record("w", kind="warmup", error=failure("decode", "reset")),
    ]
    found = metrics.counts(judged("correct", "error", "error", "error"), records)
    by_leg = {"decode": {"http_status": 1}, "prefill": {"http_status": 1}}
    assert found == Counts(1, 0, 0, 0, {"empty": 1, "http_status": 2}, by_leg)


def test_a_tainted_answer_is_counted_under_its_taint_and_not_in_accuracy(make_record: Record) -> None:
    records = [
        make_record("a"),
        make_record("b"),
        make_record("c", error=failure("decode", "reset"), text=None),
        make_record("d", text=None),
    ]
    names = ("expired_lease", "stale_blocks")
    rows = [
        Judged(r.request_id, r.sample_id, "s", None, "1", "correct" if r.sample_id == "a" else "error", tainted=taint)
        for r, taint in zip(records, ((), names, names, ("foreign_engine",)), strict=True)
    ]
    found = metrics.counts(rows, records)
    assert found.error == {"empty": 1, "expired_lease": 1, "reset": 1}, "a failure of its own comes first"
    assert found.error_by_leg == {"decode": {"reset": 1}}
    assert metrics.accuracy(rows, "s").value == 1.0


def test_errors_are_named_with_their_leg_where_one_is_known() -> None:
    counts = Counts(1, 0, 0, 0, {"empty": 1, "reset": 4}, {"decode": {"reset": 3}, "prefill": {"reset": 1}})
    assert metrics.error_texts(counts) == ["decode reset 3", "empty 1", "prefill reset 1"]
    assert metrics.error_texts(Counts(1, 0, 0, 0, {"reset": 4})) == ["reset 4"]
    behind = Counts(1, 0, 0, 0, {"reset": 4, "connect": 1}, {"unknown": {"reset": 4}, "proxy": {"connect": 1}})
    assert metrics.error_texts(behind) == ["reset 4", "proxy connect 1"]
    assert metrics.error_texts(Counts(1, 0, 0, 0)) == []


def test_retried_questions_are_counted(make_record: Record) -> None:
    records = [make_record("a", attempts=3), make_record("b"), make_record("w", kind="warmup", attempts=2)]
    assert metrics.retried(records) == 1


@pytest.mark.parametrize(("leg", "error_class"), [("client", "connect"), ("client", "internal"), ("proxy", "internal")])
def test_the_rigs_own_errors_are_kept_apart(make_record: Record, leg: ErrorLeg, error_class: ErrorClass) -> None:
    found = metrics.counts(judged("error"), [make_record("a", error=failure(leg, error_class), text=None)])
    assert found.error.keys() <= metrics.RIGS_OWN


def test_accuracy_leaves_errors_out_and_keeps_invalid_answers_in() -> None:
    found = metrics.accuracy(judged("correct", "correct", "wrong", "unparsed", "truncated", "error"), "s")
    assert found.value == pytest.approx(2 / 5)
    assert found.ci95 is not None and found.ci95[0] < 0.4 < found.ci95[1]


def test_accuracy_stands_beside_that_of_other_scorers() -> None:
    found = metrics.accuracy(judged("correct", by_scorer={"s": "correct", "t": "wrong"}), "s", ["s", "t", "u"])
    assert found.by_scorer == {"s": 1.0, "t": 0.0, "u": None}


@pytest.mark.parametrize("outcomes", [(), ("error", "error")])
def test_accuracy_of_nothing_is_missing_not_zero(outcomes: tuple[Outcome, ...]) -> None:
    found = metrics.accuracy(judged(*outcomes), "s")
    assert found.value is None and found.ci95 is None


def test_latencies_by_vllms_definitions(make_record: Record) -> None:
    record = make_record("a", t_submit=1.0, t_first_token=1.2, t_end=2.2, completion_tokens=11, itl_ms=(90.0, 110.0))
    found = metrics.latency_ms([record])
    assert found["e2e"].p50 == pytest.approx(1200)
    assert found["ttft"].p50 == pytest.approx(200)
    assert found["tpot"].p50 == pytest.approx(100)
    assert (found["itl"].p50, found["itl"].mean) == (100, 100)


def test_percentiles_interpolate(make_record: Record) -> None:
    found = metrics.latency_ms([make_record(str(i), t_submit=0.0, t_end=i / 1000) for i in range(1, 102)])["e2e"]
    assert (found.p50, found.p90, found.p99, found.mean) == pytest.approx((51, 91, 100, 51))


def test_what_was_not_streamed_has_no_ttft(make_record: Record) -> None:
    assert metrics.latency_ms([make_record("a", t_first_token=None)]).keys() == {"e2e"}


def test_one_token_has_no_tpot(make_record: Record) -> None:
    found = metrics.latency_ms([make_record("a", t_first_token=0.1, completion_tokens=1)])
    assert found.keys() == {"e2e", "ttft"}
    assert metrics.latency_ms([make_record("a", t_first_token=0.1, completion_tokens=None)]).keys() == {"e2e", "ttft"}


def test_failed_and_warmup_requests_have_no_latency(make_record: Record) -> None:
    records = [make_record("a", error=failure("decode", "reset")), make_record("w", kind="warmup")]
    assert metrics.latency_ms(records) == {}


def test_throughput_counts_successes_over_the_whole_time(make_record: Record) -> None:
    records = [
        make_record("w", kind="warmup", t_submit=0.0, t_end=1.0),
        make_record("a", t_submit=2.0, t_end=3.0, prompt_tokens=100, completion_tokens=10),
        make_record("b", t_submit=2.0, t_end=4.0, prompt_tokens=50, completion_tokens=20),
        make_record("c", t_submit=2.0, t_end=6.0, completion_tokens=99, error=failure("decode", "stream_error")),
    ]
    found = metrics.throughput(records)
    assert found is not None
    assert (found.duration_s, found.requests_per_s) == (4.0, 0.5)
    assert (found.total_output_tokens, found.output_tokens_per_s, found.total_tokens_per_s) == (30, 7.5, 45.0)


def test_unknown_token_counts_give_no_token_rate(make_record: Record) -> None:
    found = metrics.throughput([make_record("a", prompt_tokens=5, completion_tokens=None)])
    assert found is not None and found.requests_per_s is not None
    assert found.output_tokens_per_s is found.total_tokens_per_s is found.total_output_tokens is None


def test_throughput_of_nothing_is_missing(make_record: Record) -> None:
    assert metrics.throughput([]) is None
    at_once = metrics.throughput([make_record("a", t_submit=1.0, t_end=1.0)])
    assert at_once is not None and at_once.requests_per_s is None


def leg(request_id: str, name: str, start: float, end: float, error: dict[str, str] | None = None) -> Leg:
    return Leg(
        request_id, "prefill" if name == "prefill" else "decode", "i", None, None, 200, start, None, end, None, error
    )


def test_legs_and_what_lies_between() -> None:
    legs = [
        leg("a", "prefill", 10.0, 10.1),
        leg("a", "decode", 10.102, 11.0),
        leg("half", "prefill", 10.0, 19.0),
        leg("bad", "prefill", 10.0, 10.5),
        leg("bad", "decode", 10.6, 10.7, {"class": "reset"}),
    ]
    found = metrics.legs_ms(legs)
    assert [found[name].p50 for name in ("prefill", "handoff", "decode")] == pytest.approx([100, 2, 898])


def test_push_mode_hands_off_before_prefill_ends() -> None:
    assert metrics.legs_ms([leg("a", "prefill", 0.0, 1.0), leg("a", "decode", 0.1, 2.0)])["handoff"].p50 == -900
    assert metrics.legs_ms([]) == {}


def test_the_document_states_every_formula() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "metrics.md").read_text().split())
    for name, formula in metrics.METRIC_FORMULAS.items():
        assert name in text and " ".join(formula.split()) in text, name
