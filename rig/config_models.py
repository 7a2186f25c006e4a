"""The keys of a sweep file as typed models. What each means for a user is in docs/config.md."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from rig.config_errors import PROBLEM, shown

Mode = Literal["pull", "push"]
SideChannelRule = Literal["rank", "rank_x_tp"]

OWNED_ARGS = {
    "model": "the model of the cell",
    "host": "`listen`",
    "port": "`port` of prefill and decode",
    "tp": "`tp` of prefill and decode",
    "tensor-parallel-size": "`tp` of prefill and decode",
    "served-model-name": "`served_name` of the model",
    "async-scheduling": "`async_scheduling` of the cell",
    "kv-transfer-config": "`kv_transfer_config` of the cell",
    "api-key": "the variable VLLM_API_KEY of your shell",
}
"""Options that the plan writes itself, and what to set instead."""

SHORT_ARGS = {
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dpl": "data-parallel-size-local",
    "dcp": "decode-context-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "ep": "enable-expert-parallel",
    "cc": "compilation-config",
    "sc": "speculative-config",
}
"""vLLM's short options, which need one dash: their long names are asked for instead."""

OWNED_ENV = {
    "CUDA_VISIBLE_DEVICES": "GPUs are assigned by the plan; narrow them with CUDA_VISIBLE_DEVICES in your shell",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "set `side_channel_host` instead",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "set `side_channel_port` of prefill and decode instead",
}


def problem(text: str) -> PydanticCustomError:
    """An error whose text is shown as it is."""
    return PydanticCustomError(PROBLEM, "{text}", {"text": text})


def canonical(name: str, value: Any) -> tuple[str, Any]:
    """One spelling for one option: dashes, and `no-x: true` as `x: false`."""
    head, dot, rest = name.partition(".")
    name = head.replace("_", "-") + dot + rest
    if name.startswith("no-") and isinstance(value, bool):
        return name.removeprefix("no-"), not value
    return name, value


def _arg_name(name: str) -> str:
    plain = name.replace("_", "-")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_.-]+)?", name):
        raise problem("an option's name without dashes in front, such as max-model-len, is expected")
    bare = plain.removeprefix("no-")
    for candidate in (plain, bare):
        if candidate in OWNED_ARGS:
            raise problem(f"pdrig writes this option itself; set {OWNED_ARGS[candidate]} instead")
        if candidate in SHORT_ARGS:
            raise problem(f"write the long name, {SHORT_ARGS[candidate]}")
    return name


def _json_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise problem(f"expected a finite number, got {value}")
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _json_value(child)
    return value


def _arg_value(value: Any) -> Any:
    if isinstance(value, list) and not value:
        raise problem("an empty list; null drops an inherited option")
    return _json_value(value)


def _one_spelling(args: dict[str, Any]) -> dict[str, Any]:
    seen: dict[str, str] = {}
    for raw, value in args.items():
        name = canonical(raw, value)[0]
        if name in seen:
            raise problem(f"{seen[name]} and {raw} are the same option; keep one")
        seen[name] = raw
    return args


def _env_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise problem("not a name for an environment variable")
    if name in OWNED_ENV:
        raise problem(OWNED_ENV[name])
    return name


def _env_value(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise problem(f"expected text or a number, got {shown(value)}; write true as 1 or in quotes")
    return str(value)


def _no_nul(value: str | None) -> str | None:
    if value is not None and "\0" in value:
        raise problem("must not contain a NUL character")
    return value


def _name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise problem(f"expected a name of letters, digits, dots, dashes and underscores, got {shown(name)}")
    return name


def _url(url: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
        raise problem(f"expected a URL such as http://127.0.0.1:8100, got {shown(url)}")
    return url.rstrip("/")


Name = Annotated[str, AfterValidator(_name)]
Args = Annotated[
    dict[Annotated[str, AfterValidator(_arg_name)], Annotated[Any, AfterValidator(_arg_value)]],
    AfterValidator(_one_spelling),
]
"""Options of the server by name without dashes: see rig.plan_args for how each kind of value is written."""
Env = dict[
    Annotated[str, AfterValidator(_env_name)],
    Annotated[str | None, BeforeValidator(_env_value), AfterValidator(_no_nul)],
]
JsonObject = dict[str, Annotated[Any, AfterValidator(_json_value)]]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Url = Annotated[str, AfterValidator(_url)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelConfig(Strict):
    """A local folder (`path`) or a hub id (`id`), and the name that requests use."""

    path: str | None = None
    id: str | None = None
    served_name: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> ModelConfig:
        if (self.path is None) == (self.id is None):
            raise problem("give either `path`, a local folder, or `id`, a name on the hub")
        return self


class EngineConfig(Strict):
    """A build of the engine: an environment that holds `bin/vllm`, or the command up to the model's name."""

    venv: str | None = None
    command: list[str] | None = Field(default=None, min_length=1)
    device: Literal["gpu", "cpu"] = "gpu"
    side_channel: SideChannelRule = "rank"
    env: Env = {}

    @model_validator(mode="after")
    def _one_source(self) -> EngineConfig:
        if (self.venv is None) == (self.command is None):
            raise problem("give either `venv`, an environment with bin/vllm, or `command`, such as [vllm, serve]")
        return self


class HostConfig(Strict):
    """Another machine: the address where its servers are reached, and how many GPUs it has."""

    address: str = Field(min_length=1)
    gpus: Annotated[int, Field(ge=0)] = 0


class BothConfig(Strict):
    """What prefill and decode share unless one of them says otherwise.

    `{hostname}` in `listen` and `side_channel_host` is the name of the machine that the server runs on.
    """

    listen: str | None = None
    side_channel_host: str | None = None
    host: str | None = None
    args: Args = {}
    env: Env = {}


class RoleConfig(Strict):
    """One side of the hand-off. Instance i listens on `port` + i."""

    tp: Count = 1
    instances: Count = 1
    port: Port
    side_channel_port: Port
    listen: str | None = None
    side_channel_host: str | None = None
    host: str | None = None
    args: Args = {}
    env: Env = {}
    kv_transfer_config: JsonObject = {}


class PrefillConfig(RoleConfig):
    port: Port = 8100
    side_channel_port: Port = 5600


class DecodeConfig(RoleConfig):
    port: Port = 8200
    side_channel_port: Port = 5700


class ProxyConfig(Strict):
    """The router. `mode` None follows the connector: push for NixlPushConnector, else pull."""

    host: str = "127.0.0.1"
    port: Port = 8000
    lenient: bool = False
    mode: Mode | None = None


class KvTransferConfig(BaseModel):
    """vLLM's own JSON, passed through; only the connector's name is needed here."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    kv_connector: str = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, data: Any) -> Any:
        return _json_value(data)


class CellConfig(Strict):
    """One point of the sweep, complete. `concurrency` None takes the task's."""

    model: str
    engine: str
    async_scheduling: bool = True
    kv_transfer_config: KvTransferConfig
    both: BothConfig = BothConfig()
    prefill: PrefillConfig = PrefillConfig()
    decode: DecodeConfig = DecodeConfig()
    proxy: ProxyConfig = ProxyConfig()
    task: str
    concurrency: Count | None = None


class TaskConfig(Strict):
    """A task of evals by name, how much of it and how hard. None leaves the task's own default."""

    task: Name
    limit: Count | None = None
    shots: Annotated[int, Field(ge=0)] | None = None
    max_tokens: Count | None = None
    concurrency: Count = 8
    stream: bool = True
    warmup: Annotated[int, Field(ge=0)] = 16
    params: JsonObject = {}


class MonolithicBaseline(Strict):
    """One server of the same engine with decode's TP, options and async setting, unless said otherwise here."""

    tp: Count | None = None
    async_scheduling: bool | None = None
    engine: str | None = None
    port: Port | None = None
    args: Args = {}
    env: Env = {}


class BaselineConfig(Strict):
    """One of: a monolithic server, or the cell that has these labels and shares all others."""

    monolithic: MonolithicBaseline | None = None
    cell: dict[str, Any] | None = Field(default=None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, data: Any) -> Any:
        if data == "monolithic":
            return {"monolithic": {}}
        if isinstance(data, dict) and data.get("monolithic", 0) is None:
            return {**data, "monolithic": {}}
        if isinstance(data, str):
            raise problem(f"expected monolithic, none, or `cell:` with labels, got {shown(data)}")
        return data

    @model_validator(mode="after")
    def _one_kind(self) -> BaselineConfig:
        if (self.monolithic is None) == (self.cell is None):
            raise problem("give either `monolithic` or `cell`; several baselines are a list")
        return self


def _as_list(value: Any) -> Any:
    if value is None or value == "none":
        return []
    return value if isinstance(value, list) else [value]


class GatesConfig(Strict):
    max_accuracy_drop: Annotated[float, Field(gt=0, lt=1)] = 0.02
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05


class XfailConfig(Strict):
    reason: str = Field(min_length=1)
    issue: str | None = None


class ExpectConfig(Strict):
    """Cells with these labels are known to fail."""

    match: dict[str, Any] = Field(min_length=1)
    xfail: XfailConfig


class LimitsConfig(Strict):
    """Seconds; rig.planned.Limits says what each bounds."""

    start_s: Seconds = 900
    check_s: Seconds = 180
    hang_s: Seconds = 300
    stop_s: Seconds = 30
    gpu_free_s: Seconds = 60


class AttachedConfig(Strict):
    url: Url
    metrics: Url | None = None
    log: str | None = None


class AttachConfig(Strict):
    """Servers that run already. Without `proxy` the rig starts its own; without `monolithic` none is a baseline."""

    prefill: list[AttachedConfig] = Field(min_length=1)
    decode: list[AttachedConfig] = Field(min_length=1)
    proxy: Url | None = None
    monolithic: AttachedConfig | None = None


class SweepFile(Strict):
    """The whole file. `cell`, `matrix` and `include` are checked once they are put together, cell by cell."""

    name: Name
    models: dict[Name, ModelConfig] = Field(min_length=1)
    engines: dict[Name, EngineConfig] = Field(min_length=1)
    hosts: dict[Name, HostConfig] = {}
    cell: dict[str, Any]
    matrix: dict[str, list[Any]] = {}
    include: list[dict[str, Any]] = []
    exclude: list[dict[str, Any]] = []
    tasks: dict[Name, TaskConfig] = Field(min_length=1)
    baseline: Annotated[list[BaselineConfig], BeforeValidator(_as_list)] = [
        BaselineConfig(monolithic=MonolithicBaseline())
    ]
    gates: GatesConfig = GatesConfig()
    expect: list[ExpectConfig] = []
    limits: LimitsConfig = LimitsConfig()
    launcher: Literal["local", "attach"] = "local"
    attach: AttachConfig | None = None
    reference: list[JsonObject] = []

    @model_validator(mode="after")
    def _attach_both_ways(self) -> SweepFile:
        if (self.launcher == "attach") != (self.attach is not None):
            raise problem("`launcher: attach` and the servers under `attach` belong together; give both or neither")
        return self
