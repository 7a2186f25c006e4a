"""GPU memory in use, as nvidia-smi tells it; where there is no nvidia-smi, nothing is known."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence

POLL_S = 1.0
# A driver's own bookkeeping moves by some MiB; an engine holds GiB.
SLACK_MIB = 256


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
