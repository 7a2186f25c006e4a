"""Model families on the CPU engine: tiny models of random weights, whose outputs must be those of one server alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import HEADS, LLAMA, SIZES, WIDE, hand_off_cells, keep, make_models, rows
from tiny_sweeps import shipped, written

from rig.divergence import FLOOR_NATS
from rig.faults.control import ENVIRONMENT, Control, Fault, read_hits

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(3000)]

QUESTIONS = 40
"""0 of 40 outputs beyond the noise bound the true share below 8 %."""

MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1, "mamba_expand": 2}
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
CASES: dict[str, tuple[str, dict[str, list[Any]]]] = {
    **{model: (model, {}) for model in MODELS if model != "deepseek-v2"},
    "gemma3": ("gemma3", {"both.args.disable-hybrid-kv-cache-manager": [False, True]}),
    "unequal TP": ("llama", {"prefill.tp, decode.tp": [[1, 2], [2, 1]]}),
    "2p2d": ("llama", {"prefill.instances, decode.instances": [[2, 2]]}),
    "bidirectional": ("llama", {"kv_transfer_config.kv_connector_extra_config.bidirectional_kv_xfer": [True]}),
    "ngram": ("llama", {"both.args.speculative-config, async_scheduling": [[NGRAM, False]]}),
    "draft model": ("llama", {"both.args.speculative-config": [DRAFT]}),
}
"""Model and matrix of each; FOLDER is where the models are."""


FAILS: dict[str, tuple[str, dict[str, list[Any]], str]] = {
    "DP and EP": (
        "qwen3-moe",
        {"decode.args.data-parallel-size, decode.args.enable-expert-parallel": [[2, True]]},
        "the CPU's communicator has no all_gatherv, which experts over several ranks need: NotImplementedError",
    ),
}
"""Model, matrix and reason of what vLLM cannot serve on a CPU."""


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
    if control is not None:
        data["cell"]["both"]["env"][ENVIRONMENT] = str(control)
    if xfail is not None:
        data["expect"] = [{"match": {"model": model}, "xfail": {"reason": xfail}}]
    return written(data, folder)


@pytest.fixture(scope="module")
def models(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_models(engine, folder, {name: (kind, settings) for name, (_, kind, settings) in MODELS.items()})
    return folder


def outputs(run: Path, cell_id: str) -> list[tuple[int, ...]]:
    """The tokens of each answer."""
    return [tuple(r["token_ids"]) for r in rows(run, cell_id, "requests.jsonl") if r["kind"] == "question"]


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
    model, matrix, reason = FAILS[case]
    sweep = start_sweep(config=sweep_of(model, models, matrix, xfail=reason))
    code, out, err = sweep.finish().told
    keep(sweep.run)
    (cell,) = hand_off_cells(sweep.run)
    assert (cell["status"], cell["verdict"]["state"]) == ("failed", "xfail"), (out, err)
    assert "NotImplementedError" in cell["failure"]
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
