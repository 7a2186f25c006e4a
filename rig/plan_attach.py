"""Deployments of servers that run already. Pure."""

from __future__ import annotations

from dataclasses import replace

from rig.config import Config
from rig.config_matrix import Cell
from rig.config_models import AttachedConfig
from rig.machine import Machine
from rig.plan_routers import plan_proxy
from rig.planned import AttachedServer, DeploymentPlan, ProxyPlan
from rig.records import Role
from rig.routers import PDRIG


def _attached(role: Role, index: int, server: AttachedConfig, model: str) -> AttachedServer:
    return AttachedServer(
        name=f"{role}-{index}",
        role=role,
        url=server.url,
        model=model,
        metrics_url=server.metrics or f"{server.url}/metrics",
        log=server.log,
    )


def attached_pd(config: Config, deployment: DeploymentPlan, cell: Cell, machine: Machine) -> DeploymentPlan:
    """Prefill and decode servers as given; the router is the cell's unless `attach.proxy` says where one runs.

    Raises ConfigError where both name one.
    """
    attach = config.sweep.attach
    assert attach is not None
    servers = [
        *(_attached("prefill", i, s, deployment.model) for i, s in enumerate(attach.prefill)),
        *(_attached("decode", i, s, deployment.model) for i, s in enumerate(attach.decode)),
    ]
    if attach.proxy is not None:
        if cell.settings.router != PDRIG:
            problem = f"the router is {cell.settings.router}, and attach.proxy names one that runs; drop one of the two"
            raise config.error(cell.at(("router",)), problem)
        proxy = ProxyPlan((), cell.settings.proxy.port, attach.proxy, kind="url")
    else:
        proxy = plan_proxy(config, cell, machine, [s.url for s in attach.prefill], [s.url for s in attach.decode])
    return replace(deployment, attached=tuple(servers), proxy=proxy)


def attached_monolithic(server: AttachedConfig, deployment: DeploymentPlan) -> DeploymentPlan:
    return replace(deployment, attached=(_attached("monolithic", 0, server, deployment.model),))
