"""Evidence of cells that were asked in parts: sums, what each part must prove, and when a part cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.records import RequestError, RequestRecord
from rig import evidence
from rig import series as c
from rig.evidence_common import left_out
from rig.evidence_parts import about, together, unprovable, with_legs
from rig.records import Evidence, Finding, Leg
from rig.series import Reading

MakeRecord = Callable[..., RequestRecord]
SHAPE = evidence.Shape("NixlConnector", 1, 1)


def leg(request: str, name: str, **fields: Any) -> Leg:
    given: dict[str, Any] = {"instance": f"http://{name}", "params_present": name == "prefill" or None}
    rest: dict[str, Any] = {"engine_request_id": None, "engine_id": None, "status": 200, "error": None}
    return Leg(request, name, **{**rest, **given, **fields}, t_start=0.0, t_first_byte=None, t_end=1.0)  # type: ignore[arg-type]


def readings(transfers: int, external: int, local: int) -> tuple[Reading, ...]:
    counted = {c.BYTES_COUNT: transfers, c.EXTERNAL_TOKENS: external, c.LOCAL_TOKENS: local, c.CACHED_TOKENS: 0}
    usual = dict.fromkeys(c.WATCHED, 0.0) | {name: float(n) for name, n in counted.items()}
    return (Reading("prefill-0", "prefill", dict.fromkeys(c.WATCHED, 0.0)), Reading("decode-0", "decode", dict(usual)))


def proof(make_record: MakeRecord, transfers: int, local: int, under_way: int | None) -> Evidence:
    """Ten answers of 100 prompt tokens, `local` of which decode computed."""
    records = [make_record(f"q{i}", prompt_tokens=100) for i in range(10)]
    legs = [leg(r.request_id, name) for r in records for name in ("prefill", "decode")]
    after = readings(transfers, 1000 - local if local < 1000 else 0, local)
    return evidence.disaggregated(SHAPE, readings(0, 0, 0), after, records, legs, under_way)


PARTS = [
    ("idle, all moved", 10, 10, None, True),
    ("idle, one more than answered", 11, 10, None, False),
    ("some under way have moved", 13, 13, 4, True),
    ("none under way has", 10, 10, 4, True),
    ("more than were begun", 15, 10, 4, False),
    ("fewer than were answered", 9, 10, 4, False),
    ("one was prefilled by decode, and hidden by one under way", 10, 9 + 100, 4, False),
]


@pytest.mark.parametrize(
    ("transfers", "local", "under_way", "exercised"), [p[1:] for p in PARTS], ids=[p[0] for p in PARTS]
)
def test_a_reading_in_the_midst_of_work(
    make_record: MakeRecord, transfers: int, local: int, under_way: int | None, exercised: bool
) -> None:
    assert proof(make_record, transfers, local, under_way).pd_exercised is exercised


def test_held_kv_is_no_finding_while_requests_are_under_way(make_record: MakeRecord) -> None:
    held = readings(10, 990, 10)
    held[1].values[c.KV_USAGE] = 0.5
    records = [make_record(f"q{i}", prompt_tokens=100) for i in range(10)]
    legs = [leg(r.request_id, name) for r in records for name in ("prefill", "decode")]
    found = [evidence.disaggregated(SHAPE, readings(0, 0, 0), held, records, legs, n).findings for n in (None, 3)]
    assert [any("not given back" in f.text for f in findings) for findings in found] == [True, False]
    alone = [evidence.monolithic(readings(0, 0, 0), held, idle).findings for idle in (True, False)]
    assert [len(findings) for findings in alone] == [1, 0]


@pytest.mark.parametrize(
    ("exercised", "whole"),
    [((True, True), True), ((True, False), False), ((False, True), False), ((None, True), None), ((None, None), None)],
)
def test_each_part_must_prove_its_own(exercised: tuple[bool | None, bool | None], whole: bool | None) -> None:
    assert together([Evidence(e) for e in exercised]).pd_exercised is whole


def test_sums_of_parts() -> None:
    note = Finding("transfer", "x", "y")
    counters = {"d": {"n": 2.0, c.RUNNING: 1.0, "m": None}}
    one = Evidence(True, 3, 30, 300, 3, 0, 1, findings=(note,), counters=counters)
    two = replace(one, transfers=4, expired=None, counters={"d": {"n": 5.0, c.RUNNING: 0.0, "m": 1.0}})
    whole = together([one, two])
    assert (whole.transfers, whole.bytes, whole.local_tokens, whole.failed, whole.expired) == (7, 60, 6, 0, None)
    assert whole.findings == (note,)
    assert whole.counters == {"d": {"n": 7.0, c.RUNNING: 0.0, "m": None}}
    assert together([one]) is one


def test_a_server_that_had_its_turn_in_another_part_was_not_left_out() -> None:
    def part(first: float, second: float) -> Evidence:
        counters = {"decode-0": {c.SUCCESS: first}, "decode-1": {c.SUCCESS: second}}
        return Evidence(True, findings=tuple(left_out(counters)), counters=counters)

    assert [f.text for f in together([part(2, 0), part(1, 0)]).findings] == [
        "the router left out decode-1: no request ended there, so nothing here speaks of it"
    ]
    assert part(2, 0).findings and together([part(2, 0), part(0, 3)]).findings == ()
    assert together([part(2, 0), part(1, 1)]).findings == ()


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20), st.integers(0, 200))
def test_a_prompt_must_be_longer_than_what_it_could_hide_among(sizes: list[int], under_way: int) -> None:
    records = [
        RequestRecord(
            kind="question",
            sample_id="q",
            request_id="r",
            endpoint="completions",
            prompt_sha256="",
            t_submit=0,
            t_end=1,
            prompt_tokens=size,
        )
        for size in sizes
    ]
    # One of them prefilled by decode: must be seen against the most that is allowed for.
    seen = all(len(sizes) - 1 + size > len(sizes) + under_way for size in sizes)
    assert (unprovable(records, under_way) is None) == seen


def test_what_cannot_be_told_is_no_proof(make_record: MakeRecord) -> None:
    failed = make_record("f", error=RequestError("decode", "reset", "gone"), text=None)
    assert unprovable([failed], 1000) is None
    assert unprovable([failed, make_record("q", prompt_tokens=None)], 0) is not None
    told = unprovable([make_record("q", prompt_tokens=9)], 8)
    assert told == "8 requests were under way at its last reading, and its shortest prompt has 9 tokens"
    told = about(3, 2, "s", legs=True).text
    assert told.startswith("3 answers are of an attempt that was cut short: a reading of its counters")
    assert told.endswith("and the proxy's legs are their proof")
    alone = about(3, 2, "s", legs=False).text
    assert "legs" not in alone and alone.endswith("more requests were under way, is their proof")


def test_answers_whose_legs_were_not_written_are_not_kept(make_record: MakeRecord) -> None:
    whole, half, none = (make_record(name) for name in ("whole", "half", "none"))
    failed = make_record("failed", error=RequestError("prefill", "reset", "gone"))
    legs = [leg("r-whole", "prefill", params_present=False), leg("r-whole", "decode"), leg("r-half", "prefill")]
    assert with_legs([whole, half, none, failed], legs) == [whole, failed], "whatever they say: that is judged"
    assert with_legs([whole, none], None) == [whole, none]
