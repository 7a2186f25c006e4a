"""Deployments of servers that run already. Pure."""

from __future__ import annotations

from dataclasses import replace

from rig.config_matrix import Cell
from rig.config_models import AttachConfig, AttachedConfig
from rig.machine import Machine
from rig.plan_servers import plan_proxy
from rig.planned import AttachedServer, DeploymentPlan, ProxyPlan
from rig.records import Role


def _attached(role: Role, index: int, server: AttachedConfig, model: str) -> AttachedServer:
    return AttachedServer(
        name=f"{role}-{index}",
        role=role,
        url=server.url,
        model=model,
        metrics_url=server.metrics or f"{server.url}/metrics",
        log=server.log,
    )


def attached_pd(attach: AttachConfig, deployment: DeploymentPlan, cell: Cell, machine: Machine) -> DeploymentPlan:
    """Prefill and decode servers as given; the proxy is the rig's own unless one runs already (empty argv)."""
    servers = [
        *(_attached("prefill", i, s, deployment.model) for i, s in enumerate(attach.prefill)),
        *(_attached("decode", i, s, deployment.model) for i, s in enumerate(attach.decode)),
    ]
    if attach.proxy is not None:
        proxy = ProxyPlan((), cell.settings.proxy.port, attach.proxy)
    else:
        proxy = plan_proxy(cell, machine, [s.url for s in attach.prefill], [s.url for s in attach.decode])
    return replace(deployment, attached=tuple(servers), proxy=proxy)


def attached_monolithic(server: AttachedConfig, deployment: DeploymentPlan) -> DeploymentPlan:
    return replace(deployment, attached=(_attached("monolithic", 0, server, deployment.model),))
