"""Rules on the model, the sizes and the options of both sides, which must fit one another. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rig.config_errors import shown
from rig.plan_pairs import PULL, PUSH, Pair
from rig.plan_rule import V1, WORKER, Finding, Rule
from rig.plan_rules_connectors import WITHOUT_HMA

WITHOUT_ASYNC = ("ngram", "medusa", "mlp_speculator", "suffix")
"""Speculative methods that async scheduling refuses (config/vllm.py, `async_scheduling`)."""

HIDDEN_STATE_METHODS = ("eagle", "eagle3", "mtp", "dflash", "dspark")
"""Speculative methods that both sides must share (config/speculative.py, `use_eagle`)."""


def _heads(pair: Pair) -> Iterator[Finding]:
    heads = pair.model.heads
    for side in pair.sides:
        if heads and heads % side.tp:
            yield Finding((side.name, "tp"), f"the model's {heads} attention heads cannot be divided by TP {side.tp}")


def _tp_divides(pair: Pair) -> Iterator[Finding]:
    p, d = pair.prefill.tp, pair.decode.tp
    if pair.nixl and p % d and d % p:
        problem = f"prefill's TP {p} and decode's TP {d} must divide one another; change one of the two"
        yield Finding(("decode", "tp"), problem)


def _replicated(pair: Pair) -> Iterator[Finding]:
    """The side that moves the blocks cannot gather KV heads that the other side holds several times."""
    heads, model = pair.model.kv_heads, pair.model
    if not pair.nixl or heads is None or model.mla or model.state:
        return
    mover, other = (pair.prefill, pair.decode) if pair.nixl == PUSH else (pair.decode, pair.prefill)
    if other.tp > mover.tp and other.tp > heads:
        problem = (
            f"{other.name}'s TP {other.tp} is larger than the model's {heads} KV heads and than {mover.name}'s TP "
            f"{mover.tp}; lower it to {max(heads, mover.tp)}, or raise {mover.name}'s"
        )
        yield Finding((other.name, "tp"), problem)


def _block_sizes(pair: Pair) -> Iterator[Finding]:
    """The block of the side that moves them must be a multiple of the other's.

    What counts are the kernel's blocks, which may be smaller than those asked for (`select_common_block_size`,
    v1/worker/utils.py) and larger in a model with state: only the CPU's one attention backend is sure to take its
    multiples of 32 as they are.
    """
    p, d = pair.prefill.number("block-size"), pair.decode.number("block-size")
    if not pair.nixl or p is None or d is None or p == d:
        return
    key = pair.decode.arg_key("block-size")
    sure = pair.device == "cpu" and pair.model.known and not pair.model.state
    mover, other = (pair.prefill, pair.decode) if pair.nixl == PUSH else (pair.decode, pair.prefill)
    size, theirs = (p, d) if pair.nixl == PUSH else (d, p)
    if size % theirs:
        problem = f"{mover.name}'s block size {size} must be a multiple of {other.name}'s {theirs}"
        yield Finding(key, problem, certain=sure)
    elif other.tp > mover.tp and not (pair.model.mla or pair.model.state):
        problem = f"{other.name} has the larger TP ({other.tp}, {mover.name} {mover.tp}), so block sizes {p} and {d}"
        yield Finding(key, f"{problem} must be the same", certain=sure)
    if pair.device == "gpu" and any(side.kv.get("kv_buffer_device") == "cpu" for side in pair.sides):
        problem = f"block sizes {p} and {d} differ, which a host buffer (kv_buffer_device: cpu) cannot move"
        yield Finding(key, problem, certain=False)


_DTYPES = {"half": "float16", "float": "float32", "auto": None}
_AGREED: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("dtype", lambda v: _DTYPES.get(str(v), v)),
    ("kv-cache-dtype", lambda v: None if v == "auto" else v),
    ("attention-backend", lambda v: None if v is None or str(v).lower() == "auto" else str(v).upper()),
    ("disable-hybrid-kv-cache-manager", lambda v: v),
)
"""Options in the hash that both sides compare, as they are compared; None: the engine chooses by itself."""


def _agreement(pair: Pair) -> Iterator[Finding]:
    if not pair.nixl:
        return
    for name, plain in _AGREED:
        p, d = (side.args.get(name) for side in pair.sides)
        ours, theirs = plain(p), plain(d)
        if ours == theirs:
            continue
        told = [side for side, value in zip(pair.sides, (ours, theirs), strict=True) if value is not None]
        problem = f"prefill has {name} {_said(p)} and decode {_said(d)}; both sides must be the same"
        yield Finding(told[-1].arg_key(name), problem, certain=len(told) == 2 and pair.enforces_compatibility)


def _said(value: Any) -> str:
    return "by default" if value is None else shown(value)


def _speculation(pair: Pair) -> Iterator[Finding]:
    """Only methods that use the target's hidden states are compared; an n-gram on one side alone is fine."""
    drafts = [side.draft() for side in pair.sides]
    if not pair.nixl or drafts[0] == drafts[1] or not any(d and d[0] in HIDDEN_STATE_METHODS for d in drafts):
        return
    told = pair.decode if drafts[1] else pair.prefill
    problem = (
        f"prefill's speculative decoding is {_draft(drafts[0])} and decode's {_draft(drafts[1])}; give both the same "
        "method and draft model (under `both`)"
    )
    yield Finding(told.arg_key(told.draft_key()), problem, certain=pair.enforces_compatibility)


def _async_speculation(pair: Pair) -> Iterator[Finding]:
    for side in pair.sides:
        draft = side.draft()
        if draft is not None and draft[0] in WITHOUT_ASYNC and side.async_scheduling:
            problem = f"speculative decoding by {draft[0]} does not run with async scheduling; set it to false"
            yield Finding(("async_scheduling",), problem)


def _draft(draft: tuple[str, str | None] | None) -> str:
    return "off" if draft is None else " ".join(part for part in draft if part)


def _conv_layout(pair: Pair) -> Iterator[Finding]:
    for side in pair.sides:
        if pair.nixl and pair.model.state and side.env.get("VLLM_SSM_CONV_STATE_LAYOUT") != "DS":
            key = side.env_key("VLLM_SSM_CONV_STATE_LAYOUT")
            yield Finding(key, "the model has Mamba or linear-attention state: set it to DS on both sides")


def _state_needs_hma(pair: Pair) -> Iterator[Finding]:
    for side in pair.sides:
        if pair.model.state and side.args.get("disable-hybrid-kv-cache-manager") is True:
            key = side.arg_key("disable-hybrid-kv-cache-manager")
            yield Finding(key, "the model's state needs the hybrid KV-cache manager; set it to false")
        lacking = [c for c in side.connectors if c in WITHOUT_HMA]
        if pair.model.state and lacking:
            key = side.kv_key("kv_connector")
            problem = f"{lacking[0]} has no hybrid KV-cache manager, which the model's state needs"
            yield Finding(key, f"{problem}; use a NIXL connector")


def _cached_state(pair: Pair) -> Iterator[Finding]:
    unequal = pair.prefill.tp != pair.decode.tp
    for side in pair.sides:
        caching = side.args.get("enable-prefix-caching")
        if pair.model.state and caching is not False and unequal and pair.nixl:
            key = side.arg_key("enable-prefix-caching")
            problem = (
                f"prefix caching is {'on' if caching else 'left to the engine'}, and blocks of state may be of another "
                "size at another TP, which is then refused; set it to false"
            )
            yield Finding(key, problem, certain=False)


def _mamba_block(pair: Pair) -> Iterator[Finding]:
    for side in pair.sides:
        if side.args.get("mamba-block-size") is not None and side.args.get("enable-prefix-caching") is False:
            key = side.arg_key("mamba-block-size")
            yield Finding(key, "can only be set with prefix caching")


def _pipelines(pair: Pair) -> Iterator[Finding]:
    key = pair.decode.arg_key("pipeline-parallel-size")
    if not pair.nixl:
        return
    if (pair.decode.number("pipeline-parallel-size") or 1) > 1 and pair.decode.kv.get("kv_role") == "kv_consumer":
        yield Finding(key, "decode as kv_consumer cannot be split into pipeline stages; set it to 1")
    for side in pair.sides:
        if (side.number("pipeline-parallel-size") or 1) == 1:
            continue
        at = side.arg_key("pipeline-parallel-size")
        if pair.model.state:
            yield Finding(at, "a model with state cannot be split into pipeline stages with NIXL; set it to 1")
        elif pair.model.sliding and pair.nixl == PULL and not side.args.get("disable-hybrid-kv-cache-manager"):
            yield Finding(at, "a sliding window with pipeline stages needs push mode; use NixlPushConnector")


def _context(pair: Pair) -> Iterator[Finding]:
    if not pair.nixl:
        return
    for side in pair.sides:
        pcp = side.number("prefill-context-parallel-size") or 1
        if pcp > 1 and side.kv.get("kv_role") in ("kv_consumer", "kv_both"):
            key = side.arg_key("prefill-context-parallel-size")
            yield Finding(key, f"needs kv_role kv_producer, got {side.kv.get('kv_role')}")
    p, d = (side.number("decode-context-parallel-size") or 1 for side in pair.sides)
    at = pair.decode.arg_key("decode-context-parallel-size")
    if p % d and d % p:
        yield Finding(at, f"prefill's {p} and decode's {d} must divide one another")
    elif p != d and pair.model.state:
        yield Finding(at, f"a model with state needs the same on both sides, got {p} and {d}")


MODEL_RULES = (
    Rule("attention heads", "config/model.py, verify_with_parallel_config", _heads),
    Rule("TP sizes", "distributed/kv_transfer/kv_connector/utils.py, tp_ratio", _tp_divides),
    Rule("KV heads", f"{WORKER}, _validate_remote_agent_handshake", _replicated),
    Rule("block sizes", f"{WORKER}, and block_size_ratio of kv_connector/utils.py", _block_sizes),
    Rule("agreement", f"{V1}nixl/metadata.py, compute_nixl_compatibility_hash", _agreement),
    Rule("speculation", f"{V1}nixl/metadata.py, _get_speculative_compatibility_factors", _speculation),
    Rule("async speculation", "config/vllm.py, async_scheduling with speculative_config", _async_speculation),
    Rule("conv state", f"{WORKER}, is_conv_state_dim_first", _conv_layout),
    Rule("state needs HMA", f"{WORKER}, _is_hma_required", _state_needs_hma),
    Rule("cached state", f"{WORKER}, _validate_remote_agent_handshake", _cached_state),
    Rule("mamba block", "config/vllm.py, validate_mamba_block_size", _mamba_block),
    Rule("pipeline stages", f"{WORKER}, pp_size", _pipelines),
    Rule("context parallel", f"{V1}nixl/connector.py and base_worker.py", _context),
)
