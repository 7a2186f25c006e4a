"""What vLLM refuses only at start-up or at the first hand-off, said when the sweep is planned. Pure.

Each rule names the file of vLLM that it was read from and the engine versions it holds for. A rule that makes a cell
impossible is an error, and a note where the engine is of another version, or where the cell is expected to fail. What
is only likely to fail is a note.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rig.config import Config
from rig.config_errors import shown
from rig.config_matrix import Cell
from rig.connectors import OFFLOADING, adapter, through_storage, why_none
from rig.plan_pairs import PULL, PUSH, Pair, pair_of, serves_vllm
from rig.yaml_source import KeyPath, dotted

VERSIONS = ("0.32",)
"""The versions whose files the rules below were read from; a build that says nothing is taken for one of these."""

_V1 = "distributed/kv_transfer/kv_connector/v1/"
_WORKER = f"{_V1}nixl/base_worker.py"

CONNECTORS = (
    *("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MultiConnector", "OffloadingConnector"),
    *("ExampleConnector", "ExampleHiddenStatesConnector", "LMCacheConnectorV1", "LMCacheMPConnector"),
    *("MooncakeConnector", "MooncakeStoreConnector", "MoRIIOConnector", "FlexKVConnectorV1", "HF3FSKVConnector"),
    *("SimpleCPUOffloadConnector", "HiSparseConnector", "DecodeBenchConnector"),
)
"""All that vLLM 0.32 registers by name (distributed/kv_transfer/kv_connector/factory.py)."""

WITHOUT_HMA = ("ExampleConnector", "LMCacheConnectorV1", "LMCacheMPConnector", "FlexKVConnectorV1", "HF3FSKVConnector")
"""Those of them that are no `SupportsHMA`: with them the hybrid KV-cache manager is off (config/vllm.py)."""

HIDDEN_STATE_METHODS = ("eagle", "eagle3", "mtp", "dflash", "dspark")
"""Speculative methods that both sides must share (config/speculative.py, `use_eagle`)."""


@dataclass(frozen=True)
class Finding:
    """What breaks a rule: where it was written, what is wrong and what to change. Not `certain`: only likely."""

    key: KeyPath
    problem: str
    certain: bool = True


@dataclass(frozen=True)
class Rule:
    """`source` is the file of vLLM (below its package) that enforces it, and what there does."""

    name: str
    source: str
    check: Callable[[Pair], Iterable[Finding]]
    versions: tuple[str, ...] = VERSIONS

    def holds_for(self, version: str | None) -> bool:
        return version is None or any(version == v or version.startswith(f"{v}.") for v in self.versions)


@dataclass
class _Notes:
    cells: dict[str, list[str]] = field(default_factory=dict)

    def add(self, text: str, cell_id: str) -> None:
        listed = self.cells.setdefault(text, [])
        if cell_id not in listed:
            listed.append(cell_id)

    def lines(self) -> list[str]:
        return [f"{', '.join(ids)}: {text}" for text, ids in self.cells.items()]


def rule_notes(config: Config, cells: Iterable[tuple[str, Cell, bool]]) -> list[str]:
    """Notes on these cells, each with its id and whether it is expected to fail.

    Raises ConfigError for the first rule that makes a cell impossible.
    """
    notes = _Notes()
    for cell_id, cell, expected in cells:
        engine = config.sweep.engines[cell.settings.engine]
        if config.sweep.attach is not None or not serves_vllm(engine):
            continue
        version = config.versions.get(cell.settings.engine)
        pair = pair_of(config, cell)
        connector, *inside = pair.prefill.connectors
        if adapter(connector, tuple(inside)) is None and not through_storage(connector):
            notes.add(f"no verdict on the hand-off: {why_none(connector, tuple(inside))}", cell_id)
        for rule in RULES:
            for found in rule.check(pair):
                where = f"(vLLM {', '.join(rule.versions)}: {rule.source})"
                if found.certain and rule.holds_for(version) and not expected:
                    raise config.error(cell.at(found.key), f"{found.problem} {where}")
                text = f"{dotted(cell.at(found.key))}: {found.problem} {where}"
                if not rule.holds_for(version):
                    text += f"; this engine is {version}, where the rule may have changed"
                notes.add(text if found.certain else f"may fail: {text}", cell_id)
    return notes.lines()


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


def _modes(pair: Pair) -> Iterator[Finding]:
    modes = {side.nixl for side in pair.sides}
    if modes == {PULL, PUSH}:
        key = pair.decode.kv_key("kv_connector")
        yield Finding(key, "one side pushes and the other pulls; give both the same connector")
    names = [side.kv.get("kv_connector") for side in pair.sides]
    if modes != {PULL, PUSH} and None in modes and names[0] != names[1]:
        key = pair.decode.kv_key("kv_connector")
        yield Finding(key, f"prefill uses {names[0]} and decode {names[1]}", certain=False)


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


RULES = (
    Rule("connector", "distributed/kv_transfer/kv_connector/factory.py, get_connector_class", _known_connector),
    Rule("role", "config/kv_transfer.py, __post_init__", _roles),
    Rule("failure policy", "config/kv_transfer.py, kv_load_failure_policy", _policy),
    Rule("children", f"{_V1}multi_connector.py, _get_connector_classes_and_configs", _children),
    Rule("attention heads", "config/model.py, verify_with_parallel_config", _heads),
    Rule("TP sizes", "distributed/kv_transfer/kv_connector/utils.py, tp_ratio", _tp_divides),
    Rule("KV heads", f"{_WORKER}, _validate_remote_agent_handshake", _replicated),
    Rule("block sizes", f"{_WORKER}, and block_size_ratio of kv_connector/utils.py", _block_sizes),
    Rule("agreement", f"{_V1}nixl/metadata.py, compute_nixl_compatibility_hash", _agreement),
    Rule("mode", f"{_V1}nixl/metadata.py, transfer_mode", _modes),
    Rule("speculation", f"{_V1}nixl/metadata.py, _get_speculative_compatibility_factors", _speculation),
    Rule("conv state", f"{_WORKER}, is_conv_state_dim_first", _conv_layout),
    Rule("state needs HMA", f"{_WORKER}, _is_hma_required", _state_needs_hma),
    Rule("HMA", "distributed/kv_transfer/kv_connector/factory.py, create_connector", _hma_asked_for),
    Rule("offloaded state", f"{_V1}offloading/config.py, tokens_per_hash", _offloaded_state),
    Rule("offloading on a CPU", "v1/kv_offload/cpu/spec.py, get_worker", _storage_on_cpu),
    Rule("cached state", f"{_WORKER}, _validate_remote_agent_handshake", _cached_state),
    Rule("mamba block", "config/vllm.py, validate_mamba_block_size", _mamba_block),
    Rule("pipeline stages", f"{_WORKER}, pp_size", _pipelines),
    Rule("bidirectional", f"{_V1}nixl/push_scheduler.py", _bidirectional),
    Rule("context parallel", f"{_V1}nixl/connector.py and base_worker.py", _context),
    Rule("expandable segments", "config/vllm.py, _verify_kv_transfer_compat", _expandable),
    Rule("buffer device", f"{_V1}nixl/utils.py, _NIXL_SUPPORTED_DEVICE", _buffer),
)
