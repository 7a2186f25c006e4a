"""The hand-off from prefill to decode, by hand, and what the counters say about it."""

from __future__ import annotations

from typing import Any

EXTERNAL = 'source="external_kv_transfer"'
LOCAL = 'source="local_compute"'
BY_SOURCE = "vllm:prompt_tokens_by_source_total"


def test_tickets_lead_to_a_transfer_that_decode_counts(prefill: Any, decode: Any, ask: str) -> None:
    names = ("vllm:nixl_bytes_transferred_count", "vllm:nixl_bytes_transferred_sum")
    before = [decode.counter(name) for name in names]
    external, local = decode.counter(BY_SOURCE, EXTERNAL), decode.counter(BY_SOURCE, LOCAL)
    ticket = prefill.prefill(ask)
    assert ticket["do_remote_prefill"] is True and ticket["do_remote_decode"] is False
    assert [len(group) for group in ticket["remote_block_ids"]] == [2, 2]
    assert ticket["transfer_mode"] == "pull" and ticket["tp_size"] == 2
    assert ticket["remote_num_tokens"] == 23 and "remote_blocks_expiry_time" in ticket
    body = decode.complete(ask, kv_transfer_params=ticket).json()
    assert body["choices"][0]["text"].endswith("#### 7")
    after = [decode.counter(name) for name in names]
    assert after[0] == before[0] + 2, "one transfer a tensor-parallel rank"
    assert after[1] == before[1] + 23 * 1024
    assert decode.counter(BY_SOURCE, EXTERNAL) == external + 23
    assert decode.counter(BY_SOURCE, LOCAL) == local + 1
    assert prefill.counter("vllm:nixl_bytes_transferred_count") == 0, "the reading side counts"


def test_without_params_decode_prefills_by_itself(decode: Any, ask: str) -> None:
    external, local = decode.counter(BY_SOURCE, EXTERNAL), decode.counter(BY_SOURCE, LOCAL)
    assert decode.text(ask).endswith("#### 7")
    assert decode.counter(BY_SOURCE, EXTERNAL) == external
    assert decode.counter(BY_SOURCE, LOCAL) == local + 24


def test_a_ticket_is_good_once(prefill: Any, decode: Any, ask: str) -> None:
    ticket = prefill.prefill(ask)
    failed = decode.counter("vllm:nixl_num_failed_transfers_total")
    assert decode.complete(ask, kv_transfer_params=ticket).status_code == 200
    answer = decode.complete(ask, kv_transfer_params=ticket)
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "InternalServerError"
    assert decode.counter("vllm:nixl_num_failed_transfers_total") == failed + 1
    streamed = decode.complete(ask, kv_transfer_params=ticket, stream=True)
    assert streamed.status_code == 200 and '"code":500' in streamed.text, "as vLLM: the error is in the stream"


def test_another_engines_ticket_is_refused(prefill: Any, decode: Any, ask: str) -> None:
    ticket = prefill.prefill(f"[wrong_engine_id] {ask}")
    assert decode.complete(ask, kv_transfer_params=ticket).status_code == 500
    assert "engine ID mismatch" in decode.log.read_text()
    nobody = {**prefill.prefill(ask), "remote_port": 9}
    assert decode.complete(ask, kv_transfer_params=nobody).status_code == 500


def test_params_that_miss_a_key_move_nothing(prefill: Any, decode: Any, ask: str) -> None:
    ticket = prefill.prefill(ask)
    del ticket["remote_request_id"]
    external = decode.counter(BY_SOURCE, EXTERNAL)
    assert decode.text(ask, kv_transfer_params=ticket).endswith("#### 7")
    assert decode.counter(BY_SOURCE, EXTERNAL) == external
    assert "Got invalid KVTransferParams" in decode.log.read_text()


def test_leases_run_out_and_recompute_answers_right(start: Any, pull: dict[str, Any], ask: str) -> None:
    short = {**pull, "kv_connector_extra_config": {"kv_lease_duration": 0.2}}
    prefill = start(kv=short, wait=False)
    decode = start(kv={**pull, "kv_load_failure_policy": "recompute"})
    prefill.wait_until(prefill.healthy)
    tickets = [prefill.prefill(ask) for _ in range(3)]
    prefill.wait_until(lambda: prefill.counter("vllm:nixl_num_kv_expired_reqs_total") == 3)
    assert prefill.counter("vllm:kv_cache_usage_perc") == 0, "nothing stays pinned"
    line = f"Releasing expired KV blocks for request {tickets[0]['remote_request_id']}"
    assert line in prefill.log.read_text()
    assert decode.text(ask, kv_transfer_params=tickets[0]).endswith("#### 7")
    assert decode.counter(BY_SOURCE, LOCAL) == 24 and decode.counter(BY_SOURCE, EXTERNAL) == 0
    assert decode.counter("vllm:nixl_num_failed_transfers_total") == 1
    prefill.process.terminate()
    assert prefill.process.wait(10) == 0


def test_sides_that_disagree_fail_at_the_first_hand_off(start: Any, prefill: Any, pull: dict[str, Any]) -> None:
    odd = start("--dtype", "float16", kv=pull)
    assert odd.complete(kv_transfer_params=prefill.prefill()).status_code == 500
    assert "compatibility hash mismatch" in odd.log.read_text()


def test_push_mode_counts_on_the_prefill_side(start: Any, ask: str) -> None:
    kv = {"kv_connector": "NixlPushConnector", "kv_role": "kv_both"}
    prefill = start(kv=kv, wait=False)
    decode = start(kv={**kv, "kv_connector_extra_config": {"push_registration_timeout": 2}})
    prefill.wait_until(prefill.healthy)
    same = {"headers": {"X-Request-Id": "one"}}
    ticket = prefill.prefill(ask, **same)
    assert ticket["transfer_mode"] == "push" and "remote_blocks_expiry_time" not in ticket
    del ticket["remote_block_ids"], ticket["remote_request_id"]
    assert decode.text(ask, kv_transfer_params=ticket, **same).endswith("#### 7")
    assert prefill.counter("vllm:nixl_bytes_transferred_count") == 1
    assert decode.counter("vllm:nixl_bytes_transferred_count") == 0
    assert decode.counter(BY_SOURCE, EXTERNAL) == 23
    strange = decode.complete(ask, kv_transfer_params=ticket, headers={"X-Request-Id": "two"})
    assert strange.status_code == 500, "push mode pairs by the request id"


def test_without_a_connector_there_are_no_transfer_series(start: Any, ask: str) -> None:
    alone = start("--api-key", "secret", settings={"accuracy": 0.0})
    assert alone.counter("vllm:nixl_bytes_transferred_count") is None
    assert alone.counter(BY_SOURCE, EXTERNAL) == 0
    assert alone.complete(ask).status_code == 401
    answer = alone.complete(ask, headers={"Authorization": "Bearer secret"}).json()
    assert answer["choices"][0]["text"] and not answer["choices"][0]["text"].endswith("#### 7")
    assert alone.ledger()[-1]["right"] is False and alone.ledger()[-1]["faults"] == []
    assert alone.counter("vllm:request_success_total", 'finished_reason="stop"') == 1


def test_a_taken_side_channel_ends_the_start(start: Any, prefill: Any, pull: dict[str, Any]) -> None:
    port = prefill.prefill()["remote_port"]
    taken = start(kv=pull, wait=False, side_port=port)
    assert taken.process.wait(20) == 1
    assert "EngineCore failed to start." in taken.log.read_text()
