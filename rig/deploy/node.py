"""The end of a carried server on its own machine: what `rig.deploy.remote` sends there as text, with the guard.

Standard library alone, Python 3.9 and newer: nothing of the rig needs to be installed there. A message of one line
of JSON comes on standard input, before the signs of life; everything that is said goes to standard output, which is
the server's log. Lines of the guard's own begin with a mark that no server can guess:

    at PID START STEP   the guard's pid, its start in clock ticks, Slurm's step or `-`
    started PID, ending, exit CODE, left PID NAME   as rig/deploy/guard.py says
    held WHAT           GPU memory that is not back
    ended               nothing of the server is left, but for what `left` and `held` named
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rig.deploy import gpu
from rig.deploy.guard import Guard, stat_of

# What belongs to the rig's own Python and would mislead the engine's.
RIG_ONLY_ENV = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "__PYVENV_LAUNCHER__")
LOOK_S = 0.2


def server_env(argv: Sequence[str], env: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """The environment `base` without what is the rig's alone, the engine's programs first, plus `env`."""
    merged = {name: value for name, value in base.items() if name not in RIG_ONLY_ENV}
    if os.sep in argv[0]:
        folder = os.path.dirname(os.path.abspath(argv[0]))  # noqa: PTH100, PTH120
        merged["PATH"] = os.pathsep.join(filter(None, (folder, merged.get("PATH"))))
    return {**merged, **env}


def is_bound(port: int) -> bool:
    """Whether a server on any address of this machine would find the port taken."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def gpus_of_step(wanted: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """CUDA_VISIBLE_DEVICES for planned GPUs, which count those that Slurm gave to the step; None: as planned.

    Raises ValueError where the step has fewer.
    """
    if not wanted or not any(name in environ for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")):
        return None
    given = [gpu for gpu in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    if any(not gpu.isdigit() or int(gpu) >= len(given) for gpu in wanted):
        raise ValueError(f"GPU {','.join(wanted)} wanted, and Slurm gave {len(given)} to this step; ask for more")
    return ",".join(given[int(gpu)] for gpu in wanted)


def main(message: Mapping[str, Any]) -> None:
    """Guards a server until it ends, or the message's sender does; or looks whether an earlier guard is gone."""
    if "look" in message:
        _look(**message["look"])
        return
    # One stream, so that what is said stays in order.
    os.dup2(1, 2)
    prefix = message["mark"]
    own = stat_of(os.getpid())
    step = ".".join(filter(None, (os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID"))))
    _say(f"{prefix}at {os.getpid()} {own.start if own else 0} {step or '-'}")
    if os.path.isdir(message["cwd"]):  # noqa: PTH112
        os.chdir(message["cwd"])
    env = server_env(message["argv"], message["env"], {**os.environ, **message["inherited"]})
    problem = None
    used: dict[str, int] = {}
    try:
        devices = gpus_of_step(message["gpus"], os.environ)
        env.update({"CUDA_VISIBLE_DEVICES": devices} if devices is not None else {})
        used = asyncio.run(gpu.used_mib(devices.split(",") if devices is not None else message["gpus"]))
    except ValueError as error:
        problem = f"ValueError: {error}"
    if taken := [port for port in message["ports"] if is_bound(port)]:
        problem = f"OSError: [Errno {errno.EADDRINUSE}] Address already in use: port {', '.join(map(str, taken))}"
    if problem is not None:
        _say(problem)
        _say(f"{prefix}exit 1\n{prefix}ended")
        return
    os.environ.clear()
    os.environ.update(env)
    guard = Guard(message["argv"], message["grace_s"], 1, prefix=prefix, silence_s=message["silence_s"])
    guard.run()
    for held in asyncio.run(gpu.wait_free(used, message["gpu_free_s"])) if used else ():
        guard.report(f"held {held}")
    guard.report("ended")


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _look(pid: int, start: int, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while (stat := stat_of(pid)) and stat.start == start and stat.lives:
        if time.monotonic() >= deadline:
            _say("lives")
            return
        time.sleep(LOOK_S)
    _say("gone")
