"""What a model and an engine build are, as far as planning needs it: read from their files where those are here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig.config_models import EngineConfig, ModelConfig

_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_STATE_LAYERS = {"mamba", "mamba2", "linear_attention", "conv", "recurrent", "hybrid", "ssm"}
_STATE_KEYS = (
    *("mamba_d_state", "mamba_d_conv", "mamba_ssm_dtype", "ssm_state_size", "state_size"),
    *("hybrid_override_pattern", "linear_num_key_heads", "linear_attn_config", "conv_L_cache"),
)
_SLIDING = {"sliding_attention", "chunked_attention"}


@dataclass(frozen=True)
class ModelFacts:
    """`heads` and `kv_heads` are totals over all ranks; None or false where nothing says so.

    `mla`: latent attention, whose KV is the same on every rank. `state`: layers with Mamba or linear-attention state.
    `sliding`: layers with a window. `known` is false for a model of which nothing is said.
    """

    heads: int | None = None
    kv_heads: int | None = None
    mla: bool = False
    state: bool = False
    sliding: bool = False
    known: bool = False


def model_facts(model: ModelConfig) -> ModelFacts:
    """From config.json of a local folder, with `family` and `kv_heads` of the sweep file on top."""
    found = facts_of(_read(Path(model.path) / "config.json")) if model.path is not None else ModelFacts()
    if model.family is not None:
        found = ModelFacts(
            found.heads,
            found.kv_heads,
            mla=model.family == "mla",
            state=model.family == "hybrid",
            sliding=model.family == "sliding",
            known=True,
        )
    if model.kv_heads is not None:
        found = ModelFacts(found.heads, model.kv_heads, found.mla, found.state, found.sliding, known=True)
    return found


def facts_of(config: Mapping[str, Any]) -> ModelFacts:
    """From a Hugging Face config.json; the part for text where a model has several.

    Names of keys: vLLM 0.32, transformers_utils/model_arch_config_convertor.py (heads, `kv_lora_rank` for MLA) and
    config/model.py (`is_hybrid`: a model whose `layer_types` are all attention has no state).
    """
    nested = config.get("text_config")
    text = {**config, **nested} if isinstance(nested, Mapping) else dict(config)
    if not text:
        return ModelFacts()
    layers = text.get("layer_types") or text.get("layers_block_type") or ()
    kinds = {str(kind) for kind in layers} if isinstance(layers, list | tuple) else set()
    heads = _first(text, _HEADS)
    kv_heads = _first(text, _KV_HEADS)
    return ModelFacts(
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        mla=text.get("kv_lora_rank") is not None,
        state=bool(kinds & _STATE_LAYERS) if kinds else any(text.get(key) is not None for key in _STATE_KEYS),
        sliding=bool(kinds & _SLIDING) or (not kinds and bool(text.get("sliding_window"))),
        known=True,
    )


def engine_version(engine: EngineConfig) -> str | None:
    """The version that the file says, or that of the `vllm` installed in the environment; None where neither is."""
    if engine.version is not None or engine.venv is None:
        return engine.version
    for info in sorted(Path(engine.venv).glob("lib/python3*/site-packages/vllm-*.dist-info")):
        return info.name.removeprefix("vllm-").removesuffix(".dist-info")
    return None


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _read(path: Path) -> Mapping[str, Any]:
    """The file's object; empty where it is missing or no JSON, which the engine will say better."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
