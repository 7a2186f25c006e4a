"""How servers get to other machines, by the sweep's launcher. Pure."""

from __future__ import annotations

from rig.config_models import SweepFile
from rig.planned import DeploymentPlan, RemotePlan


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
