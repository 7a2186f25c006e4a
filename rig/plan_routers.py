"""The router between the legs: the rig's own proxy, vllm-router, any command, or one that runs already. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from rig.config import Config
from rig.config_matrix import Cell
from rig.config_routers import RouterConfig
from rig.connectors import adapter, children, through_storage
from rig.machine import Machine
from rig.plan_args import merge_args, merge_env, render_args
from rig.plan_servers import checked_port, local_url
from rig.planned import Keys, ProxyPlan, RouterKind
from rig.routers import PDRIG, VLLM_ROUTER, VLLM_ROUTER_ARGS, VLLM_ROUTER_COMMAND, VLLM_ROUTER_CONNECTORS
from rig.routers_command import filled, filled_once, has, port_of
from rig.yaml_source import dotted


def plan_proxy(
    config: Config, cell: Cell, machine: Machine, prefill: Sequence[str], decode: Sequence[str]
) -> ProxyPlan:
    """The cell's router over these URLs. Raises ConfigError for what another router than the rig's own cannot do."""
    settings = cell.settings
    router = config.sweep.routers.get(settings.router, RouterConfig(kind="pdrig"))
    if router.kind == PDRIG:
        return _planned(config, cell, machine, "pdrig", _own(cell), prefill, decode)
    for key, is_set in (("lenient", settings.proxy.lenient), ("mode", settings.proxy.mode is not None)):
        if is_set:
            problem = f"only the rig's own proxy has it, and the router is {settings.router}; drop it"
            raise config.error(cell.at(("proxy", key)), problem)
    if router.url is not None:
        return ProxyPlan((), port_of(router.url), router.url, kind="url", health=router.health)
    env = merge_env(router.env)
    if router.kind == VLLM_ROUTER:
        command = [_program(VLLM_ROUTER, router), *VLLM_ROUTER_COMMAND, *_vllm_router_args(config, cell, router)]
        made = _planned(config, cell, machine, "vllm-router", command, prefill, decode)
    else:
        assert router.command is not None
        command = [_program(router.command[0], router), *router.command[1:]]
        made = _planned(config, cell, machine, "command", command, prefill, decode)
    named = ("venv",) if router.venv is not None else ("command",) if router.command is not None else ()
    program = dotted(("routers", settings.router, *named))
    return replace(made, env=env, health=router.health, keys=replace(made.keys, program=program))


def relocated(proxy: ProxyPlan, port: int, prefill: Sequence[str], decode: Sequence[str]) -> ProxyPlan:
    """The same router on another port and over other servers; one that runs already stays where it is."""
    if not proxy.written:
        return proxy
    metrics_port = None if proxy.metrics_port is None else port + 1
    values = {"port": str(port), "metrics_port": str(metrics_port)}
    argv = filled(proxy.written, prefill, decode, values)
    return replace(proxy, argv=argv, port=port, url=f"{proxy.url.rpartition(':')[0]}:{port}", metrics_port=metrics_port)


def _planned(
    config: Config,
    cell: Cell,
    machine: Machine,
    kind: RouterKind,
    command: Sequence[str],
    prefill: Sequence[str],
    decode: Sequence[str],
) -> ProxyPlan:
    proxy = cell.settings.proxy
    written = filled_once(command, {"host": proxy.host, "rig_python": machine.rig_python})
    second = has(command, "metrics_port")
    metrics_port = checked_port(config, cell.at(("proxy", "port")), proxy.port + 1) if second else None
    keys = Keys(port=dotted(cell.at(("proxy", "port"))))
    plan = ProxyPlan((), proxy.port, local_url(proxy.host, proxy.port), kind=kind, written=written, keys=keys)
    return relocated(replace(plan, metrics_port=metrics_port), proxy.port, prefill, decode)


def _own(cell: Cell) -> list[str]:
    proxy = cell.settings.proxy
    config = cell.settings.kv_transfer_config.model_dump()
    proving = adapter(cell.settings.kv_transfer_config.kv_connector, children(config))
    mode = proxy.mode or ("push" if proving is not None and proving.transfers_on == "prefill" else "pull")
    command = ["{rig_python}", "-m", "proxy", "--host", "{host}", "--port", "{port}"]
    command += ["--prefill", "{prefill}", "--decode", "{decode}"]
    lenient = proxy.lenient or through_storage(config.get("kv_connector"))
    command += ["--lenient"] if lenient else []
    return [*command, "--mode", mode] if mode != "pull" else command


def _program(name: str, router: RouterConfig) -> str:
    return name if router.venv is None else str(PurePath(router.venv) / "bin" / name)


def _vllm_router_args(config: Config, cell: Cell, router: RouterConfig) -> list[str]:
    args: Mapping[str, Any] = merge_args(dict(VLLM_ROUTER_ARGS), router.args)
    if "kv-connector" not in router.args:
        settings = cell.settings.kv_transfer_config
        inside = children(settings.model_dump())
        names = [name for name in (settings.kv_connector, *inside) if name in VLLM_ROUTER_CONNECTORS]
        if not names:
            connector = " with ".join([settings.kv_connector, *([", ".join(inside)] if inside else [])])
            raise config.error(
                cell.at(("router",)),
                f"vllm-router is not known to hand over with {connector}, only with "
                f"{' and '.join(VLLM_ROUTER_CONNECTORS)}; choose another router, or say routers."
                f"{cell.settings.router}.args.kv-connector",
            )
        args = {"kv-connector": VLLM_ROUTER_CONNECTORS[names[0]], **args}
    return render_args(args)
