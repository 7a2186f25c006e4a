"""The pure part: bodies of the two legs, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import handoff
from proxy.errors import LegError, Refused

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3))
KNOWN = st.fixed_dictionaries(
    {},
    optional={
        "model": st.text(max_size=5),
        "prompt": st.text(max_size=20) | st.lists(st.integers(0, 500), max_size=5) | st.lists(st.text(max_size=4)),
        "stream": st.booleans() | st.none(),
        "stream_options": st.none() | st.just({"include_usage": True}),
        "max_tokens": st.none() | st.integers(0, 4096),
        "max_completion_tokens": st.none() | st.integers(1, 4096),
        "min_tokens": st.integers(0, 50),
        "min_completion_tokens": st.integers(0, 50),
        "n": st.none() | st.integers(1, 3),
        "best_of": st.integers(1, 3),
        "logprobs": st.none() | st.integers(0, 5),
        "kv_transfer_params": st.none() | st.just({"remote_engine_id": "forged"}),
    },
)
# What these two mean is said of values that engines take; the odd ones are a table of test_route.py.
OTHER_NAMES = st.text(max_size=6).filter(lambda name: name not in ("n", "prompt"))
BODIES = st.builds(lambda extra, known: {**extra, **known}, st.dictionaries(OTHER_NAMES, VALUES), KNOWN)
PARAMS = st.dictionaries(st.text(min_size=1, max_size=6), VALUES, min_size=1, max_size=4)


@given(BODIES, PARAMS, st.sampled_from([None, 2]), st.sampled_from(["", "\n", "  \r\n"]))
def test_decode_gets_the_clients_body_and_the_params(
    body: dict[str, Any], params: dict[str, Any], indent: int | None, tail: str
) -> None:
    raw = (json.dumps(body, ensure_ascii=False, indent=indent) + tail).encode()
    sent = json.loads(handoff.decode_body(raw, handoff.parse(raw), params))
    assert sent == {**body, "kv_transfer_params": params}
    alone = json.loads(handoff.decode_body(raw, handoff.parse(raw), None))
    assert alone == {k: v for k, v in body.items() if k != "kv_transfer_params"}


@given(BODIES)
def test_the_prefill_leg_is_always_valid(body: dict[str, Any]) -> None:
    before = json.dumps(body)
    leg = json.loads(handoff.prefill_body(body))
    assert json.dumps(body) == before
    assert leg["stream"] is False and leg["max_tokens"] == 1
    assert leg.get("max_completion_tokens", 1) == 1
    assert ("max_completion_tokens" in leg) == ("max_completion_tokens" in body)
    assert not {"stream_options", "min_tokens", "min_completion_tokens"} & leg.keys()
    assert leg["kv_transfer_params"] == handoff.REMOTE_DECODE
    touched = handoff.NOT_ON_PREFILL | {"stream", "max_tokens", "max_completion_tokens", "kv_transfer_params"}
    assert {k: v for k, v in leg.items() if k not in touched} == {k: v for k, v in body.items() if k not in touched}


@given(BODIES)
def test_a_request_is_refused_exactly_when_it_is_more_than_one(body: dict[str, Any]) -> None:
    prompt = body.get("prompt")
    many = isinstance(prompt, list) and len(prompt) > 1 and not all(isinstance(p, int) for p in prompt)
    many = many or (body.get("n") or 1) > 1 or body.get("best_of", 1) > 1
    try:
        handoff.check(body)
    except Refused as refusal:
        assert many and refusal.param in {"n", "best_of", "prompt"}
    else:
        assert not many


def test_decode_keeps_the_clients_bytes() -> None:
    head = b'{ "prompt" : "a\\u00e9", "temperature":1.0,"seed":123456789012345678901234567890 '
    raw = head + b"}\n"
    assert handoff.decode_body(raw, handoff.parse(raw), {"a": 1}) == head + b',"kv_transfer_params":{"a":1}}'
    assert handoff.decode_body(b" {} ", {}, {"a": 1}) == b' {"kv_transfer_params":{"a":1}}'


def test_a_body_too_deep_to_write_again_is_refused() -> None:
    raw = b'{"a":' + b"[" * 500 + b"]" * 500 + b"}"
    with pytest.raises(Refused):
        handoff.prefill_body(handoff.parse(raw))


TICKET = {
    "do_remote_prefill": True,
    "remote_engine_id": "e",
    "remote_block_ids": [[1]],
    "remote_host": "h",
    "remote_port": 1,
    "tp_size": 1,
}


@pytest.mark.parametrize("params", [None, {}, [], "x", {**TICKET, "do_remote_prefill": False}])
def test_params_that_would_move_nothing_are_none(params: Any) -> None:
    found, _ = handoff.params_for_decode(json.dumps({"kv_transfer_params": params}).encode(), "pull")
    assert found is None


def test_params_are_passed_whole_in_pull_mode() -> None:
    answer = json.dumps({"kv_transfer_params": {**TICKET, "transfer_mode": "pull", "new": [1]}}).encode()
    assert handoff.params_for_decode(answer, "pull") == ({**TICKET, "transfer_mode": "pull", "new": [1]}, "e")


def test_push_mode_sends_no_blocks_and_needs_an_address() -> None:
    params, _ = handoff.params_for_decode(json.dumps({"kv_transfer_params": TICKET}).encode(), "push")
    assert params == {k: v for k, v in TICKET.items() if k != "remote_block_ids"}
    without = {k: v for k, v in TICKET.items() if k != "tp_size"}
    with pytest.raises(LegError, match="tp_size"):
        handoff.params_for_decode(json.dumps({"kv_transfer_params": without}).encode(), "push")


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b"null"])
def test_an_answer_that_is_no_object_is_a_bad_response(answer: bytes) -> None:
    with pytest.raises(LegError) as caught:
        handoff.params_for_decode(answer, "pull")
    assert caught.value.error_class == "bad_response"
