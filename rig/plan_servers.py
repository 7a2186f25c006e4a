"""Server commands of one deployment, their ports and their GPUs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from rig.config import Config
from rig.config_matrix import Cell
from rig.config_models import EngineConfig, RoleConfig
from rig.machine import Machine
from rig.plan_args import compact_json, flag, merge_args, merge_env, render_args, whole_number
from rig.planned import Keys, ServerPlan
from rig.records import Role
from rig.yaml_source import KeyPath, dotted


@dataclass(frozen=True)
class ServerNeeds:
    """All that decides one server's command. `side_channel` is None without a KV connector.

    `port_key` is where its port is written, None where that is the port of its side in the cell.
    """

    role: Role
    engine: str
    model: str
    tp: int
    async_scheduling: bool
    args: dict[str, Any]
    env: dict[str, str]
    port: int
    listen: str | None
    host: str | None
    kv_transfer_config: dict[str, Any] | None = None
    side_channel: int | None = None
    side_channel_host: str | None = None
    port_key: KeyPath | None = None


@dataclass(frozen=True)
class Draft:
    """A planned server before its GPUs are chosen, and where in the file its numbers were written."""

    server: ServerPlan
    gpus_needed: int
    port_key: KeyPath
    side_channel_key: KeyPath
    tp_key: KeyPath


def role_needs(cell: Cell, role: Role, config: Config) -> ServerNeeds:
    """What the cell says about prefill or decode, with `both` and the engine underneath."""
    settings, both = cell.settings, cell.settings.both
    part: RoleConfig = settings.prefill if role == "prefill" else settings.decode
    return ServerNeeds(
        role=role,
        engine=settings.engine,
        model=settings.model,
        tp=part.tp,
        async_scheduling=settings.async_scheduling,
        args=merge_args(both.args, part.args),
        env=merge_env(config.sweep.engines[settings.engine].env, both.env, part.env),
        port=part.port,
        listen=part.listen or both.listen,
        host=part.host or both.host,
        kv_transfer_config={**settings.kv_transfer_config.model_dump(), **part.kv_transfer_config},
        side_channel=part.side_channel_port,
        side_channel_host=part.side_channel_host or both.side_channel_host,
    )


def engine_argv(engine: EngineConfig, machine: Machine) -> list[str]:
    if engine.venv is not None:
        return [str(PurePath(engine.venv) / "bin" / "vllm"), "serve"]
    return [word.replace("{rig_python}", machine.rig_python) for word in engine.command or []]


def local_url(address: str, port: int) -> str:
    """Where a server that listens on `address` of this machine is reached."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def draft_server(config: Config, cell: Cell, machine: Machine, needs: ServerNeeds, index: int, spread: bool) -> Draft:
    """One server. `spread` says that the deployment has servers on other hosts, which must reach this one.

    Side channels by engine build: in vLLM 0.32 each data-parallel rank binds base + its index (`rank`), older
    builds used base + dp_rank x tp_size (`rank_x_tp`); whole ranges are planned. Raises ConfigError.
    """
    engine, model = config.sweep.engines[needs.engine], config.sweep.models[needs.model]
    section = "decode" if needs.role == "monolithic" else needs.role
    keys: list[KeyPath] = [cell.at((section, name)) for name in ("port", "side_channel_port", "tp", "listen")]
    cell_port_key, side_key, tp_key, listen_key = keys
    port_key = needs.port_key or cell_port_key
    try:
        dp = whole_number(needs.args, "data-parallel-size")
        local_dp = whole_number(needs.args, "data-parallel-size-local", "data-parallel-size")
        stages = whole_number(needs.args, "pipeline-parallel-size")
        context = whole_number(needs.args, "prefill-context-parallel-size")
    except ValueError as error:
        name, _, rest = str(error).partition(": ")
        raise config.error(cell.at((section, "args", name)), rest) from None
    there = None if needs.host is None else config.sweep.hosts[needs.host]
    host = None if there is None else there.address
    here = host or machine.hostname
    listen = (needs.listen or ("127.0.0.1" if host is None else "0.0.0.0")).replace("{hostname}", here)
    if host is not None and listen in ("127.0.0.1", "localhost", "::1"):
        raise config.error(listen_key, f"{listen} is not reached from other hosts; listen on 0.0.0.0 or {{hostname}}")
    port = checked_port(config, port_key, needs.port + index)
    served = model.served_name or needs.model
    argv = [
        *engine_argv(engine, machine),
        model.path or model.id or "",
        *("--served-model-name", served),
        *("--host", listen, "--port", str(port)),
        *("-tp", str(needs.tp)),
        *render_args(needs.args),
        flag("async-scheduling", needs.async_scheduling),
    ]
    env = dict(needs.env)
    side_ports: tuple[int, ...] = ()
    if needs.kv_transfer_config is not None:
        argv += ["--kv-transfer-config", compact_json(needs.kv_transfer_config)]
    if needs.side_channel is not None:
        width = dp if engine.side_channel == "rank" else dp * needs.tp
        first = checked_port(config, side_key, needs.side_channel + index * width)
        side_ports = tuple(range(first, checked_port(config, side_key, first + width - 1) + 1))
        default = here if spread else "127.0.0.1"
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = (needs.side_channel_host or default).replace("{hostname}", here)
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(first)
    program: KeyPath = ("engines", needs.engine, "command" if engine.venv is None else "venv")
    server = ServerPlan(
        name=f"{needs.role}-{index}",
        role=needs.role,
        argv=tuple(argv),
        env=env,
        port=port,
        url=f"http://{host}:{port}" if host is not None else local_url(listen, port),
        model=served,
        side_channel_ports=side_ports,
        tp=needs.tp,
        host=host,
        node=None if there is None else there.node,
        keys=Keys(dotted(program), dotted(port_key), dotted(side_key) if side_ports else ""),
    )
    ranks = needs.tp * stages * local_dp * context
    return Draft(server, ranks if engine.device == "gpu" else 0, port_key, side_key, tp_key)


def checked_port(config: Config, key: KeyPath, port: int) -> int:
    """The port. Raises ConfigError naming the key where there is none so high."""
    if port > 65535:
        raise config.error(key, f"port {port} is needed and 65535 is the highest; choose a lower one")
    return port


def draft_pd(config: Config, cell: Cell, machine: Machine) -> list[Draft]:
    """The prefill servers, then the decode servers; `check_ports` says whether they and a router can be together."""
    settings = cell.settings
    needs = {role: role_needs(cell, role, config) for role in ("prefill", "decode")}
    spread = any(n.host is not None for n in needs.values())
    return [
        draft_server(config, cell, machine, needs[role], i, spread)
        for role, count in (("prefill", settings.prefill.instances), ("decode", settings.decode.instances))
        for i in range(count)
    ]


def draft_alone(config: Config, cell: Cell, machine: Machine) -> Draft:
    """Decode's server with its connector, which does both halves: nothing is handed over, so it has no side channel."""
    needs = replace(role_needs(cell, "decode", config), role="monolithic", side_channel=None)
    return draft_server(config, cell, machine, needs, 0, spread=False)


def check_ports(config: Config, drafts: Sequence[Draft], proxy_key: KeyPath, proxy_ports: Sequence[int]) -> None:
    """Raises ConfigError naming both keys when two ports of one host are the same."""
    names = ("the proxy", "the proxy's metrics")[: len(proxy_ports)]
    taken: dict[tuple[str | None, int], tuple[str, KeyPath]] = {
        (None, port): (name, proxy_key) for port, name in zip(proxy_ports, names, strict=True)
    }
    for draft in drafts:
        server = draft.server
        wanted = [(server.port, server.name, draft.port_key)]
        wanted += [(p, f"{server.name}'s side channel", draft.side_channel_key) for p in server.side_channel_ports]
        for port, who, key in wanted:
            if (server.host, port) in taken:
                other, other_key = taken[server.host, port]
                raise config.error(
                    key, f"port {port} of {who} is also that of {other} ({dotted(other_key)}); move one of the two"
                )
            taken[server.host, port] = (who, key)


def assign_gpus(config: Config, drafts: Sequence[Draft], gpus: tuple[str, ...], most: int) -> tuple[ServerPlan, ...]:
    """The servers with their GPUs, in order and without overlap. `gpus` are this machine's ids.

    `most` is what the largest deployment of the plan needs here, for the advice.

    Raises ConfigError when there are too few, with what to do.
    """
    pools: dict[str | None, list[str]] = {None: list(gpus)}
    for host in config.sweep.hosts.values():
        pools[host.address] = [str(i) for i in range(host.gpus)]
    for host_name in dict.fromkeys(d.server.host for d in drafts):
        there = [d for d in drafts if d.server.host == host_name]
        needed, have = sum(d.gpus_needed for d in there), len(pools[host_name])
        if needed > have:
            raise config.error(there[-1].tp_key, _too_few(there, needed, have, host_name, most))
    servers = []
    for draft in drafts:
        pool = pools[draft.server.host]
        ids, pools[draft.server.host] = tuple(pool[: draft.gpus_needed]), pool[draft.gpus_needed :]
        env = {**draft.server.env, "CUDA_VISIBLE_DEVICES": ",".join(ids)} if ids else draft.server.env
        servers.append(replace(draft.server, gpus=ids, env=env))
    return tuple(servers)


def _too_few(drafts: Sequence[Draft], needed: int, have: int, host: str | None, most: int) -> str:
    parts = " + ".join(f"{d.server.name} {d.gpus_needed}" for d in drafts)
    if host is not None:
        return f"{needed} GPUs needed on {host} ({parts}), {have} there by `hosts`; raise its `gpus` or lower `tp`"
    have_text = f"{have} here" if have else "none here"
    return f"{needed} GPUs needed ({parts}), {have_text}; pick cells that fit with --cell, or plan with --gpus {most}"
