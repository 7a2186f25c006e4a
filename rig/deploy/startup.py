"""One attempt to bring a deployment up: what has been started, how far it is, and what a failure means then."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx

from rig.connectors import through_storage
from rig.deploy import ports, ready
from rig.deploy.counted import check_counted
from rig.deploy.deployment import Deployment, Member, Running, describe, stop_all, to_the_end
from rig.deploy.events import Event, OnEvent
from rig.deploy.process import Failure, GuardedProcess
from rig.deploy.record import Record, identity
from rig.deploy.watch import AttachedWatch
from rig.errors import DeployError, NotUsable, PortLost, ServerDied, StartFailed, StartTimeout
from rig.planned import DeploymentPlan, ProxyPlan

PROXY = "proxy"
# An engine that gave no answer is dying: its log says why within this time.
DYING_S = 10.0
LEGS_FILE = "legs.jsonl"

Stage = Literal["starting", "checking", "ready"]
T = TypeVar("T")


class Startup:
    """Members join when they are started; `stage` says for each what a failure would mean."""

    def __init__(self, plan: DeploymentPlan, folder: Path, on_event: OnEvent) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.plan = plan
        self.folder = folder
        self.on_event = on_event
        self.record = Record(plan, folder)
        self.members: list[Member] = []
        self.memory: dict[str, int] = {}
        self.stage: dict[str, Stage] = {}

    def log(self, name: str) -> Path:
        """Where a process of this deployment writes its output."""
        return self.folder / "logs" / f"{name}.log"

    def join(self, member: Member) -> None:
        """From now on the member's failure ends the attempt, and the attempt's end stops the member."""
        self.members.append(member)
        self.stage[member.name] = "starting"

    def say(self, name: str, stage: Stage, text: str = "") -> None:
        """Notes and tells how far a member is."""
        self.stage[name] = stage
        self.on_event(Event(name, stage, text))

    async def guarded(self, name: str, argv: tuple[str, ...], env: dict[str, str], has_engine: bool) -> GuardedProcess:
        """Starts a process under its guard and notes its pids."""
        process = GuardedProcess(name, self.log(name), self.plan.limits.stop_s, self.on_event, has_engine)
        await self.begin(process, process.start(argv, env), f"log: {process.log}")
        return process

    async def begin(self, process: GuardedProcess, start: Coroutine[Any, Any, None], text: str) -> None:
        """Lets a process join, awaits its start and notes its pids."""
        self.join(process)
        self.on_event(Event(process.name, "starting", text))
        await start
        self.record.process(
            process.name,
            log=str(process.log),
            started_unix=process.started_unix,
            ready_unix=None,
            stopped_unix=None,
            guard=identity(process.guard_pid),
            process=identity(process.pid),
        )

    async def until_failed(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, unless a member fails first: then the error that this means at its stage."""
        task = asyncio.ensure_future(work)
        try:
            failures: list[asyncio.Future[Any]] = [member.failed for member in self.members]
            await asyncio.wait([task, *failures], return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled() and isinstance(task.exception(), ready.NoAnswer):
                await asyncio.wait(failures, timeout=DYING_S, return_when=asyncio.FIRST_COMPLETED)
            for member in self.members:
                if member.failed.done():
                    raise self._meaning(member, member.failed.result())
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def bring_up_proxy(self, plan: ProxyPlan) -> None:
        """Starts the router, the rig's own with its legs file, and checks a hand-off for each pair of instances.

        A plan without a command is a router that runs already: it is watched as attached servers are.
        """
        env = self.plan.servers[0].env if self.plan.servers else None
        async with ready.client(env) as http:
            if plan.argv:
                legs = ("--legs", str(self.folder / LEGS_FILE)) if plan.kind == "pdrig" else ()
                process = await self.guarded(PROXY, (*plan.argv, *legs), router_env(plan, env or {}), has_engine=False)
                await self.until_failed(self._proxy_up(http, process, plan))
                self.record.process(PROXY, ready_unix=time.time())
            else:
                await self._healthy_in_time(http, plan)
                watch = AttachedWatch(PROXY, plan.url, path=plan.health, sick_is_over=False)
                self.join(watch)
                watch.start()
            if self.plan.kind == "pd":
                await self._check_pairs(http, plan)
        self.say(PROXY, "ready", plan.url)

    async def launch(self, servers: Callable[[], Awaitable[tuple[Running, ...]]]) -> Deployment:
        """Awaits `servers`, then the proxy; if anything fails, stops what was started and raises."""
        try:
            running = await servers()
            if self.plan.proxy is not None:
                await self.bring_up_proxy(self.plan.proxy)
        except BaseException as error:
            await to_the_end(self._abandon(error))
            raise
        self.record.update(ready_unix=time.time())
        proxy = self.plan.proxy
        legs = self.folder / LEGS_FILE if proxy is not None and proxy.kind == "pdrig" else None
        return Deployment(self.plan, running, self.members, self.memory, self.record, legs, self.on_event)

    async def _proxy_up(self, http: httpx.AsyncClient, process: GuardedProcess, plan: ProxyPlan) -> None:
        await self._healthy_in_time(http, plan)
        refuse_stranger(process, plan.port)

    async def _healthy_in_time(self, http: httpx.AsyncClient, plan: ProxyPlan) -> None:
        limit_s = self.plan.limits.check_s
        try:
            async with asyncio.timeout(limit_s):
                await ready.wait_healthy(http, plan.url, plan.health)
        except TimeoutError:
            raise StartTimeout(
                f"the proxy did not answer at {plan.url}{plan.health} within {limit_s:g} s", PROXY
            ) from None

    async def _check_pairs(self, http: httpx.AsyncClient, plan: ProxyPlan) -> None:
        roles = [server.role for server in self.plan.servers] + [server.role for server in self.plan.attached]
        for member in self.members:
            self.stage[member.name] = "checking"
        self.on_event(Event("pair", "checking", "a hand-off for each pair of instances"))
        prefills, decodes = roles.count("prefill"), roles.count("decode")
        limit_s = self.plan.limits.check_s
        if plan.kind == "pdrig":
            needed = not through_storage(self.plan.connector)
            check = ready.check_pairs(http, plan.url, self.plan.model, prefills, decodes, limit_s, needed)
            await self.until_failed(check)
        else:
            await self.until_failed(check_counted(http, plan.url, self.plan, limit_s))
        for member in self.members:
            self.stage[member.name] = "ready"
        self.on_event(Event("pair", "ready", ""))

    async def _abandon(self, error: BaseException) -> None:
        if isinstance(error, DeployError):
            self.on_event(Event(error.server or PROXY, "failed", str(error)))
        self.record.update(failure=str(error) or type(error).__name__)
        await stop_all(self.plan, self.members, self.memory, self.record, self.on_event)

    def _meaning(self, member: Member, failure: Failure) -> DeployError:
        stage = self.stage[member.name]
        if stage == "ready":
            return ServerDied(describe(member, failure), member.name, failure.line)
        if stage == "checking":
            return NotUsable(describe(member, failure, "at its first requests"), member.name, failure.line)
        error = describe(member, failure, "before it was ready")
        if failure.line and "Address already in use" in failure.line:
            taken = [port for port in self._ports(member.name) if ports.is_bound(port)]
            where = f" (port {', '.join(map(str, taken))})" if taken else ""
            return PortLost(f"{error}{where}", member.name, failure.line)
        return StartFailed(error, member.name, failure.line)

    def _ports(self, name: str) -> tuple[int, ...]:
        if name == PROXY:
            return self.plan.proxy.ports if self.plan.proxy else ()
        return next(
            ((s.port, *s.side_channel_ports) for s in self.plan.servers if s.name == name and s.host is None), ()
        )


def router_env(plan: ProxyPlan, server_env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a router: the rig's own, and what the plan sets.

    vllm-router drops the client's Authorization header and sends engines the key in OPENAI_API_KEY (0.1.17): theirs.
    """
    key = server_env.get("VLLM_API_KEY") or os.environ.get("VLLM_API_KEY")
    theirs = {"OPENAI_API_KEY": key} if plan.kind == "vllm-router" and key else {}
    return {**os.environ, **theirs, **plan.env}


async def side_by_side(work: Sequence[Coroutine[Any, Any, T]]) -> tuple[T, ...]:
    """All results, or the first error as it is, after the others were cancelled."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        return tuple(task.result() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def refuse_stranger(process: GuardedProcess, port: int) -> None:
    """Raises NotUsable if the port is answered by a process that ran before ours was started.

    A container's process is not below ours, but younger than it.
    """
    held = ports.listener(port)
    if held is None or held.pid in {stat.pid for stat in process.tree()}:
        return
    if ports.started_before(held.pid, process.guard_pid):
        raise NotUsable(
            f"{process.name}: port {port} is answered by {ports.describe(held)}, which this run did not start; stop it",
            process.name,
        )
