"""`launcher: local`: the plan's servers as processes of this machine, side by side."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from rig.deploy import gpu, ports, ready
from rig.deploy.deployment import Deployment, Running
from rig.deploy.events import OnEvent
from rig.deploy.node import server_env
from rig.deploy.process import GuardedProcess
from rig.deploy.startup import PROXY, Startup, refuse_stranger, side_by_side
from rig.errors import EngineNotFound, NotUsable, StartTimeout, UsageError
from rig.planned import DeploymentPlan, ServerPlan


def require_command(name: str, argv: Sequence[str], env: Mapping[str, str], key: str, what: str = "engine") -> None:
    """Raises EngineNotFound if the command is not there, or may not be executed."""
    if shutil.which(argv[0], path=env.get("PATH", os.defpath)) is not None:
        return
    present = os.sep in argv[0] and Path(argv[0]).is_file()
    problem = "is not executable" if present else "was not found"
    advice = f"install it, or name another {what} in the config"
    raise EngineNotFound(f"{name}: the command {argv[0]} {problem}; {advice}", key)


def require_startable(plan: DeploymentPlan) -> None:
    """Raises UsageError, EngineNotFound or PortLost if the plan cannot be started here and now."""
    for server in plan.servers:
        if server.host is not None:
            raise UsageError(
                f"{server.name} is planned for {server.host}: use launcher: slurm or ssh, or start it there and use"
                " launcher: attach"
            )
    require_here(plan)


def require_here(plan: DeploymentPlan) -> None:
    """Raises EngineNotFound or PortLost if what the plan has for this machine cannot be started now."""
    for server in plan.servers:
        if server.host is not None:
            continue
        keys = server.keys
        require_command(server.name, server.argv, server_env(server.argv, server.env, os.environ), keys.program)
        ports.require_free(server.port, server.name, keys.port)
        for port in server.side_channel_ports:
            ports.require_free(port, server.name, keys.side_channel)
    if plan.proxy is not None and plan.proxy.argv:
        keys = plan.proxy.keys
        require_command(PROXY, plan.proxy.argv, {**os.environ, **plan.proxy.env}, keys.program, "router")
        for port in plan.proxy.ports:
            ports.require_free(port, PROXY, keys.port)


async def launch(plan: DeploymentPlan, folder: Path, on_event: OnEvent) -> Deployment:
    """Starts a local deployment; errors as for `rig.deploy.launch`."""
    require_startable(plan)
    return await bring_up(plan, folder, on_event, start)


async def start(startup: Startup, server: ServerPlan) -> GuardedProcess:
    """Starts one server as a process of this machine."""
    return await startup.guarded(
        server.name, server.argv, server_env(server.argv, server.env, os.environ), has_engine=True
    )


async def bring_up(
    plan: DeploymentPlan,
    folder: Path,
    on_event: OnEvent,
    start: Callable[[Startup, ServerPlan], Awaitable[GuardedProcess]],
) -> Deployment:
    """Starts each server by `start`, waits for them side by side, then the proxy; errors as for `rig.deploy.launch`."""
    startup = Startup(plan, folder, on_event)

    async def servers() -> tuple[Running, ...]:
        startup.memory = await gpu.used_mib([i for server in plan.servers if server.host is None for i in server.gpus])
        processes = [await start(startup, server) for server in plan.servers]
        work = [_up(startup, server, process) for server, process in zip(plan.servers, processes, strict=True)]
        return await startup.until_failed(side_by_side(work))

    return await startup.launch(servers)


async def _up(startup: Startup, plan: ServerPlan, process: GuardedProcess) -> Running:
    """Waits for one server and checks it. Raises StartTimeout, NotUsable."""
    limits = startup.plan.limits
    metrics_url = f"{plan.url}/metrics"
    async with ready.client(plan.env) as http:
        try:
            async with asyncio.timeout(limits.start_s):
                await ready.wait_healthy(http, plan.url)
        except TimeoutError:
            last = f"; its log ends with: {line}" if (line := process.last_line()) else ""
            raise StartTimeout(
                f"{plan.name} was not ready within {limits.start_s:g} s (limits.start_s){last} (log: {process.log})",
                plan.name,
                line,
            ) from None
        process.catch_up()
        if plan.host is None:
            refuse_stranger(process, plan.port)
        startup.say(plan.name, "checking", "a completion, its tokens and logprobs")
        try:
            async with asyncio.timeout(limits.check_s):
                await ready.check_server(http, plan.name, plan.url, plan.model)
                await ready.check_metrics(http, plan.name, metrics_url)
        except TimeoutError:
            raise NotUsable(
                f"{plan.name} is healthy, but a completion took more than {limits.check_s:g} s (limits.check_s)"
                f" (log: {process.log})",
                plan.name,
                process.last_line(),
            ) from None
    ready_s = time.time() - process.started_unix
    startup.record.process(plan.name, ready_unix=process.started_unix + ready_s)
    startup.record.tree(plan.name, process.tree())
    startup.say(plan.name, "ready", f"after {ready_s:.0f} s")
    return Running(plan.name, plan.role, plan.url, metrics_url, process.log, process.pid, process.started_unix, ready_s)
