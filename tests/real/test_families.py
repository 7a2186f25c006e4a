"""Model families on the CPU engine: tiny models of random weights, whose outputs must be those of one server alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import HEADS, LLAMA, SIZES, WIDE, hand_off_cells, keep, make_models, rows

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(3000)]

MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1, "mamba_expand": 2}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("attention", *LLAMA),
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
            **{**SIZES, "num_attention_heads": 4, "num_key_value_heads": 4, **WIDE, "moe_intermediate_size": 128},
            **{"kv_lora_rank": 64, "q_lora_rank": None, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32},
            **{"v_head_dim": 64, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
            **{"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
        },
    ),
}
"""Family, class and configuration of each."""

LOADS = ["llama", "gemma3", "granite", "falcon-h1"]
DIES = {"deepseek-v2": "the CPU engine loads MLA and dies at the first request"}


def sweep_of(names: list[str], folder: Path) -> Path:
    """A sweep of these models, beside them."""
    base = (ROOT / "configs" / "tiny_hybrid.yaml").read_text(encoding="utf-8").replace("../", f"{ROOT}/")
    rest = base[base.index("engines:\n") :]
    models = "".join(f"  {n}: {{path: {folder / n}, family: {MODELS[n][0]}}}\n" for n in names)
    body = rest[: rest.index("matrix:\n")].replace("model: tiny", f"model: {names[0]}").replace("gsm-tiny", "words")
    known = "".join(f"  - {{match: {{model: {n}}}, xfail: {{reason: '{DIES[n]}'}}}}\n" for n in names if n in DIES)
    # 0 of 40 outputs beyond the noise bound the true share below 8 %.
    tail = (
        f"matrix:\n  model: [{', '.join(names)}]\n"
        "tasks:\n  words: {task: prefill-heavy, words: 120, limit: 40, max_tokens: 12, concurrency: 4, warmup: 4,"
        " canaries: 0, divergence: logprobs}\n"
        "baseline: monolithic\nnoise_floor: true\nrerun: false\ngates: {max_accuracy_drop: 0.1, alpha: 0.05}\n"
    ) + (f"expect:\n{known}" if known else "")
    file = folder / "families.yaml"
    file.write_text(f"name: families\nmodels:\n{models}{body}{tail}", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def models(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    asked = {name: (kind, settings) for name, (_, kind, settings) in MODELS.items()}
    make_models(engine, folder, asked)
    return folder


def cells_of(run: Path) -> dict[str, dict[str, Any]]:
    """The hand-off cells by model."""
    return {cell["labels"]["model"]: cell for cell in hand_off_cells(run)}


def texts(run: Path, cell_id: str) -> list[str]:
    return [line["text"] for line in rows(run, cell_id, "requests.jsonl") if line["kind"] == "question"]


@pytest.mark.parametrize("name", LOADS)
def test_outputs_are_those_of_one_server(models: Path, start_sweep: Callable[..., Any], name: str) -> None:
    sweep = start_sweep(config=sweep_of([name], models))
    code, out, err = sweep.finish()
    keep(sweep.run)
    cell = cells_of(sweep.run)[name]
    assert cell["verdict"]["state"] == "pass", (out, err)
    assert code == 0
    assert cell["evidence"]["pd_exercised"] is True
    assert len(set(texts(sweep.run, cell["cell_id"]))) > 4, "prompts that are answered alike prove nothing"


@pytest.mark.parametrize("name", sorted(DIES))
def test_what_does_not_run_is_said(models: Path, start_sweep: Callable[..., Any], name: str) -> None:
    sweep = start_sweep(config=sweep_of([name], models))
    sweep.finish()
    keep(sweep.run)
    assert cells_of(sweep.run)[name]["verdict"]["state"] == "xfail"
