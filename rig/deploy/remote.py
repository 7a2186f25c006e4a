"""Servers on other machines: carried there by a command (srun, ssh) that keeps a pipe open for as long as they live.

The command runs under a guard here; a second guard, sent along as text, runs there and ends the server's whole tree
when the pipe ends or falls silent: with the sweep, with the rig (even by SIGKILL), with the way between them. What the
server says comes back on the same way into its log here.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from rig import provenance_engine, provenance_probe
from rig.deploy import gpu, guard, local, node, ready
from rig.deploy.deployment import Deployment
from rig.deploy.events import OnEvent
from rig.deploy.process import GuardedProcess, exit_text
from rig.deploy.startup import Startup
from rig.errors import PortLost
from rig.planned import DeploymentPlan, Limits, ServerPlan
from rig.provenance import PROBE_TIMEOUT_S

# A machine that heard nothing of the rig for so long ends the server: the rig's own machine may have lost its power.
SILENCE_S = 60.0
# Beyond its grace the guard there needs KILL_WAIT_S; then the command that carried it has to come to its end.
WAY_S = guard.KILL_WAIT_S + 5
MARK = "pdrig-"

# Reads one line and no further: what follows is for the guard.
BOOT = (
    "import json,sys,types;m=json.loads(open(0,'rb',0,closefd=False).readline());"
    "[sys.modules.__setitem__(n,types.ModuleType(n)) for n in m['parents']];"
    "[exec(compile(t,n,'exec'),sys.modules.setdefault(n,types.ModuleType(n)).__dict__) for n,t in m['modules']];"
    "sys.modules[m['modules'][-1][0]].main(m)"
)


class Carrier(Protocol):
    """A way to start a command on another machine. `by` is the program's name."""

    @property
    def by(self) -> str: ...

    def command(self, server: ServerPlan, mark: str) -> tuple[str, ...]:
        """The command here that runs BOOT on the server's machine; `mark` is unique to this start."""

    def environment(self) -> dict[str, str]:
        """That command's own environment."""

    def inherited(self) -> dict[str, str]:
        """Variables of the rig's environment that the server gets beside those of its machine."""

    async def left(self, process: RemoteProcess) -> str | None:
        """Ends what may still run there of a process whose end was not seen; says what cannot be ended."""


def machine(server: ServerPlan) -> str:
    """What Slurm or ssh calls the machine of a server."""
    return server.node or server.host or "this machine"


@cache
def _modules() -> list[tuple[str, str]]:
    """Read once: all servers of a run get the same."""
    sent = (guard, gpu, node)
    return [(module.__name__, Path(str(module.__file__)).read_text(encoding="utf-8")) for module in sent]


def message(**fields: Any) -> bytes:
    """What BOOT reads: modules as text, the last of which is told the rest; by default the guard's, and what to do."""
    return json.dumps({"parents": ["rig", "rig.deploy"], "modules": _modules(), **fields}).encode() + b"\n"


def engine(carrier: Carrier, there: str, words: tuple[str, ...]) -> dict[str, Any]:
    """What is learnt of an engine on the machine `there`, by rig.provenance_engine; empty where nothing is."""
    about = message(
        parents=["rig"],
        modules=[(provenance_engine.__name__, Path(provenance_engine.__file__).read_text(encoding="utf-8"))],
        words=words,
        probe=Path(provenance_probe.__file__).read_text(encoding="utf-8"),
        timeout_s=PROBE_TIMEOUT_S,
    )
    server = ServerPlan("engine", "decode", words, {}, 0, "", "", host=there)
    command = carrier.command(server, f"{MARK}{secrets.token_hex(6)}")
    try:
        done = subprocess.run(
            command, input=about, capture_output=True, timeout=2 * PROBE_TIMEOUT_S, env=carrier.environment()
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return provenance_engine.json_object(done.stdout.decode(errors="replace")) if done.returncode == 0 else {}


class RemoteProcess(GuardedProcess):
    """A server on another machine. `pid` is that of the command here that carries it.

    `step` is Slurm's, `guard_there` the pid and start time of the guard on that machine; None as long as not known.
    """

    def __init__(self, server: ServerPlan, log: Path, limits: Limits, on_event: OnEvent, carrier: Carrier) -> None:
        # GPU memory is waited for there, and the rig waits for that.
        there_s = limits.stop_s + (limits.gpu_free_s if server.gpus else 0)
        super().__init__(server.name, log, there_s + WAY_S, on_event, has_engine=True)
        self.server = server
        self.mark = f"{MARK}{secrets.token_hex(6)}"
        self.step: str | None = None
        self.guard_there: tuple[int, int] | None = None
        self._limits = limits
        self._carrier = carrier
        self._code_there: int | None = None
        self._left_there: list[str] = []
        self._ending_there = False
        self._ended_there = False

    async def carry(self) -> None:
        """Starts the server there; returns when the command that carries it runs."""
        await self.start(self._carrier.command(self.server, self.mark), self._carrier.environment(), relay=True)
        self.send(
            message(
                mark=f"{self.mark}: ",
                argv=list(self.server.argv),
                env=self.server.env,
                inherited=self._carrier.inherited(),
                gpus=list(self.server.gpus),
                ports=[self.server.port, *self.server.side_channel_ports],
                cwd=str(Path.cwd()),
                grace_s=self._limits.stop_s,
                gpu_free_s=self._limits.gpu_free_s,
                silence_s=SILENCE_S,
            )
        )

    async def stop(self) -> tuple[str, ...]:
        """As for any process; what is left on the other machine is named too."""
        here = await super().stop()
        if self.guard_pid is None:
            return here
        self.catch_up()
        there = [f"{self.name}: {left} on {machine(self.server)}" for left in self._left_there]
        if not self._ended_there and (left := await self._carrier.left(self)) is not None:
            there.append(f"{self.name}: {left}")
        return (*here, *there)

    def _read(self) -> list[str]:
        lines = super()._read()
        for line in lines:
            _, found, rest = line.partition(f"{self.mark}: ")
            if found:
                self._note(*rest.strip().partition(" ")[::2])
        return lines

    def _note(self, word: str, rest: str) -> None:
        if word == "at":
            pid, start, step = rest.split()
            self.guard_there = (int(pid), int(start))
            self.step = None if step == "-" else step
        elif word == "ending":
            self._ending_there = True
        elif word == "exit" and not self._ending_there:
            self._code_there = int(rest)
        elif word == "left":
            self._left_there.append(f"pid {rest}")
        elif word == "held":
            self._left_there.append(rest)
        elif word == "ended":
            self._ended_there = True

    def _ending(self, code: int) -> str:
        self.catch_up()
        where = machine(self.server)
        if self._code_there is not None:
            return f"{exit_text(self._code_there)} on {where}"
        if self._ending_there:
            return f"was ended on {where}, and not by this run"
        return f"was lost with {where} ({self._carrier.by} {exit_text(code)})"


async def launch(plan: DeploymentPlan, folder: Path, on_event: OnEvent, carrier: Carrier) -> Deployment:
    """Starts each server on its machine, and the proxy here; errors as for `rig.deploy.launch`."""

    async def start(startup: Startup, server: ServerPlan) -> GuardedProcess:
        if server.host is None:
            return await local.start(startup, server)
        async with ready.client() as http:
            if await ready.health(http, server.url) in ("well", "sick"):
                raise PortLost(
                    f"{server.name}: {server.url} is answered by a server that this run did not start; stop it,"
                    " or plan another port",
                    server.name,
                )
        process = RemoteProcess(server, startup.log(server.name), plan.limits, on_event, carrier)
        await startup.begin(process, process.carry(), f"on {machine(server)}, log: {process.log}")
        return process

    return await local.bring_up(plan, folder, on_event, start)


def without(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    """An environment without these variables and what is the rig's alone."""
    return {name: value for name, value in environ.items() if name not in (*node.RIG_ONLY_ENV, *names)}


def here() -> dict[str, str]:
    """The rig's environment for a command that carries a server: the GPUs of this machine mean nothing there."""
    return without(os.environ, "CUDA_VISIBLE_DEVICES")
