"""The command line of `vllm serve`, as far as the simulated engine needs it. Pure.

What it does not need, it accepts and ignores, so that any real engine's options can be given as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

TransferMode = Literal["pull", "push"]
Policy = Literal["fail", "recompute"]

_SHORT = {"-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size"}
_CONNECTORS: dict[str, TransferMode] = {
    "NixlConnector": "pull",
    "NixlPullConnector": "pull",
    "NixlPushConnector": "push",
}


class OptionError(Exception):
    """A command line or a setting that cannot be used; one line that says what to change."""


@dataclass(frozen=True)
class KVTransfer:
    """What `--kv-transfer-config` says; `lease_s` and `registration_s` are seconds."""

    mode: TransferMode
    role: str
    policy: Policy
    engine_id: str | None
    lease_s: float
    registration_s: float


@dataclass(frozen=True)
class Limits:
    """How much one request may ask for; None is no limit."""

    max_model_len: int
    max_logprobs: int | None
    max_sequences: int


@dataclass(frozen=True)
class Options:
    """One server. `compatibility` is what both sides of a hand-off must agree on, as one text."""

    model: str
    served_names: tuple[str, ...]
    host: str
    port: int
    block_size: int
    prefix_caching: bool
    gpu_blocks: int | None
    offloads: bool
    max_num_seqs: int | None
    limits: Limits
    tp: int
    pp: int
    dp: int
    async_scheduling: bool
    api_key: str | None
    reasoning: bool
    kv: KVTransfer | None
    compatibility: str
    side_host: str
    side_port: int
    sim_config: str | None
    sim_ledger: str | None
    ignored: tuple[str, ...] = field(default=())


def parse(argv: Sequence[str], env: Mapping[str, str]) -> Options:
    """Read a command line; `serve` before the model is allowed. Raises OptionError."""
    words = list(argv)
    if words and words[0] == "serve":
        words = words[1:]
    model = words.pop(0) if words and not words[0].startswith("-") else None
    flags = _flags(words)
    known = _Known(flags)
    model = known.text("model") or model
    if model is None:
        raise OptionError("no model: give it as the first argument, as for `vllm serve MODEL`")
    async_off = "no-async-scheduling" in flags
    known.used.update({"enable-prefix-caching", "no-enable-prefix-caching"})
    known.used.update({"async-scheduling", "no-async-scheduling"})
    kv_text = known.text("kv-transfer-config")
    kv = _kv_transfer(kv_text) if kv_text else None
    names = known.texts("served-model-name") or (model,)
    agree = {
        "model": model,
        "dtype": known.text("dtype") or "auto",
        "cache": known.text("kv-cache-dtype") or "auto",
        "backend": known.text("attention-backend") or "auto",
        "hybrid": "disable-hybrid-kv-cache-manager" not in flags,
        "mode": kv.mode if kv else None,
    }
    options = Options(
        model=model,
        served_names=names,
        host=known.text("host") or "127.0.0.1",
        port=known.number("port", 8000, least=0),
        block_size=known.number("block-size", 16),
        prefix_caching="enable-prefix-caching" in flags,
        offloads=kv_text is not None and "OffloadingConnector" in kv_text,
        gpu_blocks=known.number("num-gpu-blocks-override", 0, least=0) or None,
        max_num_seqs=known.number("max-num-seqs", 0, least=0) or None,
        limits=_limits(known, env),
        tp=known.number("tensor-parallel-size", 1),
        pp=known.number("pipeline-parallel-size", 1),
        dp=known.number("data-parallel-size", 1),
        async_scheduling=not async_off,
        api_key=known.text("api-key") or env.get("VLLM_API_KEY") or None,
        reasoning=known.text("reasoning-parser") is not None,
        kv=kv,
        compatibility=json.dumps(agree, sort_keys=True),
        side_host=env.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1"),
        side_port=_port(env.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")),
        sim_config=known.text("sim-config"),
        sim_ledger=known.text("sim-ledger"),
        ignored=tuple(sorted(set(flags) - known.used)),
    )
    return options


def _flags(words: Sequence[str]) -> dict[str, list[str]]:
    """Each flag with the words that follow it up to the next flag; a negative number is a value."""
    flags: dict[str, list[str]] = {}
    current: list[str] | None = None
    for word in words:
        if word.startswith("-") and not _is_number(word):
            name, has_value, value = word.partition("=")
            name = _SHORT.get(name, name.lstrip("-")).replace("_", "-")
            current = flags[name] = [value] if has_value else []
        elif current is None:
            raise OptionError(f"unexpected argument {word!r}: the model comes first, then the flags")
        else:
            current.append(word)
    return flags


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


class _Known:
    """Reads flags by name and remembers which were read."""

    def __init__(self, flags: dict[str, list[str]]) -> None:
        self.flags = flags
        self.used: set[str] = set()

    def texts(self, name: str) -> tuple[str, ...] | None:
        self.used.add(name)
        values = self.flags.get(name)
        if values is None:
            return None
        if not values:
            raise OptionError(f"--{name}: expected a value")
        return tuple(values)

    def text(self, name: str) -> str | None:
        values = self.texts(name)
        return values[0] if values else None

    def number(self, name: str, default: int, least: int = 1) -> int:
        value = self.text(name)
        if value is None:
            return default
        return _whole(f"--{name}", value, least)


def _limits(known: _Known, env: Mapping[str, str]) -> Limits:
    """vLLM's own names and defaults (vllm/config/model.py, vllm/envs.py); a negative number of logprobs is no limit."""
    logprobs = known.number("max-logprobs", 20, least=-1)
    return Limits(
        max_model_len=known.number("max-model-len", 32768),
        max_logprobs=None if logprobs < 0 else logprobs,
        max_sequences=_whole("VLLM_MAX_N_SEQUENCES", env.get("VLLM_MAX_N_SEQUENCES", "16384"), least=1),
    )


def _whole(name: str, value: str, least: int) -> int:
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise OptionError(f"{name}: expected a whole number from {least}, got {value!r}")
    return number


def _port(value: str) -> int:
    if not value.isdigit() or int(value) > 65535:
        raise OptionError(f"VLLM_NIXL_SIDE_CHANNEL_PORT: expected a port, got {value!r}")
    return int(value)


def _kv_transfer(text: str) -> KVTransfer | None:
    """The NIXL part of the JSON, also within a MultiConnector; None for other connectors."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"--kv-transfer-config: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise OptionError("--kv-transfer-config: expected a JSON object")
    extra = data.get("kv_connector_extra_config") or {}
    parts: list[dict[str, Any]] = [data, *extra.get("connectors", [])]
    for part in parts:
        mode = _CONNECTORS.get(str(part.get("kv_connector")))
        if mode is None:
            continue
        policy = data.get("kv_load_failure_policy", "fail")
        if policy not in ("fail", "recompute"):
            raise OptionError(f"--kv-transfer-config: kv_load_failure_policy is fail or recompute, got {policy!r}")
        more = {**extra, **(part.get("kv_connector_extra_config") or {})}
        return KVTransfer(
            mode=mode,
            role=str(part.get("kv_role", data.get("kv_role", "kv_both"))),
            policy=policy,
            engine_id=data.get("engine_id"),
            lease_s=float(more.get("kv_lease_duration", 30)),
            registration_s=float(more.get("push_registration_timeout", 480)),
        )
    return None
