"""Each fault does what it says, and the ledger tells the truth about it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

ANSWER = 7


def number(text: str) -> int | None:
    found = re.search(r"#### (\d+)", text)
    return int(found[1]) if found else None


@contextlib.contextmanager
def noted(sim: Any, outcome: str) -> Iterator[None]:
    """Within it a request ends, which a server may write down a little later; after it that is in the ledger."""
    lines = len(sim.ledger())
    yield
    sim.wait_until(lambda: len(sim.ledger()) > lines)
    assert sim.ledger()[-1]["outcome"] == outcome


def test_a_damaged_answer_is_fluent_wrong_and_in_the_ledger(decode: Any, ask: str) -> None:
    text = decode.text(f"[wrong_answer] {ask}", logprobs=0)
    assert re.fullmatch(r" 3 \+ 4 = (\d+)\.\n#### \1", text) and number(text) != ANSWER
    line = decode.ledger()[-1]
    assert (line["faults"], line["right"], line["answer"]) == (["wrong_answer"], False, str(number(text)))
    assert decode.text(f"[wrong_answer] {ask}") == text


def test_damage_only_under_load(decode: Any, ask: str) -> None:
    prompt = f"[three] {ask}"
    assert number(decode.text(prompt)) == ANSWER
    with httpx.Client(base_url=decode.url) as first, httpx.Client(base_url=decode.url) as second:
        body = {"prompt": f"[stream_stall] {ask}", "max_tokens": 40, "stream": True}
        with first.stream("POST", "/v1/completions", json=body), second.stream("POST", "/v1/completions", json=body):
            assert number(decode.text(prompt)) != ANSWER
    decode.wait_until(lambda: decode.counter("vllm:num_requests_running") == 0)
    assert number(decode.text(prompt)) == ANSWER


def test_damage_by_prompt_length_and_soon_after_another(decode: Any, ask: str) -> None:
    for extra in range(16):
        answer = decode.complete(f"[block]{' x' * extra} {ask}").json()
        damaged = number(answer["choices"][0]["text"]) != ANSWER
        assert damaged == (answer["usage"]["prompt_tokens"] % 16 == 0)
    assert number(decode.text(f"[soon] {ask}")) != ANSWER


def test_damage_by_rate_is_the_same_ones_or_others(decode: Any, ask: str) -> None:
    prompts = [f"[half] {index} {ask}" for index in range(20)]
    hit = [number(decode.text(prompt)) != ANSWER for prompt in prompts]
    assert 0 < sum(hit) < 20
    assert hit == [number(decode.text(prompt)) != ANSWER for prompt in prompts]
    again = {number(decode.text(f"[flaky] {ask}")) == ANSWER for _ in range(20)}
    assert again == {True, False}
    once = [number(decode.text(f"[once] {ask}")) == ANSWER for _ in range(3)]
    assert once == [False, True, True]


def test_damage_only_to_what_was_moved(prefill: Any, decode: Any, ask: str) -> None:
    prompt = f"[moved] {ask}"
    assert number(decode.text(prompt)) == ANSWER
    assert number(decode.text(prompt, kv_transfer_params=prefill.prefill(prompt))) != ANSWER


@pytest.mark.parametrize("fault", ["swapped", "stale"])
def test_another_requests_answer(decode: Any, ask: str, other: str, fault: str) -> None:
    decode.text(other)
    assert number(decode.text(f"[{fault}] {ask}")) == 15
    assert decode.ledger()[-1]["right"] is False


def test_texts_without_an_answer(decode: Any, ask: str) -> None:
    assert decode.text(f"[garbage] {ask}") == " " + "!" * 24
    endless = decode.complete(f"[endless] {ask}", max_tokens=50).json()
    assert endless["choices"][0]["finish_reason"] == "length" and endless["usage"]["completion_tokens"] == 50
    assert number(decode.text(f"[no_number] {ask}")) is None
    assert re.search(r"#### 7\n\nQuestion: .*#### 7$", decode.text(f"[runs_on] {ask}"), re.S)
    assert decode.text(f"[empty_text] {ask}") == ""


def test_text_only_in_the_reasoning(decode: Any, ask: str) -> None:
    body = {"messages": [{"role": "user", "content": f"[reasoning_only] {ask}"}]}
    message = decode.client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert message["content"] is None and message["reasoning"].endswith("#### 7")
    streamed = decode.client.post("/v1/chat/completions", json={**body, "stream": True}).text
    assert '"reasoning":"7"' in streamed


def test_prompt_tokens_counted_wrong(decode: Any, ask: str) -> None:
    prompt = f"[prompt_tokens_off] {ask}"
    assert decode.complete(prompt).json()["usage"]["prompt_tokens"] == decode.ledger()[-1]["prompt_tokens"] + 3


def test_prefill_gives_no_params_or_ones_that_ran_out(prefill: Any, decode: Any, ask: str) -> None:
    assert prefill.prefill(f"[no_kv_params] {ask}") is None
    expired = prefill.counter("vllm:nixl_num_kv_expired_reqs_total")
    failed = decode.counter("vllm:nixl_num_failed_transfers_total")
    ticket = prefill.prefill(f"[lease_expired] {ask}")
    assert prefill.counter("vllm:nixl_num_kv_expired_reqs_total") == expired + 1
    assert f"expired KV blocks for request {ticket['remote_request_id']}" in prefill.log.read_text()
    assert number(decode.text(ask, kv_transfer_params=ticket)) != ANSWER, "200, and read from freed blocks"
    assert decode.ledger()[-1]["faults"] == ["lease_expired"]
    assert decode.counter("vllm:nixl_num_failed_transfers_total") == failed, "decode's counters know nothing"


def test_damage_that_prefill_did(prefill: Any, decode: Any, ask: str) -> None:
    ticket = prefill.prefill(f"[p_wrong] {ask}")
    assert number(decode.text(ask, kv_transfer_params=ticket)) != ANSWER
    assert decode.ledger()[-1]["faults"] == ["wrong_answer"]


def test_transfers_that_fail_or_are_not_used(prefill: Any, decode: Any, ask: str) -> None:
    failed = decode.counter("vllm:nixl_num_failed_transfers_total")
    assert decode.complete(f"[transfer_failed] {ask}", kv_transfer_params=prefill.prefill()).status_code == 500
    assert number(decode.text(f"[transfer_garbage] {ask}", kv_transfer_params=prefill.prefill())) != ANSWER
    assert decode.counter("vllm:nixl_num_failed_transfers_total") == failed + 2
    assert number(decode.text(f"[ignore_kv_params] {ask}", kv_transfer_params=prefill.prefill())) == ANSWER
    assert decode.ledger()[-1]["external_tokens"] == 0
    assert number(decode.text(f"[slow_transfer] {ask}", kv_transfer_params=prefill.prefill())) == ANSWER


def test_status_and_bodies(decode: Any, ask: str) -> None:
    for tag, status, said in (("e400", 400, "no"), ("e503", 503, "busy")):
        answer = decode.complete(f"[{tag}] {ask}", stream=True)
        assert (answer.status_code, answer.json()["error"]["message"]) == (status, said)
    empty = decode.complete(f"[empty_200] {ask}")
    assert (empty.status_code, empty.content) == (200, b"")
    with pytest.raises(json.JSONDecodeError):
        decode.complete(f"[bad_json] {ask}").json()
    assert decode.ledger()[-1]["right"] is None


def test_streams_that_break(decode: Any, ask: str) -> None:
    with noted(decode, "stream_error"):
        text = decode.complete(f"[stream_error] {ask}", stream=True).text
    assert text.count('"text"') == 3 and '"code":500' in text and 'finish_reason":"stop' not in text
    for stream in (True, False):
        with noted(decode, "stream_cut"), pytest.raises(httpx.RemoteProtocolError):
            decode.complete(f"[stream_cut] {ask}", stream=stream)
    with noted(decode, "no_done"):
        assert "[DONE]" not in decode.complete(f"[no_done] {ask}", stream=True).text
    with noted(decode, "reset"), pytest.raises(httpx.ReadError):
        decode.complete(f"[reset] {ask}")


@pytest.mark.parametrize(
    ("fault", "stream", "headers"),
    [
        ("hang", False, False),
        ("headers_then_nothing", True, True),
        ("headers_then_nothing", False, True),
        ("stream_stall", True, True),
    ],
)
def test_silence_lasts_until_the_client_goes(decode: Any, ask: str, fault: str, stream: bool, headers: bool) -> None:
    """From what the fault lets through on: all of that may take its time."""
    body = {"prompt": f"[{fault}] {ask}", "max_tokens": 40, "stream": stream}
    client = http.client.HTTPConnection("127.0.0.1", decode.port, timeout=60)
    with noted(decode, fault), contextlib.closing(client):
        client.request("POST", "/v1/completions", json.dumps(body))
        if headers:
            response = client.getresponse()
            assert response.status == 200
        if fault == "stream_stall":
            assert response.read1().count(b"data: ") == 3
        if not headers:
            decode.wait_until(lambda: decode.counter("vllm:num_requests_waiting") == 1)
        client.sock.settimeout(1)
        with pytest.raises(TimeoutError):
            _ = response.read() if headers else client.getresponse()
    assert decode.counter("vllm:num_requests_running") == 0


def test_slow_ones_answer_right(decode: Any, ask: str) -> None:
    assert number(decode.text(f"[slow_first_token] {ask}")) == ANSWER
    assert "[DONE]" in decode.complete(f"[slow_tokens] {ask}", stream=True).text


def test_a_neighbour_of_a_failed_transfer_is_damaged(start: Any, pull: dict[str, Any], ask: str, prefill: Any) -> None:
    faults = [
        {"fault": "transfer_failed", "params": {"neighbours": True}, "when": {"prompt_contains": "[fail]"}},
        {"fault": "slow_first_token", "params": {"ms": 5000}, "when": {"prompt_contains": "[wait]"}},
        {"fault": "crash", "params": {"code": 7}, "when": {"after_requests": 2}},
    ]
    sim = start(kv=pull, faults=faults)
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(sim.text(f"[wait] {ask}")))
    thread.start()
    with httpx.Client() as client:
        sim.wait_until(lambda: 'running{model_name="tiny",engine="0"} 1' in client.get(f"{sim.url}/metrics").text)
        body = {"prompt": f"[fail] {ask}", "kv_transfer_params": prefill.prefill()}
        assert client.post(f"{sim.url}/v1/completions", json=body).status_code == 500
    thread.join()
    assert number(texts[0]) != ANSWER
    assert sim.ledger()[-1]["faults"] == ["neighbour_of_failed_transfer", "slow_first_token"]
    with pytest.raises(httpx.TransportError):
        sim.complete(ask)
    assert sim.process.wait(10) == 7
    assert sim.ledger()[-1]["outcome"] == "crash"


def test_an_engine_that_dies_leaves_a_launcher_that_answers_500(start: Any, ask: str) -> None:
    sim = start(faults=[{"fault": "engine_dead", "when": {"after_requests": 1}}, {"fault": "ignore_sigterm"}])
    assert number(sim.text(ask)) == ANSWER
    for _ in range(2):
        assert sim.complete(ask).status_code == 500
    assert sim.client.get("/health").status_code == 503
    assert "EngineCore encountered a fatal error." in sim.log.read_text()
    sim.process.terminate()
    assert sim.client.get("/v1/models").status_code == 200, "SIGTERM is ignored"
    assert sim.process.poll() is None


def test_a_start_that_fails_and_lives_on_with_an_orphan(start: Any) -> None:
    faults = [{"fault": "start_error"}, {"fault": "orphan_child"}, {"fault": "slow_start", "params": {"ms": 10}}]
    sim = start(faults=faults, wait=False)
    sim.wait_until(lambda: "ValueError: No available memory" in sim.log.read_text())
    found = re.search(r"EngineCore runs in process (\d+)", sim.log.read_text())
    assert found
    child = int(found[1])
    try:
        assert sim.process.poll() is None and not sim.healthy()
        sim.process.kill()
        sim.process.wait(10)
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_start_that_fails_and_ends(start: Any) -> None:
    sim = start(faults=[{"fault": "start_error", "params": {"exits": True, "code": 3, "message": "no"}}], wait=False)
    assert sim.process.wait(20) == 3
    wrong = start(faults=[{"fault": "nothing"}], wait=False)
    assert wrong.process.wait(20) == 2
    assert wrong.log.read_text().startswith("rig.sim: simulated engine: faults.0: unknown fault 'nothing'")
