"""What `pdrig sweep` does between its arguments and its reports."""

from __future__ import annotations

import sys
from pathlib import Path

from rig import resuming
from rig import run as runs
from rig.cli_common import interruptible, machine_held
from rig.planned import SweepPlan
from rig.progress import Display
from rig.store import RunFolder


def run_sweep(planned: SweepPlan, config: Path, data: Path | None, out: Path, resume: Path | None) -> RunFolder:
    """Run what is planned in a new folder below `out`, or go on with the run at `resume`.

    Raises UsageError and its kind before anything starts; Interrupted.
    """
    tasks = runs.load_tasks(planned, data)
    earlier = resuming.reopen(resume, runs.resolved(planned)) if resume else None
    with machine_held(planned, earlier) as hold:
        folder = earlier or runs.begin(planned, config, out)
        hold(folder.path)
        with Display(sys.stderr) as display:
            runs.announce(planned, folder, display)
            interruptible(runs.Sweep(planned, tasks, folder, display).all())
    return folder
