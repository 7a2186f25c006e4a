"""`slurm.allocate`: the sweep runs anew under `salloc`, which asks for its allocation.

salloc ends with 1 where it has no allocation to give and with 0 where what it ran was killed, and ignores SIGINT and
SIGTERM while that runs (tried with Slurm 22.05). So the sweep tells its exit code by a file, and is sent what would end
this process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rig import within
from rig.ending import ending
from rig.errors import Interrupted, RunError, UsageError
from rig.planned import SweepPlan

POLL_S = 0.2


def salloc_command(plan: SweepPlan, argv: Sequence[str], environ: Mapping[str, str]) -> list[str] | None:
    """The command that starts this program anew in an allocation; None where none is wanted, or one is there already.

    The allocation ends with the program. It outlives the loss of a node, which then fails the cells that need it.
    """
    wanted = next((d.remote.allocate for d in plan.deployments if d.launcher == "slurm" and d.remote.allocate), None)
    if wanted is None or environ.get("SLURM_JOB_ID"):
        return None
    return ["salloc", "--no-kill", *wanted, sys.executable, "-m", "rig", *argv]


def sweep_in_allocation(plan: SweepPlan) -> int | None:
    """Runs this program anew in an allocation, if the sweep asks for one; its exit code, None where it does not.

    Raises UsageError without salloc; the rest as `run_under`.
    """
    command = salloc_command(plan, sys.argv[1:], os.environ)
    if command is None:
        return None
    if shutil.which(command[0]) is None:
        raise UsageError("`slurm.allocate` needs salloc on PATH; run where Slurm's programs are")
    return run_under(command, plan.config_file)


def run_under(command: Sequence[str], config_file: str) -> int:
    """Runs a command that starts this program anew within itself; returns the exit code of the one within.

    Raises RunError where that was never started, or was killed; Interrupted where this one was told to end before.
    """
    with tempfile.TemporaryDirectory(prefix="pdrig-") as folder:
        file = Path(folder) / "sweep"
        file.touch()
        code, caught = _wait(command, file)
        sweep = within.read(file)
    if sweep.code is not None:
        return sweep.code
    if caught:
        raise Interrupted("interrupted")
    if sweep.pid is not None:
        raise RunError("the sweep was killed within its allocation; --resume goes on with it")
    raise RunError(
        f"{config_file}: slurm.allocate: {command[0]} gave no allocation (exit code {code}); its own last line says why"
    )


def _wait(command: Sequence[str], file: Path) -> tuple[int, bool]:
    """Until the command and the sweep within have ended; the command's exit code, and whether this one was to end.

    A signal goes to the sweep once that has begun; until then to the command, which gives up its request.
    """
    caught: list[int] = []
    before = {number: signal.signal(number, lambda number, _: caught.append(number)) for number in ending()}
    try:
        process = subprocess.Popen(command, env={**os.environ, within.FILE: str(file)})
        passed = 0
        while True:
            code, sweep = process.poll(), within.read(file)
            if code is not None and not sweep.lives:
                return code, bool(caught)
            if len(caught) > passed:
                if sweep.lives and sweep.pid is not None:
                    with suppress(ProcessLookupError):
                        os.kill(sweep.pid, signal.SIGTERM)
                    passed += 1
                else:
                    process.terminate()
            time.sleep(POLL_S)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
