"""The shapes of a plan: what would run, exactly.

A sweep plan holds deployments (processes) and cells (a task asked of a deployment). Cells name their
deployment by id; a cell's baselines name other cells of the same plan by id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rig.records import Gates, Role

RouterKind = Literal["pdrig", "vllm-router", "command", "url"]


@dataclass(frozen=True)
class Limits:
    """Bounds in seconds for one deployment and its evaluation."""

    start_s: float = 900
    check_s: float = 180
    hang_s: float = 300
    stop_s: float = 30
    gpu_free_s: float = 60


@dataclass(frozen=True)
class Keys:
    """Where the sweep file gives a process its program and its ports: `engines.sim.venv`; empty where it does not."""

    program: str = ""
    port: str = ""
    side_channel: str = ""


@dataclass(frozen=True)
class ServerPlan:
    """One `vllm serve` process: `argv` is its exact command, `env` what is set on top of the rig's own.

    `name` is the role and a number (`prefill-0`), `host` the machine it runs on (None: this one) and `node` what Slurm
    or ssh calls that (None: as `host`),
    `url` where requests reach it. `side_channel_ports` are those that NIXL's handshake binds.
    """

    name: str
    role: Role
    argv: tuple[str, ...]
    env: dict[str, str]
    port: int
    url: str
    model: str
    side_channel_ports: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    tp: int = 1
    host: str | None = None
    node: str | None = None
    keys: Keys = Keys()


@dataclass(frozen=True)
class ProxyPlan:
    """The router between the legs; `argv` starts it, with `env` on top of the rig's own, and is empty where one runs.

    Only the rig's own (`pdrig`) names its servers and writes down its legs; of the others nothing is seen but answers.
    `health` is the path that answers 200 once it is up, `metrics_port` a second port that it takes. `written` is the
    command before ports and servers were filled in (rig.routers_command).
    """

    argv: tuple[str, ...]
    port: int
    url: str
    kind: RouterKind = "pdrig"
    env: dict[str, str] = field(default_factory=dict)
    health: str = "/health"
    metrics_port: int | None = None
    written: tuple[str, ...] = ()
    keys: Keys = Keys()

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that it takes on this machine; none where it runs already."""
        if not self.argv:
            return ()
        return (self.port,) if self.metrics_port is None else (self.port, self.metrics_port)


@dataclass(frozen=True)
class AttachedServer:
    """A server that runs already and is not ours to start or stop."""

    name: str
    role: Role
    url: str
    model: str
    metrics_url: str | None = None
    log: str | None = None


@dataclass(frozen=True)
class RemotePlan:
    """How servers get to other machines: options of srun or ssh, of salloc, and the Python that runs there."""

    options: tuple[str, ...] = ()
    allocate: tuple[str, ...] = ()
    python: str = "python3"


@dataclass(frozen=True)
class DeploymentPlan:
    """The processes that a cell needs. `servers` is empty where `attached` is not, and the other way round.

    `kv_transfer` is prefill's `--kv-transfer-config`; empty for a monolithic server.
    """

    id: str
    kind: Literal["pd", "monolithic"]
    launcher: Literal["local", "attach", "slurm", "ssh"]
    model: str
    connector: str | None
    servers: tuple[ServerPlan, ...] = ()
    attached: tuple[AttachedServer, ...] = ()
    proxy: ProxyPlan | None = None
    limits: Limits = field(default_factory=Limits)
    kv_transfer: dict[str, Any] = field(default_factory=dict)
    remote: RemotePlan = RemotePlan()


@dataclass(frozen=True)
class SchedulePlan:
    """When requests start, however long answers take: `rate` a second, evenly or as Poisson arrivals.

    A ramp goes from `rate` to `last` within `seconds`, then stays.
    """

    kind: Literal["rate", "poisson", "ramp"]
    rate: float
    seed: int = 0
    last: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class TaskPlan:
    """What is asked of a deployment and how hard: `concurrency` in flight, or as `schedule` says; the other is None.

    `timeouts` are seconds by the names of evals.client.Timeouts (one that is absent: its default). `pass_` is 0
    where the questions are asked once, else 1 for the first time and so on. `canaries` None leaves their number to
    evals.canaries. `repeats` counts how often all of it is asked.
    `options` are the task's own (evals.tasks.OPTIONS); `file` states a task that has one, `file_sha256` what was in it.
    """

    label: str
    name: str
    limit: int | None
    shots: int | None
    max_tokens: int | None
    concurrency: int | None
    stream: bool
    warmup: int
    params: dict[str, Any] = field(default_factory=dict)
    schedule: SchedulePlan | None = None
    endpoint: Literal["completions", "chat"] = "completions"
    score_reasoning: bool = False
    timeouts: dict[str, float] = field(default_factory=dict)
    retries: int = 0
    pass_: int = 0
    canaries: int | None = None
    divergence: Literal["off", "tokens", "logprobs"] = "off"
    repeats: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    file: str | None = None
    file_sha256: str | None = None


@dataclass(frozen=True)
class Expectation:
    """A cell that is known to fail, with the reason and the issue that follows it."""

    reason: str
    issue: str | None = None


@dataclass(frozen=True)
class CellPlan:
    """One point of the sweep. `baselines` are ids of cells in the same plan; none means no_baseline.

    `fresh` needs servers of which nothing has been asked; `continues` follows its predecessor on the same servers,
    as that one left them, whatever its verdict: both are for passes over the same questions. Others are held against
    an `is_baseline`; `stored` is the folder of stored baselines that the cell is held against. `noise_floor` asks a
    baseline so many times more and holds it against itself; `early_stop` asks in an order of `seed` and ends once the
    verdict is decided, `shuffled` only does the former; `rerun` repeats a red cell on fresh servers, and `rerun_of` is
    set in that repetition.
    """

    id: str
    labels: dict[str, Any]
    kind: Literal["pd", "monolithic"]
    deployment: str
    task: TaskPlan
    gates: Gates
    baselines: tuple[str, ...] = ()
    xfail: Expectation | None = None
    fresh: bool = False
    continues: bool = False
    noise_floor: int = 0
    early_stop: bool = False
    is_baseline: bool = False
    stored: str | None = None
    rerun: bool = False
    rerun_of: str | None = None
    shuffled: bool = False
    seed: int = 0


@dataclass(frozen=True)
class SweepPlan:
    """The whole sweep in the order it runs; `notes` says what a person should know about it.

    `lanes` are ids of deployments that run one after another, beside those of the other lanes; none: there is one.
    """

    name: str
    config_file: str
    deployments: tuple[DeploymentPlan, ...]
    cells: tuple[CellPlan, ...]
    resolved: dict[str, Any]
    reference: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    lanes: tuple[tuple[str, ...], ...] = ()
