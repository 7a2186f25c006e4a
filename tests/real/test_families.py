"""Model families on the CPU engine: tiny models of random weights, whose outputs must be those of one server alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "evals" / "tiny_hybrid" / "model"
KEEP = "PDRIG_KEEP_RUNS"
"""A folder that gets a copy of each run, for scripts/families_table.py."""

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(3000)]

MAKE = """\
import json, shutil, sys
from pathlib import Path
import torch, transformers

tokenizer, folder, models = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
size = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
for name, (kind, settings) in models.items():
    config = getattr(transformers, kind + ("TextConfig" if kind == "Gemma3" else "Config"))(
        vocab_size=size, bos_token_id=0, eos_token_id=None, pad_token_id=0, tie_word_embeddings=False, **settings)
    torch.manual_seed(0)
    model = getattr(transformers, kind + "ForCausalLM")(config).to(torch.bfloat16)
    model.save_pretrained(folder / name)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, folder / name / file)
"""
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "max_position_embeddings": 4096}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
# Larger than a trained model's: small random weights answer every prompt alike, and equal outputs would mean nothing.
WIDE = {"initializer_range": 0.3}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1, "mamba_expand": 2}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("attention", "Llama", {**SIZES, **HEADS, **WIDE}),
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
    command = [str(engine / "bin" / "python"), "-c", MAKE, str(TOKENIZER), str(folder), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def keep(run: Path) -> None:
    if KEEP in os.environ:
        shutil.copytree(run, Path(os.environ[KEEP]) / run.name)


def cells_of(run: Path) -> dict[str, dict[str, Any]]:
    """The hand-off cells by model."""
    cells = [json.loads(path.read_text()) for path in run.glob("cells/*/cell.json")]
    return {cell["labels"]["model"]: cell for cell in cells if cell["kind"] == "pd"}


def texts(run: Path, cell_id: str) -> list[str]:
    lines = [json.loads(line) for line in (run / "cells" / cell_id / "requests.jsonl").read_text().splitlines()]
    return [line["text"] for line in lines if line["kind"] == "question"]


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
