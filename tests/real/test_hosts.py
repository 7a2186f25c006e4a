"""Prefill on one machine and decode on another with the real engine: two Slurm nodes, two hosts behind ssh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ssh_host
from demo_sweep import QUESTIONS, demo_sweep
from slurm_cluster import HOSTS, Cluster

PATIENCE_S = 600

ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""No worker apart from the engine's core, and so none that polls with sched_yield. slurmstepd and sshd give each server
a session, Linux schedules sessions as groups, and vLLM's NIXL pins every worker of a CPU to its last core: there two
such workers never yield to one another and take a question a second. Machines of their own do not have that."""

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(3000)]


def a_sweep(sweeps: Any, hosts: Any, questions: int = QUESTIONS, **top: Any) -> dict[str, Any]:
    """The demo's P/D cell on two hosts, by `sweeps`' ports."""
    data = demo_sweep(questions)
    file: dict[str, Any] = sweeps.file(hosts)
    cell, places = data["cell"], file["cell"]
    for role in ("prefill", "decode", "proxy"):
        cell[role] |= places[role]
    cell["both"] |= {"listen": "0.0.0.0", "side_channel_host": "{hostname}"}
    cell["both"]["env"] |= ONE_PROCESS
    data["baseline"]["monolithic"]["port"] = file["baseline"]["monolithic"]["port"]
    return {**data, "hosts": file["hosts"], **top}


def passed(done: Any) -> None:
    """Verdicts by proof that KV went from one host to the other, and nothing left."""
    assert done.code == 0, done.out + done.err
    cells = done.cells()
    assert cells["pd"]["verdict"]["state"] == "pass" and cells["monolithic"]["status"] == "ok", done.out
    proof = cells["pd"]["evidence"]
    assert proof["pd_exercised"] is True and proof["transfers"] == QUESTIONS + proof["canaries"]["sent"]
    record = done.deployments()["pd"]
    assert record["leftovers"] == [] and record["failure"] is None
    for server, address in (("prefill-0", "127.0.0.1"), ("decode-0", "127.0.0.2")):
        assert record["processes"][server]["url"].startswith(f"http://{address}:")
        assert "Application startup complete" in done.log(server), "the log came back"
    assert not done.servers()


@pytest.mark.needs("slurm")
def test_two_slurm_nodes_end_with_verdicts(
    engine: Path, sweeps: Any, cluster: Cluster, until: Callable[..., Any]
) -> None:
    file = a_sweep(sweeps, HOSTS, launcher="slurm", slurm={"allocate": ["-N2", "--quiet"]})
    passed(sweeps.start(file, **cluster.env).finish(PATIENCE_S))
    until(lambda: cluster.jobs() == "")


@pytest.mark.needs("slurm")
def test_a_node_that_dies_amid_the_questions(engine: Path, sweeps: Any, cluster: Cluster, until: Any) -> None:
    file = a_sweep(sweeps, HOSTS, questions=1000, launcher="slurm", baseline="none", noise_floor=False, rerun=False)
    run = sweeps.start(file, "salloc", "-N2", "--no-kill", "--quiet", **cluster.env)
    until(lambda: run.answers() > 50 or run.process.poll() is not None, PATIENCE_S)
    assert run.process.poll() is None, run.finish().err
    assert len(run.servers()) >= 4, "both servers and their engines"
    cluster.take_away("n2")
    done = run.finish(PATIENCE_S)
    assert done.code == 3, done.out + done.err
    line = done.failure()
    assert "decode-0" in line and "n2" in line
    assert not done.servers()
    until(lambda: cluster.jobs() == "")


@pytest.mark.needs("ssh")
def test_two_hosts_behind_ssh_end_with_verdicts(
    engine: Path, sweeps: Any, host: ssh_host.Host, until: Callable[..., Any]
) -> None:
    file = a_sweep(sweeps, ssh_host.hosts(), launcher="ssh", ssh={"options": host.options})
    passed(sweeps.start(file).finish(PATIENCE_S))
    # sshd's own processes end a moment after the client's.
    until(lambda: not host.connections())
