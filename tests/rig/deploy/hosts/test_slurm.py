"""`launcher: slurm` against a real Slurm: two nodes on this machine, prefill on one and decode on the other."""

from __future__ import annotations

import getpass
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import HOSTS, Cluster, batch

from rig.deploy.guard import descendants

TERMINAL = str(Path(__file__).parents[3] / "support" / "terminal.py")

pytestmark = pytest.mark.needs("slurm")


def test_a_sweep_asks_for_two_nodes_and_ends_with_verdicts(sweeps: Any, cluster: Cluster, until: Any) -> None:
    file = sweeps.telling(sweeps.file(HOSTS, launcher="slurm", slurm={"allocate": ["-N2", "--quiet"]}))
    done = sweeps.start(file, **cluster.env).finish()
    assert done.code == 0, done.out + done.err
    cells = done.cells()
    assert cells["pd"]["verdict"]["state"] == "pass" and cells["pd"]["evidence"]["pd_exercised"] is True
    assert cells["pd"]["counts"]["correct"] == 40 and cells["monolithic"]["status"] == "ok"
    record = done.deployments()["pd"]
    assert record["launcher"] == "slurm" and record["leftovers"] == [] and record["failure"] is None
    assert record["processes"]["decode-0"]["url"].startswith("http://127.0.0.2:")
    assert "Started on http://0.0.0.0:" in done.log("decode-0"), "the log came back"
    assert done.info()["engines"]["sim"]["vllm"] == "engine 1.5 by slurm", "it is asked where it runs"
    assert list(record["engines"].values()) == [done.info()["engines"]["sim"]]
    assert not done.servers()
    until(lambda: cluster.jobs() == "")


def test_without_an_allocation_there_is_no_verdict(sweeps: Any, cluster: Cluster) -> None:
    """salloc itself ends with 1 then, which would be a regression."""
    file = sweeps.file(HOSTS, launcher="slurm", slurm={"allocate": ["--nodelist=nosuch"]})
    run = sweeps.start(file, **cluster.env).finish()
    said = run.err.splitlines()
    assert run.code == 3 and not (run.folder / "runs").exists()
    assert "Invalid node name specified" in said[-2]
    config = run.folder / "sweep.yaml"
    assert said[-1].startswith(f"pdrig: {config}: slurm.allocate: salloc gave no allocation (exit code 1); ")


def test_a_signal_ends_the_request_for_an_allocation(sweeps: Any, cluster: Cluster, until: Any) -> None:
    run = sweeps.start(
        sweeps.file(HOSTS, launcher="slurm", slurm={"allocate": ["-N2", "--begin=now+1hour"]}), **cluster.env
    )
    until(lambda: cluster.jobs() or run.process.poll() is not None)
    run.process.terminate()
    done = run.finish()
    assert (done.code, done.err.splitlines()[-1]) == (130, "pdrig: interrupted"), done.err
    until(lambda: cluster.jobs() == "")


ENDS = {"SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT, "closed terminal": signal.SIGHUP, "killed": signal.SIGKILL}


@pytest.mark.parametrize("by", ENDS)
def test_a_sweep_that_is_stopped_within_its_own_allocation(sweeps: Any, cluster: Cluster, until: Any, by: str) -> None:
    """salloc keeps SIGTERM and SIGINT to itself, and calls it 0 when what it ran was killed."""
    file = sweeps.file(HOSTS, launcher="slurm", baseline="none", sim={"ms_per_token": 20})
    file |= {"slurm": {"allocate": ["-N2", "--quiet"]}}
    file["tasks"]["tiny"]["limit"] = 400
    window = (sys.executable, TERMINAL) if by in ("Ctrl-C", "closed terminal") else ()
    run = sweeps.start(file, *window, **cluster.env)
    until(lambda: run.answers() > 8 or run.process.poll() is not None)
    assert run.process.poll() is None, run.finish().err
    if by == "killed":
        below = descendants(run.process.pid)
        (salloc,) = (one.pid for one in below if one.name == "salloc")
        (sweep,) = (one.pid for one in below if one.parent == salloc)
        os.kill(sweep, ENDS[by])
    else:
        run.process.send_signal(ENDS[by])
    done = run.finish()
    assert done.code == (3 if by == "killed" else 130), done.out + done.err
    said = {"killed": "the sweep was killed within its allocation", "closed terminal": ""}
    assert said.get(by, "pdrig: interrupted; what was finished is on disk") in done.out + done.err
    if by != "killed":
        assert done.cells()["pd"]["status"] == "interrupted"
    until(lambda: not run.servers() and cluster.jobs() == "")


def test_a_node_that_dies_fails_the_cell_and_leaves_nothing(sweeps: Any, cluster: Cluster, until: Any) -> None:
    """The rig is started within an allocation that outlives its nodes; a node's power fails amid the questions."""
    file = sweeps.file(HOSTS, launcher="slurm", baseline="none", sim={"ms_per_token": 20})
    file["tasks"]["tiny"]["limit"] = 400
    run = sweeps.start(file, "salloc", "-N2", "--no-kill", "--quiet", **cluster.env)
    until(lambda: run.answers() > 8 or run.process.poll() is not None)
    assert run.process.poll() is None, run.finish().err
    cluster.take_away("n2")
    done = run.finish()
    assert done.code == 3, done.out + done.err
    cell = done.cells()["pd"]
    assert cell["status"] == "failed"
    line = done.failure()
    assert "decode-0" in line and "n2" in line
    assert not done.servers()
    until(lambda: cluster.jobs() == "")


def test_a_batch_job_runs_the_sweep_on_its_nodes(sweeps: Any, cluster: Cluster, until: Any, tmp_path: Path) -> None:
    """sbatch leaves variables that srun would take for options."""
    done = sweeps.start(sweeps.file(HOSTS, launcher="slurm", baseline="none"), *batch(tmp_path), **cluster.env).finish()
    cell = done.cells()["pd"]
    assert cell["status"] == "ok" and cell["counts"]["correct"] == 40, (tmp_path / "batch.out").read_text()
    assert cell["evidence"]["pd_exercised"] is True and done.deployments()["pd"]["leftovers"] == []
    assert not done.servers()
    until(lambda: cluster.jobs() == "")


def test_an_allocation_that_is_cancelled_takes_everything_along(
    sweeps: Any, cluster: Cluster, until: Any, tmp_path: Path
) -> None:
    file = sweeps.file(HOSTS, launcher="slurm", baseline="none", sim={"ms_per_token": 20})
    file["tasks"]["tiny"]["limit"] = 400
    run = sweeps.start(file, *batch(tmp_path), **cluster.env)
    until(lambda: run.answers() > 0 or run.process.poll() is not None)
    assert len(run.servers()) >= 2, (tmp_path / "batch.out").read_text()
    cluster.ask("scancel", f"--user={getpass.getuser()}")
    run.finish()
    until(lambda: not run.servers() and cluster.jobs() == "")
