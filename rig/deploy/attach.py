"""`launcher: attach`: servers that somebody else runs (Slurm, Kubernetes, containers). Only the proxy is ours."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rig.deploy import ready
from rig.deploy.deployment import Deployment, Running
from rig.deploy.events import OnEvent
from rig.deploy.local import require_startable
from rig.deploy.startup import Startup, side_by_side
from rig.deploy.watch import AttachedWatch
from rig.errors import NotUsable, StartFailed
from rig.planned import AttachedServer, DeploymentPlan


async def launch(plan: DeploymentPlan, folder: Path, on_event: OnEvent) -> Deployment:
    """Attaches to running servers; errors as for `rig.deploy.launch`."""
    require_startable(plan)
    startup = Startup(plan, folder, on_event)

    async def servers() -> tuple[Running, ...]:
        return await side_by_side([_attach(startup, server) for server in plan.attached])

    return await startup.launch(servers)


async def _attach(startup: Startup, plan: AttachedServer) -> Running:
    """Checks that a server answers usefully. Raises StartFailed, NotUsable."""
    limit_s = startup.plan.limits.check_s
    watch = AttachedWatch(plan.name, plan.url, plan.log)
    startup.join(watch)
    metrics_url = plan.metrics_url or f"{plan.url}/metrics"
    async with ready.client() as http:
        if await ready.health(http, plan.url) != "well":
            raise StartFailed(f"{plan.name}: no healthy server at {plan.url}; start it, or mend its url", plan.name)
        startup.say(plan.name, "checking", plan.url)
        try:
            async with asyncio.timeout(limit_s):
                await ready.check_server(http, plan.name, plan.url, plan.model)
                await ready.check_metrics(http, plan.name, metrics_url)
        except TimeoutError:
            raise NotUsable(
                f"{plan.name} is healthy, but a completion took more than {limit_s:g} s (limits.check_s)", plan.name
            ) from None
    watch.start()
    missing = watch.log is not None and not watch.log.is_file()
    startup.say(plan.name, "ready", f"{plan.url}, but there is no log at {plan.log}" if missing else plan.url)
    return Running(plan.name, plan.role, plan.url, metrics_url, watch.log, None, None, None)
