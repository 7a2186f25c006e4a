"""Rules on what a connector is given and what it can be combined with. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from rig.config_errors import shown
from rig.connectors import OFFLOADING
from rig.plan_pairs import PULL, PUSH, Pair
from rig.plan_rule import V1, Finding, Rule

CONNECTORS = (
    *("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MultiConnector", "OffloadingConnector"),
    *("ExampleConnector", "ExampleHiddenStatesConnector", "LMCacheConnectorV1", "LMCacheMPConnector"),
    *("MooncakeConnector", "MooncakeStoreConnector", "MoRIIOConnector", "FlexKVConnectorV1", "HF3FSKVConnector"),
    *("SimpleCPUOffloadConnector", "HiSparseConnector", "DecodeBenchConnector"),
)
"""All that vLLM 0.32 registers by name (distributed/kv_transfer/kv_connector/factory.py)."""

WITHOUT_HMA = ("ExampleConnector", "LMCacheConnectorV1", "LMCacheMPConnector", "FlexKVConnectorV1", "HF3FSKVConnector")
"""Those of them that are no `SupportsHMA`: with them the hybrid KV-cache manager is off (config/vllm.py)."""


def _known_connector(pair: Pair) -> Iterator[Finding]:
    for side in pair.sides:
        for config in (side.kv, *side.children):
            name = str(config.get("kv_connector"))
            if name not in CONNECTORS and config.get("kv_connector_module_path") is None:
                near = difflib.get_close_matches(name, CONNECTORS, n=1, cutoff=0.85)
                told = f"; is {near[0]} meant?" if near else ", and the file names no kv_connector_module_path"
                # A plugin of the engine may register it all the same.
                yield Finding(side.kv_key("kv_connector"), f"vLLM itself has no {name}{told}", certain=bool(near))


def _roles(pair: Pair) -> Iterator[Finding]:
    allowed = ("kv_producer", "kv_consumer", "kv_both")
    for side in pair.sides:
        for config in (side.kv, *side.children):
            role = config.get("kv_role")
            if role not in allowed:
                name = config.get("kv_connector")
                problem = f"{name} needs kv_role, one of {', '.join(allowed)}, got {shown(role)}"
                yield Finding(side.kv_key("kv_role"), problem)
    for side, wrong in ((pair.prefill, "kv_consumer"), (pair.decode, "kv_producer")):
        if side.kv.get("kv_role") == wrong:
            yield Finding(side.kv_key("kv_role"), f"{side.name} is {wrong}; it is the other half", certain=False)


def _policy(pair: Pair) -> Iterator[Finding]:
    for side in pair.sides:
        policy = side.kv.get("kv_load_failure_policy", "fail")
        if policy not in ("fail", "recompute"):
            key = side.kv_key("kv_load_failure_policy")
            yield Finding(key, f"expected fail or recompute, got {shown(policy)}")


def _children(pair: Pair) -> Iterator[Finding]:
    for side in pair.sides:
        if side.kv.get("kv_connector") == "MultiConnector" and not side.children:
            key = side.kv_key("kv_connector_extra_config")
            yield Finding(key, "a MultiConnector needs kv_connector_extra_config.connectors, a list of connectors")


def _modes(pair: Pair) -> Iterator[Finding]:
    modes = {side.nixl for side in pair.sides}
    if modes == {PULL, PUSH}:
        key = pair.decode.kv_key("kv_connector")
        yield Finding(key, "one side pushes and the other pulls; give both the same connector")
    names = [side.kv.get("kv_connector") for side in pair.sides]
    if modes != {PULL, PUSH} and None in modes and names[0] != names[1]:
        key = pair.decode.kv_key("kv_connector")
        yield Finding(key, f"prefill uses {names[0]} and decode {names[1]}", certain=False)


def _hma_asked_for(pair: Pair) -> Iterator[Finding]:
    for side in pair.sides:
        lacking = [c for c in side.connectors if c in WITHOUT_HMA]
        if lacking and side.args.get("disable-hybrid-kv-cache-manager") is False:
            key = side.arg_key("disable-hybrid-kv-cache-manager")
            yield Finding(key, f"{lacking[0]} does not support the hybrid KV-cache manager; leave the option out")


def _offloaded_state(pair: Pair) -> Iterator[Finding]:
    for side in pair.sides:
        off = side.args.get("enable-prefix-caching") is False
        if pair.model.state and OFFLOADING in side.connectors and off:
            key = side.arg_key("enable-prefix-caching")
            yield Finding(key, "an OffloadingConnector of a model with state needs prefix caching; set it to true")


def _storage_on_cpu(pair: Pair) -> Iterator[Finding]:
    for side in pair.sides if pair.device == "cpu" else ():
        for config in (side.kv, *side.children):
            own = "spec_module_path" in (config.get("kv_connector_extra_config") or {})
            if config.get("kv_connector") == OFFLOADING and not own:
                problem = f"{OFFLOADING}'s own storage needs a GPU; take docs/workloads.md's (spec_module_path)"
                yield Finding(side.kv_key("kv_connector_extra_config"), problem)


def _bidirectional(pair: Pair) -> Iterator[Finding]:
    for side in pair.sides:
        if side.extra.get("bidirectional_kv_xfer") and side.nixl == PUSH:
            key = side.kv_key("kv_connector_extra_config", "bidirectional_kv_xfer")
            yield Finding(key, "push mode has no way back; use NixlConnector, or drop it")
    both = [bool(side.extra.get("bidirectional_kv_xfer")) for side in pair.sides]
    if pair.nixl and both[0] != both[1]:
        told = pair.prefill if both[0] else pair.decode
        key = told.kv_key("kv_connector_extra_config", "bidirectional_kv_xfer")
        yield Finding(key, f"only {told.name} has it; the way back needs it on both sides", certain=False)


def _expandable(pair: Pair) -> Iterator[Finding]:
    for side in pair.sides:
        exempt = side.args.get("enable-sleep-mode") is True or side.args.get("enable-cumem-allocator") is True
        if "expandable_segments:True" in side.env.get("PYTORCH_CUDA_ALLOC_CONF", "") and not exempt:
            key = side.env_key("PYTORCH_CUDA_ALLOC_CONF")
            yield Finding(key, "expandable_segments:True moves memory that a KV connector has registered; drop it")


def _buffer(pair: Pair) -> Iterator[Finding]:
    for side in pair.sides:
        device = side.kv.get("kv_buffer_device", "cpu")
        if pair.nixl and pair.device == "cpu" and device != "cpu":
            yield Finding(side.kv_key("kv_buffer_device"), f"the engine serves on a CPU: set it to cpu, got {device}")


CONNECTOR_RULES = (
    Rule("connector", "distributed/kv_transfer/kv_connector/factory.py, get_connector_class", _known_connector),
    Rule("role", "config/kv_transfer.py, __post_init__", _roles),
    Rule("failure policy", "config/kv_transfer.py, kv_load_failure_policy", _policy),
    Rule("children", f"{V1}multi_connector.py, _get_connector_classes_and_configs", _children),
    Rule("mode", f"{V1}nixl/metadata.py, transfer_mode", _modes),
    Rule("HMA", "distributed/kv_transfer/kv_connector/factory.py, create_connector", _hma_asked_for),
    Rule("offloaded state", f"{V1}offloading/config.py, tokens_per_hash", _offloaded_state),
    Rule("offloading on a CPU", "v1/kv_offload/cpu/spec.py, get_worker", _storage_on_cpu),
    Rule("bidirectional", f"{V1}nixl/push_scheduler.py", _bidirectional),
    Rule("expandable segments", "config/vllm.py, _verify_kv_transfer_compat", _expandable),
    Rule("buffer device", f"{V1}nixl/utils.py, _NIXL_SUPPORTED_DEVICE", _buffer),
)
