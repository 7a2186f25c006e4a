"""Rules that the engine enforces only later: what is refused when planning, what is a note, and what is fine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rig.config import parse_config
from rig.config_facts import ModelFacts, facts_of
from rig.errors import ConfigError
from rig.machine import Machine
from rig.plan import plan_sweep
from rig.plan_rules import RULES
from rig.planned import SweepPlan

MACHINE = Machine(gpus=tuple(str(i) for i in range(64)), hostname="box", rig_python="/rig/bin/python")
DS = {"VLLM_SSM_CONV_STATE_LAYOUT": "DS"}
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
PUSH = {"kv_connector": "NixlPushConnector", "kv_role": "kv_both"}
OFFLOADING = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
LMCACHE = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}


def multi(*children: dict[str, Any]) -> dict[str, Any]:
    extra = {"connectors": list(children)}
    return {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def sweep(
    cell: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
    **top: Any,
) -> dict[str, Any]:
    return {
        "name": "s",
        "models": {"m": {"id": "a/b", **(model or {})}},
        "engines": {"e": {"command": ["vllm", "serve"], **(engine or {})}},
        "cell": {"model": "m", "engine": "e", "kv_transfer_config": NIXL, "task": "t", **(cell or {})},
        "tasks": {"t": {"task": "gsm-tiny"}},
        "baseline": "none",
        **top,
    }


def plan(data: dict[str, Any], folder: Path = Path("/sweeps")) -> SweepPlan:
    return plan_sweep(parse_config(yaml.safe_dump(data, sort_keys=False), "x.yaml", folder), MACHINE)


def tps(prefill: int, decode: int) -> dict[str, Any]:
    return {"prefill": {"tp": prefill}, "decode": {"tp": decode}}


def args(**both: Any) -> dict[str, Any]:
    return {"both": {"args": {name.replace("_", "-"): value for name, value in both.items()}}}


def each(name: str, prefill: Any, decode: Any) -> dict[str, Any]:
    return {
        role: {"args": {} if value is None else {name: value}}
        for role, value in (("prefill", prefill), ("decode", decode))
    }


def merge(*parts: dict[str, Any]) -> dict[str, Any]:
    """Cells laid over one another, side by side within `prefill` and `decode`."""
    whole: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            whole[name] = {**whole.get(name, {}), **value}
    return whole


STATE = {"family": "hybrid"}
PLAIN = {"family": "attention", "kv_heads": 4}
HYBRID = {"both": {"env": DS, "args": {"enable-prefix-caching": False}}}
EAGLE = {"method": "eagle3", "model": "draft", "num_speculative_tokens": 2}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "a name with a slip",
        sweep({"kv_transfer_config": {"kv_connector": "NixlConector", "kv_role": "kv_both"}}),
        "cell.kv_transfer_config.kv_connector: vLLM itself has no NixlConector; is NixlConnector meant?",
    ),
    (
        "no role",
        sweep({"kv_transfer_config": {"kv_connector": "NixlConnector"}}),
        "cell.kv_transfer_config.kv_role: NixlConnector needs kv_role",
    ),
    (
        "a role of no side",
        sweep({"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "both"}}),
        'needs kv_role, one of kv_producer, kv_consumer, kv_both, got "both"',
    ),
    (
        "policy",
        sweep({"kv_transfer_config": {**NIXL, "kv_load_failure_policy": "retry"}}),
        'kv_load_failure_policy: expected fail or recompute, got "retry"',
    ),
    ("no children", sweep({"kv_transfer_config": multi()}), "needs kv_connector_extra_config.connectors"),
    (
        "a child without a role",
        sweep({"kv_transfer_config": multi({"kv_connector": "NixlConnector"}, OFFLOADING)}),
        "NixlConnector needs kv_role",
    ),
    ("TP 2 and 3", sweep(tps(2, 3)), "cell.decode.tp: prefill's TP 2 and decode's TP 3 must divide one another"),
    (
        "prefill beyond the KV heads",
        sweep(tps(8, 2), PLAIN),
        "cell.prefill.tp: prefill's TP 8 is larger than the model's 4 KV heads and than decode's TP 2; lower it to 4",
    ),
    (
        "decode beyond the KV heads, pushed to",
        sweep({**tps(2, 8), "kv_transfer_config": PUSH}, PLAIN),
        "cell.decode.tp: decode's TP 8 is larger than the model's 4 KV heads and than prefill's TP 2",
    ),
    (
        "blocks on a CPU",
        sweep(each("block-size", 64, 96), PLAIN, {"device": "cpu"}),
        "cell.decode.args.block-size: decode's block size 96 must be a multiple of prefill's 64",
    ),
    (
        "blocks on a CPU, gathered",
        sweep(merge(each("block-size", 32, 64), tps(4, 2)), PLAIN, {"device": "cpu"}),
        "prefill has the larger TP (4, decode 2), so block sizes 32 and 64 must be the same",
    ),
    (
        "blocks on a CPU, pushed",
        sweep({**each("block-size", 32, 64), "kv_transfer_config": PUSH}, PLAIN, {"device": "cpu"}),
        "prefill's block size 32 must be a multiple of decode's 64",
    ),
    (
        "dtype",
        sweep(each("dtype", "bfloat16", "half")),
        'cell.decode.args.dtype: prefill has dtype "bfloat16" and decode "half"',
    ),
    ("cache dtype", sweep(each("kv-cache-dtype", "fp8", "bfloat16")), "prefill has kv-cache-dtype"),
    (
        "attention backend",
        sweep(each("attention-backend", "FLASH_ATTN", "TRITON_ATTN")),
        "prefill has attention-backend",
    ),
    (
        "hybrid manager",
        sweep(each("disable-hybrid-kv-cache-manager", True, False)),
        "prefill has disable-hybrid-kv-cache-manager true and decode false",
    ),
    (
        "push and pull",
        sweep({"decode": {"kv_transfer_config": {"kv_connector": "NixlPushConnector"}}}),
        "cell.decode.kv_transfer_config.kv_connector: one side pushes and the other pulls",
    ),
    (
        "a draft on one side",
        sweep(each("speculative-config", None, EAGLE)),
        "cell.decode.args.speculative-config: prefill's speculative decoding is off and decode's eagle3 draft",
    ),
    (
        "other drafts",
        sweep(each("spec-method", "mtp", "eagle")),
        "prefill's speculative decoding is mtp and decode's eagle",
    ),
    (
        "an n-gram with async scheduling",
        sweep({"async_scheduling": True, **args(speculative_config={"method": "ngram"})}),
        "cell.async_scheduling: speculative decoding by ngram does not run with async scheduling; set it to false",
    ),
    (
        "conv layout",
        sweep({"both": {"env": {}}}, STATE),
        "cell.both.env.VLLM_SSM_CONV_STATE_LAYOUT: the model has Mamba or linear-attention state: set it to DS",
    ),
    (
        "conv layout of one side",
        sweep({"both": {"env": DS}, "decode": {"env": {"VLLM_SSM_CONV_STATE_LAYOUT": "SD"}}}, STATE),
        "cell.decode.env.VLLM_SSM_CONV_STATE_LAYOUT",
    ),
    (
        "state without the manager",
        sweep({"both": {"env": DS, "args": {"disable-hybrid-kv-cache-manager": True}}}, STATE),
        "needs the hybrid KV-cache manager; set it to false",
    ),
    (
        "state through LMCache",
        sweep({"kv_transfer_config": LMCACHE}, STATE),
        "LMCacheConnectorV1 has no hybrid KV-cache manager",
    ),
    (
        "the manager and LMCache",
        sweep({"kv_transfer_config": multi(NIXL, LMCACHE), **args(disable_hybrid_kv_cache_manager=False)}),
        "LMCacheConnectorV1 does not support the hybrid KV-cache manager; leave the option out",
    ),
    (
        "state beside offloading",
        sweep({"kv_transfer_config": multi(NIXL, OFFLOADING), **HYBRID}, STATE),
        "cell.both.args.enable-prefix-caching: an OffloadingConnector of a model with state needs prefix caching",
    ),
    (
        "an offload storage without a GPU",
        sweep({"kv_transfer_config": multi(NIXL, OFFLOADING)}, PLAIN, {"device": "cpu"}),
        "cell.kv_transfer_config.kv_connector_extra_config: OffloadingConnector's own storage needs a GPU",
    ),
    (
        "mamba blocks",
        sweep(args(mamba_block_size=64, no_enable_prefix_caching=True)),
        "cell.both.args.mamba-block-size: can only be set with prefix caching",
    ),
    (
        "stages of a consumer",
        sweep({"decode": {"args": {"pipeline-parallel-size": 2}, "kv_transfer_config": {"kv_role": "kv_consumer"}}}),
        "cell.decode.args.pipeline-parallel-size: decode as kv_consumer cannot be split",
    ),
    (
        "stages of state",
        sweep({**HYBRID, "prefill": {"args": {"pipeline-parallel-size": 2}}}, STATE),
        "cell.prefill.args.pipeline-parallel-size: a model with state",
    ),
    (
        "stages of a window",
        sweep({"prefill": {"args": {"pipeline-parallel-size": 2}}}, {"family": "sliding"}),
        "needs push mode",
    ),
    (
        "pushed both ways",
        sweep({"kv_transfer_config": {**PUSH, "kv_connector_extra_config": {"bidirectional_kv_xfer": True}}}),
        "cell.kv_transfer_config.kv_connector_extra_config.bidirectional_kv_xfer: push mode has no way back",
    ),
    (
        "prefill context",
        sweep({"prefill": {"args": {"prefill-context-parallel-size": 2}}}),
        "needs kv_role kv_producer, got kv_both",
    ),
    (
        "decode context",
        sweep({**each("decode-context-parallel-size", 2, 3), **{}}, {"family": "mla"}),
        "prefill's 2 and decode's 3 must divide one another",
    ),
    (
        "memory that moves",
        sweep({"both": {"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}}),
        "cell.both.env.PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True moves memory",
    ),
    (
        "a GPU's buffer on a CPU",
        sweep({"kv_transfer_config": {**NIXL, "kv_buffer_device": "cuda"}}, engine={"device": "cpu"}),
        "cell.kv_transfer_config.kv_buffer_device: the engine serves on a CPU: set it to cpu, got cuda",
    ),
]


@pytest.mark.parametrize(("data", "expected"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_cannot_work_is_refused_with_its_source(data: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(data)
    message = str(caught.value)
    assert expected in message
    assert "(vLLM 0.32: " in message
    assert "\n" not in message


@pytest.mark.parametrize(("data", "expected"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_another_version_or_an_expected_failure_makes_it_a_note(data: dict[str, Any], expected: str) -> None:
    problem = expected.split(": ", 1)[-1]
    version = {**data["engines"]["e"], "version": "0.33.1"}
    other = plan({**data, "engines": {"e": version}}).notes
    assert [n for n in other if problem in n and "this engine is 0.33.1" in n]
    xfail = {"match": {"model": "m"}, "xfail": {"reason": "known"}}
    known = plan({**data, "expect": [xfail]}).notes
    assert [n for n in known if problem in n]


LIKELY: list[tuple[str, dict[str, Any], str]] = [
    (
        "blocks through a host buffer",
        sweep({**each("block-size", 16, 32), "kv_transfer_config": {**NIXL, "kv_buffer_device": "cpu"}}),
        "which a host buffer (kv_buffer_device: cpu) cannot move",
    ),
    (
        "a connector that a plugin may bring",
        sweep({"kv_transfer_config": {"kv_connector": "Ours", "kv_role": "kv_both"}}),
        "vLLM itself has no Ours, and the file names no kv_connector_module_path",
    ),
    (
        "the wrong half",
        sweep({"prefill": {"kv_transfer_config": {"kv_role": "kv_consumer"}}}),
        "prefill is kv_consumer",
    ),
    ("blocks on a GPU", sweep(each("block-size", 32, 16)), "decode's block size 16 must be a multiple of prefill's 32"),
    ("dtype of one side", sweep(each("dtype", "bfloat16", None)), 'prefill has dtype "bfloat16" and decode by default'),
    (
        "compatibility not enforced",
        sweep(
            {
                **each("dtype", "bfloat16", "float16"),
                "kv_transfer_config": {**NIXL, "kv_connector_extra_config": {"enforce_handshake_compat": False}},
            }
        ),
        "both sides must be the same",
    ),
    ("cached state at other TPs", sweep({"both": {"env": DS}, **tps(1, 2)}, STATE), "prefix caching is left to the"),
    (
        "one way only",
        sweep({"decode": {"kv_transfer_config": {"kv_connector_extra_config": {"bidirectional_kv_xfer": True}}}}),
        "only decode has it",
    ),
    ("other connectors", sweep({"decode": {"kv_transfer_config": LMCACHE}}), "prefill uses NixlConnector and decode"),
]


@pytest.mark.parametrize(("data", "expected"), [r[1:] for r in LIKELY], ids=[r[0] for r in LIKELY])
def test_what_is_only_likely_to_fail_is_a_note(data: dict[str, Any], expected: str) -> None:
    notes = [n for n in plan(data).notes if expected in n]
    assert len(notes) == 1
    assert "may fail: " in notes[0]
    assert "m-1p1d-" in notes[0]


FINE: list[tuple[str, dict[str, Any]]] = [
    ("nothing said", sweep()),
    (
        "an offload storage of one's own without a GPU",
        sweep(
            {"kv_transfer_config": multi(NIXL, {**OFFLOADING, "kv_connector_extra_config": {"spec_module_path": "m"}})},
            PLAIN,
            {"device": "cpu"},
        ),
    ),
    ("prefill at the KV heads", sweep(tps(4, 2), PLAIN)),
    ("both beyond the KV heads", sweep(tps(8, 8), PLAIN)),
    ("decode beyond the KV heads, reading", sweep(tps(2, 8), PLAIN)),
    ("latent attention has no heads to gather", sweep(tps(8, 2), {"family": "mla", "kv_heads": 1})),
    ("state", sweep({**HYBRID, **tps(2, 1)}, {**STATE, "kv_heads": 1})),
    ("larger blocks on decode", sweep(each("block-size", 16, 64))),
    ("larger blocks on prefill, pushed", sweep({**each("block-size", 64, 16), "kv_transfer_config": PUSH})),
    ("one dtype by two names", sweep(each("dtype", "half", "float16"))),
    ("auto is the default", sweep(each("kv-cache-dtype", "auto", None))),
    ("an n-gram on one side", sweep({"async_scheduling": False, **each("spec-method", None, "ngram")})),
    ("a draft on both", sweep(args(speculative_config=EAGLE))),
    ("two names of pull", sweep({"decode": {"kv_transfer_config": {"kv_connector": "NixlPullConnector"}}})),
    ("offloading with caching", sweep({"kv_transfer_config": multi(NIXL, OFFLOADING), "both": {"env": DS}}, STATE)),
    (
        "sleep mode pins memory",
        sweep(
            {
                "both": {
                    "env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
                    "args": {"enable-sleep-mode": True},
                }
            }
        ),
    ),
    (
        "a connector of one's own",
        sweep(
            {"kv_transfer_config": {"kv_connector": "Ours", "kv_role": "kv_both", "kv_connector_module_path": "ours"}}
        ),
    ),
]


@pytest.mark.parametrize("data", [f[1] for f in FINE], ids=[f[0] for f in FINE])
def test_what_works_has_no_note(data: dict[str, Any]) -> None:
    assert not [n for n in plan(data).notes if "vLLM 0.32" in n]


def test_rules_are_for_vllm_alone_and_name_their_source() -> None:
    data = sweep(tps(2, 3), engine={"command": ["my-engine"]})
    assert not [n for n in plan(data).notes if "vLLM 0.32" in n]
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(".py" in rule.source for rule in RULES)


def test_a_connector_that_nothing_proves_is_said_before_it_runs() -> None:
    notes = plan(sweep({"kv_transfer_config": {"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}})).notes
    (note,) = (n for n in notes if "no verdict on the hand-off: " in n)
    assert "MooncakeConnector" in note
    assert not [n for n in plan(sweep()).notes if "no verdict" in n]
    assert not [n for n in plan(sweep({"kv_transfer_config": multi(NIXL, OFFLOADING)})).notes if "no verdict" in n]


def test_a_rule_is_checked_for_each_value_of_an_axis_and_points_there() -> None:
    with pytest.raises(ConfigError, match=r"matrix\.decode\.tp\[2\]: prefill's TP 2 and decode's TP 3"):
        plan(sweep({"prefill": {"tp": 2}}, matrix={"decode.tp": [1, 2, 3]}))


def test_the_model_and_the_version_are_read_from_their_files(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = {"num_attention_heads": 8, "num_key_value_heads": 2}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    data = sweep(tps(4, 2))
    data["models"]["m"] = {"path": "model"}
    with pytest.raises(ConfigError, match="the model's 2 KV heads"):
        plan(data, tmp_path)
    with pytest.raises(ConfigError, match="8 attention heads cannot be divided by TP 3"):
        plan({**data, "cell": {**data["cell"], **tps(3, 3)}}, tmp_path)
    (tmp_path / "env/lib/python3.11/site-packages/vllm-0.31.0+cpu.dist-info").mkdir(parents=True)
    older = {**data, "engines": {"e": {"venv": "env"}}}
    assert [n for n in plan(older, tmp_path).notes if "this engine is 0.31.0+cpu" in n]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ModelFacts()),
        ({"num_attention_heads": 8}, ModelFacts(8, 8, known=True)),
        (
            {"num_attention_heads": 8, "num_key_value_heads": 2, "kv_lora_rank": 512},
            ModelFacts(8, 2, mla=True, known=True),
        ),
        ({"text_config": {"num_attention_heads": 4, "num_key_value_heads": 1}}, ModelFacts(4, 1, known=True)),
        ({"layer_types": ["sliding_attention", "full_attention"]}, ModelFacts(sliding=True, known=True)),
        ({"layer_types": ["linear_attention", "full_attention"]}, ModelFacts(state=True, known=True)),
        ({"layer_types": ["attention"], "mamba_d_state": 128}, ModelFacts(known=True)),
        ({"hybrid_override_pattern": "M-M*"}, ModelFacts(state=True, known=True)),
        ({"sliding_window": 4096}, ModelFacts(sliding=True, known=True)),
    ],
)
def test_facts_of_a_model(config: dict[str, Any], expected: ModelFacts) -> None:
    assert facts_of(config) == expected


def test_a_missing_or_broken_config_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    data = sweep(tps(4, 2))
    for path in (".", "nowhere"):
        data["models"]["m"] = {"path": path}
        assert plan(data, tmp_path).cells


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 8), st.booleans())
def test_a_pair_of_tps_is_planned_exactly_when_the_engine_takes_it(p: int, d: int, heads: int, push: bool) -> None:
    """`tp_ratio` and `is_kv_replicated` of vLLM 0.32, from the side that moves the blocks."""
    local, remote = (p, d) if push else (d, p)
    divides = local % remote == 0 or remote % local == 0
    gathers_replicas = remote > local and remote > heads
    data = sweep(
        {**tps(p, d), "kv_transfer_config": PUSH if push else NIXL}, {"family": "attention", "kv_heads": heads}
    )
    try:
        plan(data)
    except ConfigError:
        assert not divides or gathers_replicas
    else:
        assert divides
        assert not gathers_replicas
