"""How servers get to other machines, by the sweep's launcher. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from rig.config_models import SweepFile
from rig.planned import DeploymentPlan, RemotePlan

_NODE = re.compile(r"\{node(\d+)\}")


def placed(plan: DeploymentPlan, name: Callable[[int], str]) -> DeploymentPlan:
    """The plan with the names of an allocation's nodes for `{node0}`, `{node1}` ..., as `name` gives them."""

    def put(text: str) -> str:
        return _NODE.sub(lambda match: name(int(match[1])), text)

    servers = tuple(
        replace(
            server,
            argv=tuple(map(put, server.argv)),
            env={key: put(value) for key, value in server.env.items()},
            url=put(server.url),
            host=put(server.host) if server.host is not None else None,
            node=put(server.node) if server.node is not None else None,
        )
        for server in plan.servers
    )
    proxy = plan.proxy and replace(plan.proxy, argv=tuple(map(put, plan.proxy.argv)))
    return replace(plan, servers=servers, proxy=proxy)


def remote_plan(sweep: SweepFile) -> RemotePlan:
    """The options of the launcher that the sweep names."""
    if sweep.slurm is not None:
        return RemotePlan(tuple(sweep.slurm.srun), tuple(sweep.slurm.allocate), sweep.slurm.python)
    if sweep.ssh is not None:
        return RemotePlan(tuple(sweep.ssh.options), (), sweep.ssh.python)
    return RemotePlan()


def where_to_start(deployment: DeploymentPlan) -> list[str]:
    """Notes on the servers that a person has to start, as no launcher of the sweep reaches their machines."""
    if deployment.launcher in ("slurm", "ssh"):
        return []
    return [
        f"{deployment.id}: {server.name} must be started on {server.host} ({server.url})"
        for server in deployment.servers
        if server.host is not None
    ]
