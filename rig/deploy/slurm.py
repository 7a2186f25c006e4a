"""`launcher: slurm`: each server a step of one allocation, on its own node; the proxy and the questions stay here.

The allocation is the one that the rig was started in: by `salloc`, `sbatch`, or itself (rig.deploy.salloc). Options and
variables: srun(1), scontrol(1) of Slurm 22.05.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rig import plan_hosts
from rig.deploy import local, remote
from rig.deploy.deployment import Deployment
from rig.deploy.events import OnEvent
from rig.errors import DeployError, UsageError
from rig.planned import DeploymentPlan, RemotePlan, ServerPlan

PROGRAMS = ("srun", "scontrol", "squeue", "scancel", "sinfo")
# How long Slurm may take to answer, and to end a step that it was told to end (its own KillWait is 30 s by default).
ANSWER_S = 30.0
CANCEL_S = 45.0
POLL_S = 1.0
# What salloc and sbatch set would else count as options of every srun.
KEPT_ENV = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTERS")


@dataclass(frozen=True)
class Allocation:
    """A job that this process runs in: its id, its nodes by name and in Slurm's order."""

    job: str
    nodes: tuple[str, ...]


def allocation(environ: Mapping[str, str] = os.environ) -> Allocation:
    """The job that the rig was started in. Raises UsageError where there is none, or Slurm's programs are missing."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise UsageError(f"launcher: slurm needs {', '.join(missing)} on PATH; run where Slurm's programs are")
    job, listed = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
    if not job or not listed:
        raise UsageError(
            "no Slurm allocation: start within salloc or sbatch, or give `slurm.allocate` salloc's options"
        )
    done = subprocess.run(
        ["scontrol", "show", "hostnames", listed], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode or not done.stdout.split():
        raise UsageError(f"scontrol show hostnames {listed} failed: {' '.join(done.stderr.split())}")
    return Allocation(job, tuple(done.stdout.split()))


def placed(plan: DeploymentPlan, nodes: Sequence[str]) -> DeploymentPlan:
    """The plan on the allocation's nodes. Raises UsageError where it wants one too many."""

    def name(number: int) -> str:
        if number >= len(nodes):
            raise UsageError(f"{{node{number}}} is wanted, and the allocation has {len(nodes)} nodes; ask for more")
        return nodes[number]

    return plan_hosts.placed(plan, name)


def require_startable(plan: DeploymentPlan) -> None:
    """Raises UsageError, EngineNotFound or PortLost if the plan cannot be started in this allocation."""
    found = allocation()
    for server in placed(plan, found.nodes).servers:
        if server.host is not None and remote.machine(server) not in found.nodes:
            raise UsageError(
                f"{server.name} is planned for {remote.machine(server)}, which is none of the nodes of job {found.job}"
                f" ({', '.join(found.nodes)}); ask for it with --nodelist, or say {{node0}} under `hosts`"
            )
    local.require_here(plan)


@dataclass(frozen=True)
class Srun:
    """Steps of a job. `options` are srun's, after those that are always given."""

    job: str
    python: str
    options: tuple[str, ...]
    by: str = "srun"

    def command(self, server: ServerPlan, mark: str) -> tuple[str, ...]:
        """A step with all of the job's share of the node, side by side with others there, not bound to a core."""
        return (
            *("srun", f"--jobid={self.job}", f"--nodelist={remote.machine(server)}", "--nodes=1", "--ntasks=1"),
            *("--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL", f"--job-name={mark}"),
            *(*self.options, self.python, "-I", "-S", "-c", remote.BOOT),
        )

    def environment(self) -> dict[str, str]:
        """The rig's, which srun exports to the step."""
        return {k: v for k, v in remote.here().items() if not k.startswith("SLURM_") or k in KEPT_ENV}

    def inherited(self) -> dict[str, str]:
        return {}

    async def left(self, process: remote.RemoteProcess) -> str | None:
        """Cancels the process's own step, if Slurm still has it, and waits until it is gone."""
        where = remote.machine(process.server)
        deadline = time.monotonic() + CANCEL_S
        try:
            for step in await self._steps(process.mark):
                await _answer("scancel", step)
            while steps := await self._steps(process.mark):
                # Slurm marks a node that does not answer with an asterisk (sinfo(1), NODE STATE CODES).
                state = (await _answer("sinfo", "--noheader", f"--nodes={where}", "--format=%T")).strip()
                named = f"step {', '.join(steps)}"
                if state.endswith("*") or state.startswith("down"):
                    return f"not known whether {named} ended on {where}, which does not answer Slurm ({state})"
                if time.monotonic() >= deadline:
                    return f"{named} on {where}, which Slurm could not end; scancel it"
                await asyncio.sleep(POLL_S)
        except DeployError as error:
            return f"not known whether it ended on {where}: {error}"
        return None

    async def _steps(self, mark: str) -> list[str]:
        try:
            lines = await _answer("squeue", "--noheader", "--steps", f"--jobs={self.job}", "--format=%i %j")
        except DeployError as error:
            # The job is over, and its steps with it.
            if "Invalid job id" in str(error):
                return []
            raise
        return [step for step, _, name in (line.strip().partition(" ") for line in lines.splitlines()) if name == mark]


async def _answer(*command: str) -> str:
    """What one of Slurm's programs says. Raises DeployError if it fails or takes too long."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(ANSWER_S):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise DeployError(f"{command[0]} did not answer within {ANSWER_S:g} s") from None
    if process.returncode:
        raise DeployError(f"{command[0]}: {' '.join(err.decode(errors='replace').split())}")
    return out.decode(errors="replace")


async def launch(plan: DeploymentPlan, folder: Path, on_event: OnEvent) -> Deployment:
    """Starts the servers as steps; errors as for `rig.deploy.launch`."""
    require_startable(plan)
    return await remote.launch(placed(plan, allocation().nodes), folder, on_event, carrier(plan.remote))


def carrier(plan: RemotePlan) -> Srun:
    """Steps of the allocation that the rig is in. Raises UsageError where there is none."""
    return Srun(allocation().job, plan.python, plan.options)
