"""`launcher: ssh`: servers on plain hosts, each at the end of its own ssh connection and gone with it.

Options: ssh_config(5) of OpenSSH 9.2. Keys, users and jump hosts belong into the user's own configuration of ssh, or
into `ssh.options`; no password is ever asked for.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from rig.deploy import guard, local, remote
from rig.deploy.deployment import Deployment
from rig.deploy.events import OnEvent
from rig.errors import UsageError
from rig.planned import DeploymentPlan, RemotePlan, ServerPlan
from rig.provenance import RECORDED_PREFIXES

# A host that is silent for ALIVE_S x ALIVE_COUNT seconds is lost; no shared connection, which would outlive its user.
CONNECT_S = 20
ALIVE_S = 10
ALIVE_COUNT = 6
OPTIONS = (
    *("-T", "-e", "none", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"),
    *("-o", f"ServerAliveInterval={ALIVE_S}", "-o", f"ServerAliveCountMax={ALIVE_COUNT}"),
    *("-o", "ControlMaster=no", "-o", "ControlPath=none", "-o", "LogLevel=ERROR"),
)


def require_startable(plan: DeploymentPlan) -> None:
    """Raises UsageError, EngineNotFound or PortLost if the plan cannot be started from here."""
    if shutil.which("ssh") is None:
        raise UsageError("launcher: ssh needs ssh on PATH; install an OpenSSH client")
    local.require_here(plan)


@dataclass(frozen=True)
class Ssh:
    """Connections to plain hosts. `options` are ssh's, and come before those that are always given."""

    python: str
    options: tuple[str, ...]
    limit_s: float
    by: str = "ssh"

    def command(self, server: ServerPlan, mark: str) -> tuple[str, ...]:
        """The login shell there is replaced by the guard, which is told the rest by its input: no secret in `ps`."""
        there = f"exec {shlex.join((self.python, '-I', '-S', '-c', remote.BOOT))}"
        return ("ssh", *self.options, *OPTIONS, remote.machine(server), there)

    def environment(self) -> dict[str, str]:
        return remote.here()

    def inherited(self) -> dict[str, str]:
        """What can change what a server does; the rest is as the host has it."""
        return {k: v for k, v in remote.here().items() if k.startswith(RECORDED_PREFIXES)}

    async def left(self, process: remote.RemoteProcess) -> str | None:
        """Waits, over a new connection, for the guard there, which ends its tree when its connection is lost."""
        if process.guard_there is None:
            return None
        pid, start = process.guard_there
        there = await asyncio.create_subprocess_exec(
            *self.command(process.server, process.mark),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=self.environment(),
        )
        said = b""
        try:
            look = remote.message(look={"pid": pid, "start": start, "limit_s": self.limit_s})
            async with asyncio.timeout(self.limit_s + CONNECT_S + ALIVE_S):
                said, _ = await there.communicate(look)
        except TimeoutError:
            there.kill()
            await there.wait()
        if said.strip() == b"gone":
            return None
        where = remote.machine(process.server)
        if said.strip() == b"lives":
            return f"pid {pid} (guard) on {where}, which was told to end and has not"
        return f"not known whether pid {pid} (guard) ended on {where}, which cannot be reached"


async def launch(plan: DeploymentPlan, folder: Path, on_event: OnEvent) -> Deployment:
    """Starts the servers over ssh; errors as for `rig.deploy.launch`."""
    require_startable(plan)
    limit_s = remote.SILENCE_S + plan.limits.stop_s + guard.KILL_WAIT_S
    return await remote.launch(plan, folder, on_event, carrier(plan.remote, limit_s))


def carrier(plan: RemotePlan, limit_s: float = remote.SILENCE_S) -> Ssh:
    """Connections as the sweep file asks for them; a host may take `limit_s` seconds to end a server."""
    return Ssh(plan.python, plan.options, limit_s)
