"""The keys of a sweep file as typed models. What each means for a user is in docs/config.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rig.config_errors import shown
from rig.config_routers import RouterConfig
from rig.config_tasks import ScheduleConfig, TaskConfig, require_one_load
from rig.config_types import (
    Address,
    Args,
    Count,
    Env,
    HubName,
    InFlight,
    JsonObject,
    ModelName,
    Name,
    Port,
    Ranks,
    Seconds,
    Strict,
    Url,
    json_value,
    problem,
)
from rig.machine import MOST_GPUS
from rig.routers import PDRIG

Mode = Literal["pull", "push"]
SideChannelRule = Literal["rank", "rank_x_tp"]
Family = Literal["attention", "sliding", "mla", "hybrid"]


class ModelConfig(Strict):
    """A local folder (`path`) or a hub id (`id`), and the name that requests use.

    `family` and `kv_heads` are for the planner's rules, where no config.json is at hand.
    """

    path: Annotated[str, Field(min_length=1)] | None = None
    id: HubName | None = None
    served_name: ModelName | None = None
    family: Family | None = None
    kv_heads: Count | None = None

    @model_validator(mode="after")
    def _one_source(self) -> ModelConfig:
        if (self.path is None) == (self.id is None):
            raise problem("give either `path`, a local folder, or `id`, a name on the hub")
        return self


class EngineConfig(Strict):
    """A build of the engine: an environment that holds `bin/vllm`, or the command up to the model's name."""

    venv: Annotated[str, Field(min_length=1)] | None = None
    command: list[Annotated[str, Field(min_length=1)]] | None = Field(default=None, min_length=1)
    device: Literal["gpu", "cpu"] = "gpu"
    side_channel: SideChannelRule = "rank"
    version: str | None = Field(default=None, min_length=1)
    env: Env = {}

    @model_validator(mode="after")
    def _one_source(self) -> EngineConfig:
        if (self.venv is None) == (self.command is None):
            raise problem("give either `venv`, an environment with bin/vllm, or `command`, such as [vllm, serve]")
        return self


class HostConfig(Strict):
    """Another machine: the address where its servers are reached, and how many GPUs it has.

    `node` is what Slurm or ssh calls it (None: as `address`). `{node0}` is the first node of a Slurm allocation.
    """

    address: Address
    node: str | None = Field(default=None, min_length=1)
    gpus: Annotated[int, Field(ge=0, le=MOST_GPUS)] = 0


class BothConfig(Strict):
    """What prefill and decode share unless one of them says otherwise.

    `{hostname}` in `listen` and `side_channel_host` is the name of the machine that the server runs on.
    """

    listen: Address | None = None
    side_channel_host: Address | None = None
    host: str | None = None
    args: Args = {}
    env: Env = {}


class RoleConfig(Strict):
    """One side of the hand-off. Instance i listens on `port` + i."""

    tp: Ranks = 1
    instances: Ranks = 1
    port: Port
    side_channel_port: Port
    listen: Address | None = None
    side_channel_host: Address | None = None
    host: str | None = None
    args: Args = {}
    env: Env = {}
    kv_transfer_config: JsonObject = {}


class PrefillConfig(RoleConfig):
    """Without an instance, decode's one server does both halves, with the connector: KV goes to a storage and back."""

    instances: Annotated[int, Field(ge=0, le=MOST_GPUS)] = 1
    port: Port = 8100
    side_channel_port: Port = 5600


class DecodeConfig(RoleConfig):
    port: Port = 8200
    side_channel_port: Port = 5700


class ProxyConfig(Strict):
    """Where the router listens, and what the rig's own does. `mode` None follows the connector: push or pull."""

    host: Address = "127.0.0.1"
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
        return json_value(data)


class CellConfig(Strict):
    """One point of the sweep, complete. Without `concurrency` and `schedule` the task's load holds.

    `router` is a name under `routers`; the rig's own proxy needs no entry there.
    """

    model: str
    engine: str
    async_scheduling: bool = True
    kv_transfer_config: KvTransferConfig
    both: BothConfig = BothConfig()
    prefill: PrefillConfig = PrefillConfig()
    decode: DecodeConfig = DecodeConfig()
    proxy: ProxyConfig = ProxyConfig()
    router: str = PDRIG
    task: str
    concurrency: InFlight | None = None
    schedule: ScheduleConfig | None = None

    @model_validator(mode="after")
    def _one_load(self) -> CellConfig:
        require_one_load(self.concurrency, self.schedule)
        if not self.prefill.instances and self.decode.instances != 1:
            raise problem("without a prefill server there is one server in all; set decode.instances to 1")
        return self


STORED = "results/baselines"
"""Where stored baselines are, from the directory that pdrig runs in."""


class MonolithicBaseline(Strict):
    """One server of the same engine with decode's TP, options and async setting, unless said otherwise here."""

    tp: Ranks | None = None
    async_scheduling: bool | None = None
    engine: str | None = None
    port: Port | None = None
    args: Args = {}
    env: Env = {}


class BaselineConfig(Strict):
    """One of: a monolithic server, the cell that has these labels and shares all others, or a folder of stored ones."""

    monolithic: MonolithicBaseline | None = None
    cell: dict[str, Any] | None = Field(default=None, min_length=1)
    stored: str | None = Field(default=None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, data: Any) -> Any:
        if data == "monolithic":
            return {"monolithic": {}}
        if data == "stored":
            return {"stored": STORED}
        if isinstance(data, dict) and data.get("monolithic", 0) is None:
            return {**data, "monolithic": {}}
        if data == "none":
            raise problem("`none` stands alone; drop it or the others")
        if isinstance(data, str):
            raise problem(f"expected monolithic, stored, none, or `cell:` with labels, got {shown(data)}")
        return data

    @model_validator(mode="after")
    def _one_kind(self) -> BaselineConfig:
        if sum(kind is not None for kind in (self.monolithic, self.cell, self.stored)) != 1:
            raise problem("give one of `monolithic`, `cell` and `stored`; several baselines are a list")
        return self


def _as_list(value: Any) -> Any:
    if value is None or value == "none":
        return []
    return value if isinstance(value, list) else [value]


def _one_folder(baselines: list[BaselineConfig]) -> list[BaselineConfig]:
    if sum(one.stored is not None for one in baselines) > 1:
        raise problem("one folder of stored baselines is read; keep one")
    return baselines


def _rounds(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


class GatesConfig(Strict):
    """rig.records.Gates says what each means."""

    max_accuracy_drop: Annotated[float, Field(gt=0, lt=1)] = 0.02
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    max_ttft_ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    max_tpot_ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    max_e2e_ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    min_throughput_ratio: Annotated[float, Field(gt=0, lt=1)] | None = None


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


class SlurmConfig(Strict):
    """`srun` and `allocate` (salloc's) are further options; without `allocate` the rig is started in an allocation."""

    allocate: list[str] = []
    srun: list[str] = []
    python: str = Field(default="python3", min_length=1)


class SshConfig(Strict):
    options: list[str] = []
    python: str = Field(default="python3", min_length=1)


class SweepFile(Strict):
    """The whole file. `cell`, `matrix` and `include` are checked once they are put together, cell by cell.

    `noise_floor` asks each baseline so many times more in another order and holds it against itself; `early_stop` ends
    a cell as soon as its verdict is decided; `rerun` repeats a red cell on fresh servers; `seed` is of every order.
    """

    name: Name
    models: dict[Name, ModelConfig] = Field(min_length=1)
    engines: dict[Name, EngineConfig] = Field(min_length=1)
    hosts: dict[Name, HostConfig] = {}
    routers: dict[Name, RouterConfig] = {}
    cell: dict[str, Any]
    matrix: dict[str, list[Any]] = {}
    include: list[dict[str, Any]] = []
    exclude: list[dict[str, Any]] = []
    tasks: dict[Name, TaskConfig] = Field(min_length=1)
    baseline: Annotated[list[BaselineConfig], BeforeValidator(_as_list), AfterValidator(_one_folder)] = [
        BaselineConfig(monolithic=MonolithicBaseline())
    ]
    gates: GatesConfig = GatesConfig()
    noise_floor: Annotated[int, BeforeValidator(_rounds), Field(ge=0, le=100)] = 0
    early_stop: bool = False
    rerun: bool = True
    seed: Annotated[int, Field(ge=0)] = 0
    expect: list[ExpectConfig] = []
    limits: LimitsConfig = LimitsConfig()
    launcher: Literal["local", "attach", "slurm", "ssh"] = "local"
    attach: AttachConfig | None = None
    slurm: SlurmConfig | None = None
    ssh: SshConfig | None = None
    reference: list[JsonObject] = []

    @model_validator(mode="after")
    def _own_router(self) -> SweepFile:
        if PDRIG in self.routers and self.routers[PDRIG].kind != PDRIG:
            raise problem(f"`routers.{PDRIG}` is the rig's own proxy; give the other router another name")
        return self

    @model_validator(mode="after")
    def _attach_both_ways(self) -> SweepFile:
        if (self.launcher == "attach") != (self.attach is not None):
            raise problem("`launcher: attach` and the servers under `attach` belong together; give both or neither")
        for name in ("slurm", "ssh"):
            if getattr(self, name) is not None and self.launcher != name:
                raise problem(f"`{name}` is for `launcher: {name}`; set that, or drop `{name}`")
        for name, host in self.hosts.items():
            if "{node" in host.address and self.launcher != "slurm":
                raise problem(f"hosts.{name}: {host.address} is a node of a Slurm allocation; set `launcher: slurm`")
        return self
