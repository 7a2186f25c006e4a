"""GPU memory in use, as nvidia-smi tells it; where there is no nvidia-smi, nothing is known."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence

POLL_S = 1.0
# A driver's own bookkeeping moves by some MiB; an engine holds GiB.
SLACK_MIB = 256
# What a driver holds of an idle GPU stays below this.
IDLE_MIB = 1024
QUERY_TIMEOUT_S = 30


def users(gpus: Sequence[str]) -> dict[str, str]:
    """Who uses which of the GPUs (indices or UUIDs): `pid 4711 (python, 30000 MiB)`; empty where nobody does.

    A process in another container is not listed, but its memory is. Empty where nvidia-smi is missing or fails.
    """
    if not gpus:
        return {}
    memory = _query("gpu", "index,uuid,memory.used")
    names = {uuid: name for index, uuid, _ in memory for name in (index, uuid) if name in gpus}
    found: dict[str, list[str]] = {}
    for uuid, pid, program, mib in _query("compute-apps", "gpu_uuid,pid,process_name,used_memory"):
        if uuid in names:
            found.setdefault(names[uuid], []).append(f"pid {pid} ({program}, {mib} MiB)")
    for _, uuid, mib in memory:
        if uuid in names and names[uuid] not in found and mib.isdigit() and int(mib) > IDLE_MIB:
            found[names[uuid]] = [f"a process that is not listed ({mib} MiB in use)"]
    return {name: "; ".join(who) for name, who in found.items()}


def _query(what: str, fields: str) -> list[list[str]]:
    """Rows of `nvidia-smi --query-WHAT`, each with as many fields as were asked for."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        done = subprocess.run(
            [command, f"--query-{what}={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=QUERY_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == fields.count(",") + 1] if done.returncode == 0 else []


async def used_mib(gpus: Sequence[str]) -> dict[str, int]:
    """MiB in use on each of the GPUs (indices or UUIDs); empty where nvidia-smi is missing or fails."""
    command = shutil.which("nvidia-smi")
    if command is None or not gpus:
        return {}
    process = await asyncio.create_subprocess_exec(
        *(command, "--query-gpu=index,uuid,memory.used", "--format=csv,noheader,nounits"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await process.communicate()
    used: dict[str, int] = {}
    for line in output.decode(errors="replace").splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[2].isdigit():
            used.update({name: int(fields[2]) for name in fields[:2] if name in gpus})
    return used


async def wait_free(before: Mapping[str, int], limit_s: float) -> tuple[str, ...]:
    """Waits until no GPU uses more than before the start; names those that still do after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        now = await used_mib(tuple(before))
        more = {gpu: now[gpu] - before[gpu] for gpu in before if gpu in now and now[gpu] - before[gpu] > SLACK_MIB}
        if not more:
            return ()
        if time.monotonic() >= deadline:
            return tuple(f"GPU {gpu}: {mib} MiB more in use than before the start" for gpu, mib in more.items())
        await asyncio.sleep(POLL_S)
