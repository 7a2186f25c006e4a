"""Model families on the CPU engine: tiny models of random weights, whose outputs must be those of one server alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_drafts import make_drafts
from tiny_models import HEADS, LLAMA, SIZES, WIDE, hand_off_cells, keep, make_models, rows
from tiny_sweeps import shipped, written
from torchvision_stand_in import write_stand_in

from rig import series as c
from rig.divergence import FLOOR_NATS
from rig.faults.control import ENVIRONMENT, Control, Fault, read_hits

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(3000)]

QUESTIONS = 40
"""0 of 40 outputs beyond the noise bound the true share below 8 %."""

MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1, "mamba_expand": 2}
GDN = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 2},
    **{"linear_key_head_dim": 64, "linear_value_head_dim": 64},
}
NEMOTRON = {"mamba_num_heads": 4, "mamba_head_dim": 64, "ssm_state_size": 64, "n_groups": 1, "head_dim": 64}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("attention", *LLAMA),
    "qwen3-moe": ("attention", "Qwen3Moe", {**SIZES, **HEADS, **WIDE, **EXPERTS, "head_dim": 64, "num_experts": 4}),
    "gemma3": (
        "sliding",
        "Gemma3",
        {
            **{**SIZES, **HEADS, **WIDE, "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 256},
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "granite": (
        "hybrid",
        "GraniteMoeHybrid",
        {
            **{**SIZES, **HEADS, **WIDE, **MAMBA, "shared_intermediate_size": 256},
            **{"num_local_experts": 4, "num_experts_per_tok": 2},
            "layer_types": ["mamba", "attention"] * 2,
        },
    ),
    "falcon-h1": ("hybrid", "FalconH1", {**SIZES, **HEADS, **WIDE, **MAMBA, "head_dim": 64, "mamba_d_ssm": 256}),
    "qwen3.5": (
        "hybrid",
        "Qwen3_5",
        {**SIZES, **HEADS, **WIDE, **GDN, "head_dim": 64, "layer_types": ["linear_attention", "full_attention"] * 2},
    ),
    "nemotron-h": (
        "hybrid",
        "NemotronH",
        {
            **{**SIZES, **HEADS, **WIDE, **NEMOTRON, "rescale_prenorm_residual": False},
            # In the usual order, and with its smaller weights, all prompts are answered alike.
            "layers_block_type": ["full_attention", "linear_attention", "full_attention", "mlp"],
        },
    ),
    "nemotron-h-moe": (
        "hybrid",
        "NemotronH",
        {
            **{**SIZES, **HEADS, **WIDE, **NEMOTRON, **EXPERTS, "n_routed_experts": 4},
            "moe_shared_expert_intermediate_size": 128,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
        },
    ),
    "jamba": (
        "hybrid",
        "Jamba",
        {
            **{**SIZES, **HEADS, **WIDE, "num_experts": 1, "attn_layer_period": 2, "attn_layer_offset": 1},
            # Convolutions of 4, the usual, are packed on CPUs that have AVX512-BF16, and fail earlier there.
            **{"mamba_d_conv": 3, "use_mamba_kernels": False},
        },
    ),
    "deepseek-v2": (
        "mla",
        "DeepseekV2",
        {
            **{**SIZES, "num_attention_heads": 4, "num_key_value_heads": 4, **WIDE, **EXPERTS},
            # The CPU's MLA kernel knows this one size: 512 and 64 (v1/attention/backends/mla/cpu_mla.py).
            **{"kv_lora_rank": 512, "qk_rope_head_dim": 64},
            **{"q_lora_rank": None, "qk_nope_head_dim": 64, "v_head_dim": 64, "n_routed_experts": 4},
            # All layers dense: which experts of random weights are chosen, rounding decides, and two askings differ.
            **{"n_shared_experts": 1, "first_k_dense_replace": 4, "n_group": 1, "topk_group": 1},
        },
    ),
}
"""Family, class and configuration of each."""

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
FOLDER = "the models' folder"
# The model itself: then nearly all that it proposes is accepted, unless its own blocks were lost on the way.
DRAFT = {"method": "draft_model", "model": f"{FOLDER}/llama", "num_speculative_tokens": 2}
# Of random weights: next to nothing that they propose is accepted, but their KV goes along.
EAGLE = {"method": "eagle", "model": f"{FOLDER}/eagle", "num_speculative_tokens": 2}
EAGLE3 = {"method": "eagle3", "model": f"{FOLDER}/eagle3", "num_speculative_tokens": 2}
MTP = {"method": "mtp", "num_speculative_tokens": 2}
DRAFTS = {"eagle": ("eagle", "llama"), "eagle3": ("eagle3", "llama"), "qwen3.5": ("mtp", "qwen3.5")}
CASES: dict[str, tuple[str, dict[str, list[Any]]]] = {
    **{model: (model, {}) for model in MODELS if model not in ("deepseek-v2", "nemotron-h-moe", "jamba")},
    "gemma3": ("gemma3", {"both.args.disable-hybrid-kv-cache-manager": [False, True]}),
    "unequal TP": ("llama", {"prefill.tp, decode.tp": [[1, 2], [2, 1]]}),
    "2p2d": ("llama", {"prefill.instances, decode.instances": [[2, 2]]}),
    "bidirectional": ("llama", {"kv_transfer_config.kv_connector_extra_config.bidirectional_kv_xfer": [True]}),
    "ngram": ("llama", {"both.args.speculative-config, async_scheduling": [[NGRAM, False]]}),
    "draft model": ("llama", {"both.args.speculative-config": [DRAFT]}),
    "EAGLE": ("llama", {"both.args.speculative-config": [EAGLE]}),
    "EAGLE-3": ("llama", {"both.args.speculative-config": [EAGLE3]}),
    "MTP": ("qwen3.5", {"both.args.speculative-config": [MTP]}),
}
"""Model and matrix of each; FOLDER is where the models are."""
SPECULATES = ("ngram", "draft model", "EAGLE", "EAGLE-3", "MTP")
ACCEPTED = ("ngram", "draft model")
"""Those of which one server accepts much: what decode accepts tells whether its draft saw the prompt."""
LAYERS = {"llama": 4, "ngram": 4, "draft model": 8, "EAGLE": 5, "EAGLE-3": 5, "qwen3.5": 2, "MTP": 3}
"""Layers that have blocks in these cases, the draft's among them."""
SPECULATION = (c.DRAFTS, c.DRAFTED_TOKENS, c.ACCEPTED_TOKENS)
LAYER_BYTES = 2 * 2 * 64 * 2
"""A token's keys and values in one of them: two heads of 64 numbers in bfloat16."""


FAILS: dict[str, tuple[str, dict[str, list[Any]], str, str]] = {
    "DP and EP": (
        "qwen3-moe",
        {"decode.args.data-parallel-size, decode.args.enable-expert-parallel": [[2, True]]},
        "the CPU's communicator has no all_gatherv, which experts over several ranks need: NotImplementedError",
        "NotImplementedError",
    ),
    "Nemotron-H with experts": (
        "nemotron-h-moe",
        {},
        "the CPU's experts have no activation without a gate: NotImplementedError",
        "is_act_and_mul=False is supported only for CUDA, XPU and ROCm",
    ),
    "Jamba": ("jamba", {}, "Mamba-1's selective scan has no CPU kernel: AttributeError", "selective_scan_fwd"),
}
"""Model, matrix, reason and the engine's own words, of what vLLM cannot serve on a CPU."""


def sweep_of(
    model: str, folder: Path, matrix: dict[str, list[Any]], control: Path | None = None, xfail: str | None = None
) -> Path:
    """A sweep of this model in `folder`, which must have it; `xfail` is why its cells are expected to fail."""
    data = shipped("tiny_hybrid.yaml")
    del data["exclude"], data["matrix"]
    data["name"] = "families"
    data["models"] = {model: {"path": str(folder / model), "family": MODELS[model][0]}}
    data["cell"] |= {"model": model, "task": "words"}
    if matrix:
        data["matrix"] = json.loads(json.dumps(matrix).replace(FOLDER, str(folder)))
    words = {"task": "prefill-heavy", "words": 120, "limit": QUESTIONS, "max_tokens": 12, "concurrency": 4, "warmup": 4}
    data["tasks"] = {"words": {**words, "canaries": 0, "divergence": "logprobs"}}
    # One whole server for all cells of a sweep.
    alone = {"disable-hybrid-kv-cache-manager": False, "data-parallel-size": 1, "enable-expert-parallel": False}
    data["baseline"] = {"monolithic": {"tp": 1, "args": alone}}
    data |= {"rerun": False, "gates": {"max_accuracy_drop": 0.1, "alpha": 0.05}}
    if model == "qwen3.5":
        data["engines"]["vllm-cpu"]["env"]["PYTHONPATH"] = str(write_stand_in(folder / "stand-in"))
    if control is not None:
        data["cell"]["both"]["env"][ENVIRONMENT] = str(control)
    if xfail is not None:
        data["expect"] = [{"match": {"model": model}, "xfail": {"reason": xfail}}]
        # One server alone might fail as well, which nothing expects.
        data["baseline"] = {"stored": str(folder / "none")}
    return written(data, folder)


@pytest.fixture(scope="module")
def models(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_models(engine, folder, {name: (kind, settings) for name, (_, kind, settings) in MODELS.items()})
    make_drafts(engine, folder, DRAFTS)
    return folder


def outputs(run: Path, cell_id: str) -> list[tuple[int, ...]]:
    """The tokens of each answer."""
    return [tuple(r["token_ids"]) for r in rows(run, cell_id, "requests.jsonl") if r["kind"] == "question"]


def grown(cell: dict[str, Any], role: str, series: str) -> set[float | None]:
    """What a series grew by on the instances of a role."""
    counters = cell["evidence"]["counters"]
    return {values[series] for instance, values in counters.items() if instance.startswith(role)}


def accepted(cell: dict[str, Any], role: str) -> float:
    """Share of the generated tokens that a draft had proposed."""
    (of_draft,), (generated,) = grown(cell, role, c.ACCEPTED_TOKENS), grown(cell, role, c.GENERATED)
    assert of_draft is not None
    assert generated
    return of_draft / generated


def layers_moved(run: Path, cell: dict[str, Any]) -> float:
    """Layers whose KV crossed: the bytes that moved, a block of the prompts and a layer."""
    asked = [r for r in rows(run, cell["cell_id"], "requests.jsonl") if r["kind"] == "question"]
    blocks = sum(math.ceil(r["prompt_tokens"] / cell["block_size"]) for r in asked)
    (moved,) = grown(cell, "decode", c.BYTES_SUM)
    assert moved is not None
    return moved / (blocks * cell["block_size"] * LAYER_BYTES)


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_one_server(models: Path, start_sweep: Callable[..., Any], case: str) -> None:
    model, matrix = CASES[case]
    sweep = start_sweep(config=sweep_of(model, models, matrix))
    code, out, err = sweep.finish().told
    keep(sweep.run)
    cells = hand_off_cells(sweep.run)
    assert len(cells) == max(1, sum(len(values) for values in matrix.values()))
    for cell in cells:
        assert cell["verdict"]["state"] == "pass", (out, err)
        assert cell["evidence"]["pd_exercised"] is True
        (comparison,) = cell["comparisons"]
        assert comparison["first_divergence"]["threshold"] == FLOOR_NATS, "damage would hide in the baseline's noise"
        answers = outputs(sweep.run, cell["cell_id"])
        assert len(answers) == QUESTIONS
        assert len(set(answers)) >= QUESTIONS / 2, "prompts that are answered alike prove nothing"
        if case in SPECULATES:
            (drafts,), (proposed,), _ = (grown(cell, "decode", series) for series in SPECULATION)
            assert drafts, "decode proposed nothing"
            assert proposed >= drafts
            alone = json.loads((sweep.run / "cells" / comparison["baseline"] / "cell.json").read_text())
            assert accepted(cell, "decode") >= 0.9 * accepted(alone, "monolithic"), "a draft's own blocks were lost"
            assert accepted(alone, "monolithic") > 0.4 or case not in ACCEPTED
        else:
            assert {value for series in SPECULATION for value in grown(cell, "decode", series)} == {None}
        if case in LAYERS:
            moved = layers_moved(sweep.run, cell)
            # A hybrid's states move beside them.
            assert moved == LAYERS[case] if MODELS[model][0] == "attention" else moved > LAYERS[case]
    assert code == 0


def test_mla_answers_otherwise_itself_and_no_verdict_is_made_of_it(
    models: Path, start_sweep: Callable[..., Any]
) -> None:
    """One server of this model, asked twice on a CPU, moves as far as damage would: no verdict on a hand-off."""
    sweep = start_sweep(config=sweep_of("deepseek-v2", models, {}))
    code, out, err = sweep.finish().told
    keep(sweep.run)
    (cell,) = hand_off_cells(sweep.run)
    assert cell["verdict"]["state"] == "inconclusive", (out, err)
    assert cell["evidence"]["pd_exercised"] is True
    assert "it answers otherwise itself when asked once more" in cell["verdict"]["reasons"][0]["text"]
    assert code == 0


@pytest.mark.parametrize("case", FAILS)
def test_what_the_cpu_cannot_serve_fails_as_expected(models: Path, start_sweep: Callable[..., Any], case: str) -> None:
    model, matrix, reason, words = FAILS[case]
    sweep = start_sweep(config=sweep_of(model, models, matrix, xfail=reason))
    code, out, err = sweep.finish().told
    keep(sweep.run)
    (cell,) = hand_off_cells(sweep.run)
    assert (cell["status"], cell["verdict"]["state"]) == ("failed", "xfail"), (out, err)
    assert words in cell["failure"]
    assert code == 0


FAULTS = {
    "llama": Fault("blocks_swapped", 0.5, seed=1),
    "gemma3": Fault("late_zeroing", 0.5, seed=1),
    "granite": Fault("late_zeroing", 0.5, seed=1, params={"groups": "state"}),
}


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("model", FAULTS)
def test_a_fault_in_its_blocks_is_damage(
    models: Path, start_sweep: Callable[..., Any], tmp_path: Path, model: str
) -> None:
    control = tmp_path / "faults.json"
    Control((FAULTS[model],)).write(control)
    sweep = start_sweep(config=sweep_of(model, models, {}, control))
    code, out, err = sweep.finish().told
    struck = {hit.sample_id for hit in read_hits(control)}
    assert len(struck) >= QUESTIONS / 4, "the planted fault hardly fired"
    (cell,) = hand_off_cells(sweep.run)
    assert code == 1, (out, err)
    assert cell["evidence"]["pd_exercised"] is True, "no counter sees damage after the transfer"
    assert (cell["verdict"]["state"], cell["verdict"]["alarms"]) == ("regression", ["damage"])
    (pairs,) = (sweep.run / "cells" / cell["cell_id"]).glob("pairs.*mono*.jsonl")
    moved = {p["sample_id"] for p in rows(sweep.run, cell["cell_id"], pairs.name) if (p["shift"] or 0) > 1}
    assert moved <= struck, "an output moved that no fault struck"
    assert len(moved) >= 5
