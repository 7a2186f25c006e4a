"""Drafts of random weights for the tiny models: heads of EAGLE and EAGLE-3, layers that predict further tokens."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

MAKE = """\
import json, shutil, sys
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file

folder, drafts = Path(sys.argv[1]), json.loads(sys.argv[2])
for name, (method, target) in drafts.items():
    config = json.loads((folder / target / "config.json").read_text())
    weights = load_file(folder / target / "model.safetensors")
    wide, spread, norm = config["hidden_size"], config["initializer_range"], weights["model.norm.weight"]
    prefix = f"model.layers.{config['num_hidden_layers'] - 1}."
    layer = {key.removeprefix(prefix): w for key, w in weights.items() if key.startswith(prefix)}
    torch.manual_seed(1)
    drawn = lambda rows, columns: (torch.randn(rows, columns) * spread).to(torch.bfloat16)
    if method == "mtp":
        made = {**weights, "mtp.fc.weight": drawn(wide, 2 * wide)}
        made |= {f"mtp.layers.0.{key}": w for key, w in layer.items()}
        made |= {f"mtp.{key}.weight": norm for key in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding")}
        config["mtp_num_hidden_layers"] = 1
    else:
        config["num_hidden_layers"] = 1
    if method == "eagle":
        made = {"fc.weight": drawn(wide, 2 * wide)}
        made |= {f"layers.0.{key}": w for key, w in layer.items() if key != "input_layernorm.weight"}
    if method == "eagle3":
        made = {"fc.weight": drawn(wide, 3 * wide), "norm.weight": norm, "lm_head.weight": weights["lm_head.weight"]}
        made |= {f"midlayer.{key}": w for key, w in layer.items()}
        made["midlayer.hidden_norm.weight"] = layer["input_layernorm.weight"]
        for part in ("q_proj", "k_proj", "v_proj"):
            rows = len(layer[f"self_attn.{part}.weight"])
            made[f"midlayer.self_attn.{part}.weight"] = drawn(rows, 2 * wide)
        config["architectures"] = ["LlamaForCausalLMEagle3"]
        config["draft_vocab_size"] = config["vocab_size"]
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    if name != target:
        shutil.copytree(folder / target, folder / name)
    (folder / name / "config.json").write_text(json.dumps(config))
    made = {key: w.clone().contiguous() for key, w in made.items()}
    save_file(made, folder / name / "model.safetensors", metadata={"format": "pt"})
"""


def make_drafts(engine: Path, folder: Path, asked: Mapping[str, tuple[str, str]]) -> None:
    """A folder a draft, each of a method and the model in `folder` that it drafts for; `mtp` goes into that model."""
    command = [str(engine / "bin" / "python"), "-c", MAKE, str(folder), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-2000:]
