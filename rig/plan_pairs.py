"""Prefill and decode of one cell as the rules of the planner look at them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from rig.config import Config
from rig.config_facts import ModelFacts
from rig.config_matrix import Cell
from rig.config_models import EngineConfig, RoleConfig
from rig.config_types import canonical
from rig.connectors import MULTI, NIXL, child_configs
from rig.plan_servers import role_needs
from rig.yaml_source import KeyPath

PULL = "pull"
PUSH = "push"


@dataclass(frozen=True)
class Side:
    """One side: options and variables as its command has them, `kv` its `--kv-transfer-config`.

    `own` is what the sweep file says for this side alone; the rest stands with the cell or under `both`.
    """

    name: Literal["prefill", "decode"]
    tp: int
    args: Mapping[str, Any]
    env: Mapping[str, str]
    kv: Mapping[str, Any]
    async_scheduling: bool
    own: RoleConfig

    @property
    def children(self) -> list[Mapping[str, Any]]:
        """The configs within a MultiConnector."""
        return child_configs(self.kv) if self.kv.get("kv_connector") == MULTI else []

    @property
    def connectors(self) -> tuple[str, ...]:
        """The connector, and those within it."""
        return tuple(str(config.get("kv_connector")) for config in (self.kv, *self.children))

    @property
    def nixl(self) -> str | None:
        """`pull` or `push`; None where no NIXL connector moves the blocks, or several do."""
        found = [name for name in self.connectors if name in NIXL]
        return None if len(found) != 1 else PUSH if NIXL[found[0]].transfers_on == "prefill" else PULL

    @property
    def extra(self) -> Mapping[str, Any]:
        """`kv_connector_extra_config` of the NIXL connector."""
        for config in (self.kv, *self.children):
            extra = config.get("kv_connector_extra_config")
            if config.get("kv_connector") in NIXL and isinstance(extra, Mapping):
                return extra
        return {}

    def kv_key(self, *names: str) -> KeyPath:
        """Where a key of the KV config stands: with the side if it sets it, else with the cell."""
        head: KeyPath = (self.name,) if names[0] in self.own.kv_transfer_config else ()
        return (*head, "kv_transfer_config", *names)

    def arg_key(self, name: str) -> KeyPath:
        """Where an option stands: with the side if it sets it, else under `both`."""
        own = next((raw for raw in self.own.args if canonical(raw, True)[0] == name), None)
        return (self.name, "args", own) if own is not None else ("both", "args", name)

    def env_key(self, name: str) -> KeyPath:
        """Where a variable stands."""
        return (self.name if name in self.own.env else "both", "env", name)

    def number(self, name: str) -> int | None:
        """An option as a whole number; None where it is absent or says something else."""
        value = self.args.get(name)
        text = "" if isinstance(value, bool) else str(value)
        return int(text) if text.isdecimal() else None

    def draft(self) -> tuple[str, str | None] | None:
        """Method and draft model of speculative decoding; None where it is off."""
        config = self.args.get("speculative-config")
        whole = dict(config) if isinstance(config, Mapping) else {}
        method = self.args.get("spec-method", whole.get("method"))
        model = self.args.get("spec-model", whole.get("model"))
        if method is None and model is None:
            return None
        return str(method or "draft_model"), None if model is None else str(model)

    def draft_key(self) -> str:
        named = ("spec-method", "spec-model", "speculative-config")
        return next((name for name in named if name in self.args), named[-1])


@dataclass(frozen=True)
class Pair:
    """Both sides of a cell, what is known of their model, and the device that the engine serves on."""

    prefill: Side
    decode: Side
    model: ModelFacts
    device: Literal["gpu", "cpu"]

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.prefill, self.decode

    @property
    def nixl(self) -> str | None:
        """`pull` or `push` where both sides use it."""
        return self.prefill.nixl if self.prefill.nixl == self.decode.nixl else None

    @property
    def enforces_compatibility(self) -> bool:
        """Whether a difference ends the handshake (`enforce_handshake_compat`, nixl/base_worker.py)."""
        return all(side.extra.get("enforce_handshake_compat", True) is not False for side in self.sides)


def serves_vllm(engine: EngineConfig) -> bool:
    """Whether the engine is vLLM, as far as its command shows."""
    words = engine.command or []
    return engine.venv is not None or any(
        PurePath(word).name == "vllm" or word.startswith("vllm.entrypoints") for word in words
    )


def pair_of(config: Config, cell: Cell) -> Pair:
    settings = cell.settings
    engine = config.sweep.engines[settings.engine]
    return Pair(
        _side(config, cell, "prefill"),
        _side(config, cell, "decode"),
        config.facts.get(settings.model, ModelFacts()),
        engine.device,
    )


def _side(config: Config, cell: Cell, name: Literal["prefill", "decode"]) -> Side:
    needs = role_needs(cell, name, config)
    own: RoleConfig = cell.settings.prefill if name == "prefill" else cell.settings.decode
    return Side(name, needs.tp, needs.args, needs.env, needs.kv_transfer_config or {}, needs.async_scheduling, own)
