"""Tiny models of random weights for the real engine, and runs that are kept for the table of what ran."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "evals" / "tiny_hybrid" / "model"
KEEP = "PDRIG_KEEP_RUNS"
"""A folder that gets a copy of each run, for scripts/families_table.py."""

MAKE = """\
import json, shutil, sys
from pathlib import Path
import torch, transformers

tokenizer, folder, models = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
size = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
for name, (kind, settings) in models.items():
    config = getattr(transformers, kind + ("TextConfig" if kind in ("Gemma3", "Qwen3_5") else "Config"))(
        vocab_size=size, bos_token_id=0, eos_token_id=None, pad_token_id=0, tie_word_embeddings=False, **settings)
    torch.manual_seed(0)
    model = getattr(transformers, kind + "ForCausalLM")(config)
    # Probabilities as uneven as a trained model's. Where all are alike, tokens change places at no change to speak of:
    # with a prompt exchanged for another one hardly an output moved by more than a nat, and no damage could show.
    model.lm_head.weight.data *= 10
    model.to(torch.bfloat16).save_pretrained(folder / name)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, folder / name / file)
"""
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "max_position_embeddings": 4096}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
# More than a trained model's, since small random weights answer every prompt alike; 0.3 is so much that bfloat16's own
# rounding moves the outputs of some of these models by 2 nats.
WIDE = {"initializer_range": 0.07}
LLAMA: tuple[str, dict[str, Any]] = ("Llama", {**SIZES, **HEADS, **WIDE})


def make_models(engine: Path, folder: Path, asked: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    """A folder a model, each of a class of transformers without `Config` and its settings, by the engine's packages."""
    command = [str(engine / "bin" / "python"), "-c", MAKE, str(TOKENIZER), str(folder), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-2000:]


def keep(run: Path) -> None:
    """Copy a run to where KEEP says, if it says so."""
    if KEEP in os.environ:
        shutil.copytree(run, Path(os.environ[KEEP]) / run.name)


def hand_off_cells(run: Path) -> list[dict[str, Any]]:
    """The results of a run's prefill/decode cells, repetitions left out."""
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(run.glob("cells/*/cell.json"))]
    return [cell for cell in cells if cell["kind"] == "pd" and cell["rerun_of"] is None]


def rows(run: Path, cell_id: str, file: str) -> list[dict[str, Any]]:
    """The lines of one of a cell's files."""
    lines = (run / "cells" / cell_id / file).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
