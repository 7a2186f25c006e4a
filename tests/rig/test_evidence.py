"""Counters and legs prove a hand-off, or say why they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evals.records import RequestError, RequestRecord
from rig import evidence
from rig import series as c
from rig.evidence import Shape
from rig.evidence_common import WITHOUT_LEGS
from rig.records import Leg, PromptSources
from rig.series import Reading

SHAPE = Shape("NixlConnector", prefill_tp=1, decode_tp=1)
ZERO = dict.fromkeys(c.WATCHED, 0.0)


def record(i: int, prompt_tokens: int = 100, error: RequestError | None = None) -> RequestRecord:
    return RequestRecord(
        kind="question", sample_id=f"s{i}", request_id=f"r{i}", endpoint="completions", prompt_sha256="x",
        t_submit=0, t_end=1, prompt_tokens=None if error else prompt_tokens, error=error,
    )  # fmt: skip


def legs(i: int, params: bool | None = True) -> list[Leg]:
    common = {"engine_request_id": f"r{i}-u", "engine_id": "e", "status": 200, "t_start": 0.0, "t_first_byte": 0.1}
    return [
        Leg(f"r{i}", "prefill", "prefill-0", **common, t_end=1.0, params_present=params, error=None),  # type: ignore[arg-type]
        Leg(f"r{i}", "decode", "decode-0", **common, t_end=1.0, params_present=None, error=None),  # type: ignore[arg-type]
    ]


def readings(decode: dict[str, float | None], prefill: dict[str, float | None] | None = None) -> tuple[Reading, ...]:
    return (
        Reading("prefill-0", "prefill", ZERO | (prefill or {})),
        Reading("decode-0", "decode", ZERO | decode),
    )


GOOD: dict[str, float | None] = {c.BYTES_COUNT: 2, c.BYTES_SUM: 5000, c.EXTERNAL_TOKENS: 198, c.LOCAL_TOKENS: 2}
RECORDS = [record(1), record(2)]
LEGS = legs(1) + legs(2)


def judge(after: dict[str, float | None], shape: Shape = SHAPE, records=RECORDS, log=LEGS, prefill=None):  # type: ignore[no-untyped-def]
    return evidence.disaggregated(shape, readings({}), readings(after, prefill), records, log)


def test_a_full_hand_off_is_proved() -> None:
    found = judge(GOOD)
    assert found.pd_exercised is True
    assert (found.transfers, found.bytes, found.external_tokens, found.local_tokens) == (2, 5000, 198, 2)
    assert (found.failed, found.expired, found.findings) == (0, 0, ())


def test_a_tensor_parallel_reader_counts_a_transfer_a_rank() -> None:
    two = Shape("NixlConnector", prefill_tp=1, decode_tp=2)
    assert judge(GOOD | {c.BYTES_COUNT: 4}, two).pd_exercised is True
    assert judge(GOOD, two).pd_exercised is False


def test_push_mode_counts_on_the_prefill_side() -> None:
    push = Shape("NixlPushConnector", 1, 1)
    decode: dict[str, float | None] = {c.EXTERNAL_TOKENS: 198, c.LOCAL_TOKENS: 2}
    assert judge(decode, push, prefill={c.BYTES_COUNT: 2}).pd_exercised is True
    assert judge(GOOD, push).pd_exercised is False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({c.BYTES_COUNT: 1}, "1 KV transfers for 2 answered requests"),
        ({c.BYTES_COUNT: None}, f"the series {c.BYTES_COUNT} is missing"),
        ({c.EXTERNAL_TOKENS: 0, c.LOCAL_TOKENS: 200}, "decode computed 200 prompt tokens itself"),
        ({c.EXTERNAL_TOKENS: 150}, "decode counted 152 prompt tokens"),
        ({c.EXTERNAL_TOKENS: None}, "series of prompt tokens by source are missing"),
    ],
)
def test_kv_that_did_not_move_is_invalid(change: dict[str, float | None], words: str) -> None:
    found = judge(GOOD | change)
    assert found.pd_exercised is False
    assert any(words in f.text and f.severity == "invalid" for f in found.findings)


def test_a_hand_off_without_parameters_is_invalid() -> None:
    found = judge(GOOD, log=legs(1) + legs(2, params=False))
    assert found.pd_exercised is False
    assert "1 answered requests have no complete hand-off" in found.findings[0].text


WROTE: dict[str, float | None] = {c.GENERATED: 60, c.SUCCESS: 2}
WRITTEN = [replace(r, completion_tokens=30) for r in RECORDS]


def test_behind_a_router_without_legs_decode_must_have_written_the_answers() -> None:
    found = judge(GOOD | WROTE, records=WRITTEN, log=None, prefill={c.SUCCESS: 2})
    assert found.pd_exercised is True and [f.text for f in found.findings] == [WITHOUT_LEGS]
    more = judge(GOOD | WROTE | {c.GENERATED: 64}, records=WRITTEN, log=None)
    assert more.pd_exercised is True, "tokens past a stop string"


@pytest.mark.parametrize(
    ("generated", "words"),
    [(2, "decode generated 2 tokens, the answers have 60"), (None, "nothing shows that decode wrote the answers")],
)
def test_an_answer_that_decode_did_not_write_is_invalid(generated: float | None, words: str) -> None:
    """The KV moved, and one token was decoded for show: the answer is another's."""
    change = GOOD | WROTE | {c.GENERATED: generated}
    found = judge(change, records=WRITTEN, log=None)
    assert found.pd_exercised is False
    assert [f.severity for f in found.findings if words in f.text] == ["invalid"]
    assert judge(change, records=WRITTEN).pd_exercised is True, "the legs tell who answered"


def test_a_server_that_a_router_left_out_is_named() -> None:
    spare = Reading("decode-1", "decode", ZERO)
    before = (*readings({}), spare)
    after = (*readings(GOOD | WROTE, {c.SUCCESS: 2}), spare)
    found = evidence.disaggregated(SHAPE, before, after, WRITTEN, None)
    assert found.pd_exercised is True
    assert [f.text for f in found.findings[1:]] == [
        "the router left out decode-1: no request ended there, so nothing here speaks of it"
    ]


def test_a_failed_request_may_or_may_not_have_moved_its_kv() -> None:
    failed = record(3, error=RequestError("decode", "reset", "gone"))
    assert judge(GOOD, records=[*RECORDS, failed]).pd_exercised is True
    assert judge(GOOD | {c.BYTES_COUNT: 3, c.EXTERNAL_TOKENS: 297}, records=[*RECORDS, failed]).pd_exercised is True
    assert judge(GOOD | {c.BYTES_COUNT: 4}, records=[*RECORDS, failed]).pd_exercised is False


def test_failures_and_expiries_are_counted_over_all_instances_and_said() -> None:
    found = judge(GOOD | {c.FAILED_TRANSFERS: 2}, prefill={c.EXPIRED: 3})
    assert (found.failed, found.expired) == (2, 3)
    assert {f.text for f in found.findings} == {
        "2 transfers or notifications failed",
        "3 KV leases expired before decode had read",
    }


def test_a_failed_notification_is_one_failure_though_two_series_count_it() -> None:
    assert judge(GOOD | {c.FAILED_TRANSFERS: 2, c.FAILED_NOTIFICATIONS: 1}).failed == 2
    assert judge(GOOD | {c.FAILED_TRANSFERS: None}).failed is None


def test_a_read_of_blocks_that_were_given_up_is_damage() -> None:
    [found] = judge(GOOD, prefill={c.LATE_READS: 2}).findings
    assert (found.channel, found.severity) == ("transfer", "damage") and found.text.startswith("2 reads")


@pytest.mark.parametrize("kind", ["disaggregated", "monolithic"])
def test_kv_that_is_not_given_back_is_a_finding(kind: str) -> None:
    before, after = readings({c.KV_USAGE: 0.25}), readings(GOOD | {c.KV_USAGE: 0.375})
    if kind == "monolithic":
        found = evidence.monolithic(before, after)
    else:
        found = evidence.disaggregated(SHAPE, before, after, RECORDS, LEGS)
    assert [f.text for f in found.findings] == ["decode-0: 12.5 % of the KV cache was not given back after the run"]
    assert found.findings[0].channel == "transfer"
    assert evidence.monolithic(after, before).findings == ()


def test_blocks_that_decode_keeps_for_the_next_turn_are_no_leak() -> None:
    keeps = replace(SHAPE, decode_keeps=True)
    after = GOOD | {c.KV_USAGE: 0.5}
    assert judge(after, keeps).findings == ()
    assert len(judge(after, keeps, prefill={c.KV_USAGE: 0.5}).findings) == 1


def test_a_multi_connector_is_proved_by_its_nixl_child() -> None:
    both = Shape("MultiConnector", 1, 1, ("NixlConnector", "OffloadingConnector"))
    assert judge(GOOD, both).pd_exercised is True
    assert judge(GOOD | {c.BYTES_COUNT: 1}, both).pd_exercised is False
    loaded = judge(GOOD | {c.OFFLOAD_LOADED: 4096}, both)
    assert [f.text for f in loaded.findings] == ["decode-0 loaded 4,096 bytes of KV from its own offload storage"]
    assert judge(GOOD, replace(both, inside=("OffloadingConnector",))).pd_exercised is None


def test_a_series_that_begins_with_the_first_load_counts_from_nothing() -> None:
    both = Shape("MultiConnector", 1, 1, ("NixlConnector", "OffloadingConnector"))
    after = readings(GOOD | {c.OFFLOAD_LOADED: 7})
    found = evidence.disaggregated(both, readings({c.OFFLOAD_LOADED: None}), after, RECORDS, LEGS)
    assert "loaded 7 bytes" in found.findings[0].text


def test_a_missing_series_is_none_and_said() -> None:
    found = judge(GOOD | {c.EXPIRED: None})
    assert found.expired is None
    assert "missing" in found.findings[0].text


def test_an_unknown_connector_is_not_guessed_at() -> None:
    found = judge(GOOD, replace(SHAPE, connector="SomeConnector"))
    assert found.pd_exercised is None
    assert found.findings[0].severity == "invalid" and "known are NixlConnector" in found.findings[0].text


def test_an_instance_that_cannot_be_read_is_invalid() -> None:
    after = (readings(GOOD)[0], Reading("decode-0", "decode", missing="ConnectError"))
    found = evidence.disaggregated(SHAPE, readings({}), after, RECORDS, LEGS)
    assert found.pd_exercised is False
    assert any("decode-0: counters could not be read" in f.text for f in found.findings)


def test_a_counter_that_went_backwards_is_not_a_number() -> None:
    before = readings({c.BYTES_COUNT: 10})
    assert evidence.deltas(before, readings(GOOD))["decode-0"][c.BYTES_COUNT] is None


def test_parse_sums_ranks_and_leaves_absent_series_none() -> None:
    text = (
        "# TYPE vllm:nixl_bytes_transferred histogram\n"
        'vllm:nixl_bytes_transferred_sum{engine="0"} 5\nvllm:nixl_bytes_transferred_sum{engine="1"} 7\n'
        "# TYPE vllm:prompt_tokens_by_source counter\n"
        'vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 9\n'
    )
    values = c.parse(text)
    assert values[c.BYTES_SUM] == 12
    assert values[c.EXTERNAL_TOKENS] == 9
    assert values[c.EXPIRED] is None


def test_what_decode_was_told_to_recompute_is_no_prefill_by_itself() -> None:
    again = {c.BYTES_COUNT: 1, c.EXTERNAL_TOKENS: 99, c.LOCAL_TOKENS: 101, c.FAILED_TRANSFERS: 1}
    told = Shape("NixlConnector", prefill_tp=1, decode_tp=1, recomputes=True)
    assert judge(GOOD | again, told).pd_exercised is True
    assert judge(GOOD | again).pd_exercised is False, "under the policy `fail` nothing is recomputed"
    unexplained = GOOD | again | {c.FAILED_TRANSFERS: 0}
    assert judge(unexplained, told).pd_exercised is False, "no load failed, so nothing had to be computed again"
    assert judge(GOOD | again | {c.BYTES_COUNT: 0, c.FAILED_TRANSFERS: 2}, told).pd_exercised is False, "nothing moved"


@pytest.mark.parametrize(
    ("pass_", "sources", "severity", "words"),
    [
        (2, PromptSources(0, 1, 999), None, ""),
        (1, PromptSources(0, 0, 1000), None, ""),
        (1, None, None, ""),
        (
            2,
            PromptSources(900, 0, 100),
            "invalid",
            "pass 2 loaded nothing from the connector's storage, so",
        ),
        (
            2,
            PromptSources(900, 0, 100),
            "invalid",
            "900 of 1,000 prompt tokens were still in the server's own",
        ),
        (3, PromptSources(0, 0, 1000), "invalid", "all 1,000 prompt tokens were computed; give the storage more room"),
        (2, None, "invalid", "is not known: their series are missing"),
        (0, PromptSources(0, 0, 1000), "note", "storing alone was tested: `passes: 2` asks"),
    ],
)
def test_a_later_pass_that_loads_nothing_has_not_tested_the_storage(
    pass_: int, sources: PromptSources | None, severity: str | None, words: str
) -> None:
    found = evidence.storage(True, (), sources, pass_)
    assert [f.severity for f in found] == ([severity] if severity else [])
    assert all(words in f.text for f in found)
    assert evidence.storage(False, ("NixlConnector", "OffloadingConnector"), sources, pass_) == found
    assert evidence.storage(False, ("NixlConnector",), sources, pass_) == ()
    assert evidence.storage(False, (), sources, pass_) == ()
