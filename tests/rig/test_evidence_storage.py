"""Prompt tokens by source prove that decode loaded from a storage what prefill wrote, or say why they do not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from evals.records import RequestError, RequestRecord
from rig import evidence
from rig import series as c
from rig.evidence import Shape
from rig.evidence_requests import taints
from rig.records import Evidence, Leg
from rig.series import Reading

SHAPE = Shape("ExampleConnector", prefill_tp=1, decode_tp=1)
ZERO: dict[str, float | None] = dict.fromkeys(c.WATCHED, 0.0)
BLOCK = 128


def record(i: int, prompt_tokens: int = 300, error: RequestError | None = None) -> RequestRecord:
    return RequestRecord(
        kind="question", sample_id=f"s{i}", request_id=f"r{i}", endpoint="completions", prompt_sha256="x",
        t_submit=0, t_end=1, prompt_tokens=None if error else prompt_tokens, error=error,
    )  # fmt: skip


def legs(i: int) -> list[Leg]:
    common = {"engine_request_id": f"r{i}-u", "engine_id": None, "status": 200, "t_start": 0.0, "t_first_byte": 0.1}
    return [
        Leg(f"r{i}", "prefill", "prefill-0", **common, t_end=1.0, params_present=False, error=None),  # type: ignore[arg-type]
        Leg(f"r{i}", "decode", "decode-0", **common, t_end=2.0, params_present=False, error=None),  # type: ignore[arg-type]
    ]


RECORDS = [record(1), record(2, 200)]
LEGS = [*legs(1), *legs(2)]
# Of 300 tokens two blocks are found, of 200 one.
DECODE: dict[str, float | None] = {c.EXTERNAL_TOKENS: 384, c.LOCAL_TOKENS: 116}
PREFILL: dict[str, float | None] = {c.LOCAL_TOKENS: 500}


def judge(
    decode: dict[str, float | None] = DECODE,
    prefill: dict[str, float | None] = PREFILL,
    records: Sequence[RequestRecord] = RECORDS,
    log: Sequence[Leg] | None = LEGS,
    block: int | None = BLOCK,
    under_way: int | None = None,
) -> Evidence:
    def readings(d: dict[str, float | None], p: dict[str, float | None]) -> tuple[Reading, ...]:
        return (
            Reading("prefill-0", "prefill", ZERO | p, block_size=block),
            Reading("decode-0", "decode", ZERO | d, block_size=block),
        )

    return evidence.disaggregated(SHAPE, readings({}, {}), readings(decode, prefill), records, log, under_way)


def test_all_blocks_that_can_be_found_were_loaded() -> None:
    found = judge()
    assert found.pd_exercised is True and found.findings == ()
    assert (found.external_tokens, found.local_tokens) == (384, 116)
    assert (found.transfers, found.bytes, found.failed, found.expired) == (None, None, None, None), (
        "nothing counts them"
    )


@pytest.mark.parametrize(
    ("decode", "words"),
    [
        ({c.EXTERNAL_TOKENS: 0, c.LOCAL_TOKENS: 500}, "decode computed 500 prompt tokens itself, more than the 116"),
        ({c.EXTERNAL_TOKENS: 256, c.LOCAL_TOKENS: 244}, "some requests were prefilled by decode"),
        ({c.EXTERNAL_TOKENS: 383}, "decode counted 499 prompt tokens"),
        ({c.EXTERNAL_TOKENS: None}, "series of prompt tokens by source are missing"),
    ],
)
def test_what_decode_did_not_load_is_invalid(decode: dict[str, float | None], words: str) -> None:
    found = judge(DECODE | decode)
    assert found.pd_exercised is False
    assert any(words in f.text and f.severity == "invalid" for f in found.findings)


def test_prompts_of_less_than_a_block_prove_nothing() -> None:
    found = judge({c.LOCAL_TOKENS: 257}, records=[record(1, 128), record(2, 129)])
    assert found.pd_exercised is False
    assert "no prompt fills a block of 128 tokens" in found.findings[0].text


def test_a_prompt_of_blocks_and_one_token_is_left_to_decode() -> None:
    assert (
        judge({c.EXTERNAL_TOKENS: 256, c.LOCAL_TOKENS: 301}, records=[record(1), record(2, 257)]).pd_exercised is True
    )


def test_without_a_block_size_nothing_is_known() -> None:
    assert judge(block=None).pd_exercised is False


@pytest.mark.parametrize(("found", "exercised"), [(0, True), (128, True), (383, True), (384, False), (500, False)])
def test_prefill_must_have_written_some_of_it(found: int, exercised: bool) -> None:
    said = judge(prefill={c.EXTERNAL_TOKENS: found})
    assert said.pd_exercised is exercised
    assert [f.severity for f in said.findings] == ([] if found == 0 else ["note" if exercised else "invalid"])


def test_each_answer_needs_both_legs_but_no_parameters() -> None:
    assert judge(log=None).pd_exercised is True
    found = judge(log=[*legs(1), legs(2)[1]])
    assert found.pd_exercised is False and "1 answered requests have no complete hand-off" in found.findings[0].text
    assert taints(LEGS, {}, parameters=False) == {}
    assert set(taints(LEGS, {})) == {"r1", "r2"}


def test_a_failed_request_may_have_left_a_block_to_decode() -> None:
    failed = record(3, error=RequestError("decode", "reset", "gone"))
    more = DECODE | {c.LOCAL_TOKENS: 116 + BLOCK + 1}
    assert judge(more, records=[*RECORDS, failed]).pd_exercised is True
    assert judge(more).pd_exercised is False
    assert judge(more, under_way=1).pd_exercised is True


def test_blocks_that_are_not_given_back_are_a_finding() -> None:
    (found,) = judge(DECODE | {c.KV_USAGE: 0.5}).findings
    assert "not given back" in found.text and found.severity == "note"
