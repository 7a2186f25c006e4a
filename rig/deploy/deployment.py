"""A deployment that is up: where requests go, what may have died, and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx

from rig.deploy import gpu, ready
from rig.deploy.events import Event, OnEvent
from rig.deploy.process import Failure
from rig.deploy.record import Record
from rig.errors import DeployError, ServerDied
from rig.planned import DeploymentPlan
from rig.records import Role

FLUSH_TIMEOUT_S = 10.0
# A server that gives no answer is asked so often; if its end is not noticed within LOST_S after that, that is enough.
ASKED = 3
LOST_S = 15.0

T = TypeVar("T")


@dataclass(frozen=True)
class Running:
    """A server that is up. `log`, `pid` and the times are None where the server is not ours to know.

    `started_unix` is in seconds; `ready_s` is how long it took until the check after start-up had passed.
    """

    name: str
    role: Role
    url: str
    metrics_url: str
    log: Path | None
    pid: int | None
    started_unix: float | None
    ready_s: float | None


class Member(Protocol):
    """A server or the proxy, as far as its life is concerned. `failed` is done once it is of no more use."""

    @property
    def name(self) -> str: ...
    @property
    def failed(self) -> asyncio.Future[Failure]: ...
    @property
    def log(self) -> Path | None: ...
    async def stop(self) -> tuple[str, ...]:
        """Ends what is ours to end; returns what could not be ended."""


def describe(member: Member, failure: Failure, when: str = "") -> str:
    """`decode-0 ended with exit code 1 before it was ready: OSError: ... (log: PATH)`, one line."""
    parts = f"{member.name} {failure.what}{f' {when}' if when else ''}"
    link = ": " if failure.is_cause else "; its log ends with: "
    line = f"{link}{failure.line}" if failure.line else ""
    log = f" (log: {member.log})" if member.log else ""
    return f"{parts}{line}{log}"


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work` even while the caller is being cancelled; the cancellation follows when it is done."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:
            break
    if cancelled is not None:
        raise cancelled
    return task.result()


async def stop_all(
    plan: DeploymentPlan, members: Sequence[Member], memory: dict[str, int], record: Record, on_event: OnEvent
) -> tuple[str, ...]:
    """Stops all members side by side, then waits for the GPU memory; returns what is left over."""

    async def stop(member: Member) -> tuple[str, ...]:
        on_event(Event(member.name, "stopping", ""))
        left = await member.stop()
        record.process(member.name, stopped_unix=time.time())
        on_event(Event(member.name, "stopped", "; ".join(left)))
        return left

    parts = await asyncio.gather(*(stop(member) for member in members))
    left = tuple(name for part in parts for name in part)
    if memory and (held := await gpu.wait_free(memory, plan.limits.gpu_free_s)):
        on_event(Event("gpu", "failed", "; ".join(held)))
        left += held
    record.update(stopped_unix=time.time(), leftovers=list(left))
    return left


class Deployment:
    """Servers that passed their checks, and their proxy if there is one.

    `url` is where requests go: the proxy's, else the first server's; `headers` what they need beside their own;
    `legs` is the file the proxy writes.
    """

    def __init__(
        self,
        plan: DeploymentPlan,
        servers: tuple[Running, ...],
        members: Sequence[Member],
        memory: dict[str, int],
        record: Record,
        legs: Path | None,
        on_event: OnEvent,
    ) -> None:
        self.plan = plan
        self.servers = servers
        self.url = plan.proxy.url if plan.proxy else servers[0].url
        self.model = plan.model
        self.headers = ready.auth_headers(plan.servers[0].env if plan.servers else None)
        self.legs = legs
        self._members = tuple(members)
        self._memory = memory
        self._record = record
        self._on_event = on_event
        self._end: asyncio.Task[tuple[str, ...]] | None = None

    async def wait_failed(self) -> DeployError:
        """Returns when a server or the proxy is of no more use; waits forever if none fails, also after `stop`."""
        await asyncio.wait([member.failed for member in self._members], return_when=asyncio.FIRST_COMPLETED)
        member = next(member for member in self._members if member.failed.done())
        failure = member.failed.result()
        error = ServerDied(describe(member, failure), member.name, failure.line)
        self._record.process(member.name, failure=str(error))
        self._on_event(Event(member.name, "failed", str(error)))
        return error

    async def lost(self) -> DeployError | None:
        """A server or router that does not answer any more, also before its end was noticed; None if all do.

        Questions fail faster than another machine is known to be lost, and would count as the servers' errors.
        """
        addresses = {server.name: f"{server.url}{ready.HEALTH}" for server in self.servers}
        if self.plan.proxy is not None:
            addresses["proxy"] = f"{self.plan.proxy.url}{self.plan.proxy.health}"
        async with ready.client() as http:
            silent: list[str] = []
            for _ in range(ASKED):
                found = await asyncio.gather(*(ready.health(http, url, "") for url in addresses.values()))
                # A router that takes connections is there, whatever it says of its servers.
                silent = [
                    name
                    for name, health in zip(addresses, found, strict=True)
                    if health == "refused" or (health != "well" and name != "proxy")
                ]
                if not silent:
                    return None
        noticed = asyncio.ensure_future(self.wait_failed())
        try:
            await asyncio.wait([noticed], timeout=LOST_S)
            if noticed.done():
                return noticed.result()
        finally:
            noticed.cancel()
        name = silent[0]
        where = next((s.node or s.host for s in self.plan.servers if s.name == name), None)
        on = f" on {where}" if where else ""
        return ServerDied(f"{name}{on} does not answer any more ({addresses[name]})", name)

    def note(self, **fields: Any) -> None:
        """Writes down what else is known of this launch."""
        self._record.update(**fields)

    async def flush_legs(self) -> None:
        """Returns when the rig's own proxy has written the legs that ended so far; at once if it is not there."""
        if self.plan.proxy is None or self.legs is None:
            return
        with suppress(httpx.HTTPError):
            async with ready.client() as http:
                await http.post(f"{self.plan.proxy.url}/legs/flush", timeout=FLUSH_TIMEOUT_S)

    async def stop(self) -> tuple[str, ...]:
        """Ends all that is ours, within bounds, also while being cancelled; names what is left. Idempotent."""
        if self._end is None:
            self._end = asyncio.create_task(
                stop_all(self.plan, self._members, self._memory, self._record, self._on_event)
            )
        return await to_the_end(_join(self._end))


async def _join(task: asyncio.Task[T]) -> T:
    return await asyncio.shield(task)
