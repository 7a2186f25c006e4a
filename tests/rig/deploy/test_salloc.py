"""A sweep within `salloc`: what came of it, whatever salloc says. Shells with its exit codes stand in for it."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rig import within
from rig.deploy.salloc import run_under, salloc_command
from rig.errors import RunError
from rig.planned import DeploymentPlan, RemotePlan, SweepPlan

RIG = (sys.executable, "-m", "rig")
OUTLIVING = """
import os, select, sys
from rig.within import told
parent = os.pidfd_open(os.getppid())
with told():
    select.select([parent], [], [])
    sys.exit(4)
"""
LASTING = (sys.executable, "-c", "import signal\nfrom rig.within import told\nwith told(): signal.pause()")


def test_an_allocation_is_asked_for_once() -> None:
    remote = RemotePlan(allocate=("-N2", "--gpus-per-node=4"))
    wanted = DeploymentPlan("d", "pd", "slurm", "m", None, remote=remote)
    sweep = SweepPlan("s", "s.yaml", (wanted,), (), {})
    command = salloc_command(sweep, ["sweep", "s.yaml"], {})
    assert command == ["salloc", "--no-kill", "-N2", "--gpus-per-node=4", *RIG, "sweep", "s.yaml"]
    assert salloc_command(sweep, ["sweep"], {"SLURM_JOB_ID": "7"}) is None
    for other in (replace(wanted, remote=RemotePlan()), replace(wanted, launcher="ssh")):
        assert salloc_command(replace(sweep, deployments=(other,)), ["sweep"], {}) is None


@pytest.mark.parametrize("salloc", ["exit 1", "exit 0", "kill -KILL $$"])
def test_the_exit_code_is_that_of_the_sweep(salloc: str) -> None:
    assert run_under(["sh", "-c", f'"$@"; {salloc}', "sh", *RIG, "report", "nowhere"], "s.yaml") == 2


@pytest.mark.parametrize("code", [0, 1])
def test_no_allocation_is_neither_a_pass_nor_a_regression(code: int) -> None:
    with pytest.raises(RunError) as caught:
        run_under(["sh", "-c", f"exit {code}"], "s.yaml")
    assert str(caught.value) == (
        f"s.yaml: slurm.allocate: sh gave no allocation (exit code {code}); its own last line says why"
    )


def test_a_sweep_that_was_killed_is_neither() -> None:
    kill = f'"$@" & until [ -s "${within.FILE}" ]; do sleep 0.05; done; kill -KILL $!; exit 0'
    with pytest.raises(RunError, match="the sweep was killed within its allocation"):
        run_under(["sh", "-c", kill, "sh", *LASTING], "s.yaml")


def test_a_sweep_that_outlives_salloc_is_waited_for() -> None:
    """salloc ends at once when it is hung up."""
    left = f'"$@" & until [ -s "${within.FILE}" ]; do sleep 0.05; done; exit 1'
    assert run_under(["sh", "-c", left, "sh", sys.executable, "-c", OUTLIVING], "s.yaml") == 4


def test_what_a_sweep_starts_is_no_sweep_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sweep"
    file.touch()
    assert within.read(file) == within.Within(lives=False)
    monkeypatch.setenv(within.FILE, str(file))
    with pytest.raises(SystemExit), within.told():
        assert within.FILE not in os.environ
        assert within.read(file) == within.Within(lives=True, pid=os.getpid())
        sys.exit(3)
    assert within.read(file) == within.Within(lives=False, pid=os.getpid(), code=3)
