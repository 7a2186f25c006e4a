"""vLLM's HTTP face: what a client sees of a healthy engine."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest

from rig.series import block_size


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_completion_has_text_usage_and_the_clients_id(decode: Any, ask: str) -> None:
    body = decode.complete(ask, headers={"X-Request-Id": "abc"}).json()
    assert body["id"] == "cmpl-abc"
    choice = body["choices"][0]
    assert choice["text"] == " 3 + 4 = 7.\n#### 7" and choice["finish_reason"] == "stop"
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert body["kv_transfer_params"] is None


def test_the_stream_says_the_same_and_ends_with_usage(decode: Any, ask: str) -> None:
    whole = decode.complete(ask).json()
    chunks = events(decode.complete(ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == whole["choices"][0]["text"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    assert len(chunks) == whole["usage"]["completion_tokens"] + 2


def test_chat_whole_and_streamed(decode: Any, ask: str) -> None:
    body = {"messages": [{"role": "user", "content": ask}], "logprobs": True, "top_logprobs": 2}
    whole = decode.client.post("/v1/chat/completions", json=body).json()
    choice = whole["choices"][0]
    assert choice["message"]["content"] == "3 + 4 = 7.\n#### 7"
    assert [len(token["top_logprobs"]) for token in choice["logprobs"]["content"]] == [2] * 17
    chunks = events(decode.client.post("/v1/chat/completions", json={**body, "stream": True}))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == choice["message"]["content"]


def test_logprobs_are_finite_and_unequal(decode: Any, ask: str) -> None:
    logprobs = decode.complete(ask, logprobs=3).json()["choices"][0]["logprobs"]
    values = logprobs["token_logprobs"]
    assert all(math.isfinite(value) and value < 0 for value in values) and len(set(values)) > 5
    assert "".join(logprobs["tokens"]) == " 3 + 4 = 7.\n#### 7"
    assert all(len(top) == 3 for top in logprobs["top_logprobs"])


def test_limits_and_stop_words(decode: Any, ask: str) -> None:
    choice = decode.complete(ask, max_tokens=4).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (" 3 +", "length")
    choice = decode.complete(ask, stop=["####", "="]).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (" 3 + 4 ", "stop", "=")
    body = decode.complete("hello", max_tokens=9, ignore_eos=True).json()
    assert body["usage"]["completion_tokens"] == 9 and body["choices"][0]["finish_reason"] == "length"


def test_prompts_as_lists(decode: Any, ask: str, other: str) -> None:
    tokens = decode.complete(ask, return_token_ids=True).json()["choices"][0]["prompt_token_ids"]
    assert decode.text([ask]) == decode.text(ask) == decode.text(tokens) == decode.text([tokens])
    body = decode.complete([ask, other], n=2).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"][-2:].strip() for choice in body["choices"]] == ["7", "7", "15", "15"]


def test_an_unknown_prompt_gets_the_same_text_each_time(decode: Any) -> None:
    assert decode.text("Once upon a time") == decode.text("Once upon a time") != decode.text("Once upon a day")


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        ({"model": "nobody"}, 404, "The model `nobody` does not exist."),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"min_tokens": 5, "max_tokens": 1}, 400, "min_tokens must be less than or equal to max_tokens=1"),
        ({"stream_options": {"include_usage": True}}, 400, "Stream options can only be defined when `stream=True`"),
        ({"max_tokens": 4000}, 400, "maximum context length is 400 tokens"),
        ({"prompt": []}, 400, "prompt"),
        ({"n": 2, "temperature": 0}, 400, "greedy"),
        ({"n": 16385}, 400, "n must be at most 16384, got 16385"),
        ({"min_tokens": -1}, 400, "min_tokens must be greater than or equal to 0, got -1."),
        ({"logprobs": 21}, 400, "Requested sample logprobs of 21, which is greater than max allowed: 20"),
        ({"logprobs": -1}, 400, "which is greater than max allowed: 20"),
        ({"logprobs": -2}, 400, "logprobs must be non-negative or -1, got -2."),
    ],
)
def test_what_vllm_refuses_is_refused_in_its_shape(decode: Any, more: dict[str, Any], status: int, said: str) -> None:
    answer = decode.complete(**more)
    error = answer.json()["error"]
    assert answer.status_code == status == error["code"]
    assert said in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_other_endpoints(decode: Any) -> None:
    assert decode.client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert decode.client.get("/health").status_code == 200
    assert decode.client.get("/nowhere").status_code == 404
    assert decode.client.get("/v1/completions").status_code == 405
    assert decode.client.post("/v1/completions", content=b"{").status_code == 400


def test_the_block_size_is_told_as_vllm_tells_it(decode: Any) -> None:
    assert block_size(decode.client.get("/metrics").text) == 16


def test_a_large_body_is_taken(decode: Any) -> None:
    assert decode.complete("x" * 3_000_000).status_code == 200
    assert "maximum context length" in decode.complete("x " * 1_000_000).json()["error"]["message"]
