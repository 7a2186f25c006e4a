from __future__ import annotations

import json

import pytest

from rig.sim.options import Limits, OptionError, parse


def test_options_of_a_real_server_are_taken_or_ignored() -> None:
    kv = {"kv_connector": "NixlConnector", "kv_role": "kv_consumer", "kv_load_failure_policy": "recompute"}
    argv = ["org/model", "--served-model-name", "a", "b", "--port", "8123", "-tp", "2", "--no-async-scheduling"]
    argv += ["--gpu-memory-utilization", "0.9", "--enforce-eager", "--kv-transfer-config", json.dumps(kv), "--seed=-1"]
    options = parse(argv, {"VLLM_NIXL_SIDE_CHANNEL_PORT": "5700"})
    assert (options.model, options.served_names, options.port, options.tp) == ("org/model", ("a", "b"), 8123, 2)
    assert not options.async_scheduling
    assert options.kv is not None
    assert (options.kv.mode, options.kv.role, options.kv.policy) == ("pull", "kv_consumer", "recompute")
    assert options.side_port == 5700
    assert options.ignored == ("enforce-eager", "gpu-memory-utilization", "seed")


def test_defaults_are_vllms() -> None:
    options = parse(["serve", "m"], {})
    assert options.kv is None
    assert options.async_scheduling
    assert (options.port, options.host, options.served_names) == (8000, "127.0.0.1", ("m",))
    assert options.limits == Limits(max_model_len=32768, max_logprobs=20, max_sequences=16384)


def test_limits_are_set_as_vllms_are() -> None:
    argv = ["m", "--max-model-len", "400", "--max-logprobs", "-1"]
    options = parse(argv, {"VLLM_MAX_N_SEQUENCES": "2"})
    assert options.limits == Limits(max_model_len=400, max_logprobs=None, max_sequences=2)


def test_nixl_within_a_multi_connector_is_found() -> None:
    parts = [{"kv_connector": "NixlPushConnector"}, {"kv_connector": "OffloadingConnector"}]
    kv = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"connectors": parts}}
    options = parse(["m", "--kv-transfer-config", json.dumps(kv)], {})
    assert options.kv is not None and options.kv.mode == "push"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "no model"),
        (["m", "--port", "x"], "--port: expected a whole number"),
        (["m", "--port"], "--port: expected a value"),
        (["m", "--max-logprobs", "-2"], "--max-logprobs: expected a whole number from -1"),
        (["m", "other"], "unexpected argument 'other'"),
        (["m", "--kv-transfer-config", "{"], "--kv-transfer-config: not JSON"),
        (["m", "--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_load_failure_policy":"x"}'], "fail or rec"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(argv: list[str], said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        parse(argv, {})
    assert "\n" not in str(caught.value)
