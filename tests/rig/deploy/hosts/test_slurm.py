"""`launcher: slurm` against a real Slurm: two nodes on this machine, prefill on one and decode on the other.

Needs Debian's slurm-wlm and munge (`apt-get install slurm-wlm munge`), and nothing running of them.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.deploy.guard import descendants, stat_of

SBIN = "/usr/sbin:/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch")
MISSING = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SBIN}") is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"no {', '.join(MISSING)}: apt-get install slurm-wlm munge (docs/hosts.md)"
)

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=6
MessageTimeout=3
KillWait=5
ReturnToService=2
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=1000
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=1000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
# Loopback has many addresses, so each node has one of its own.
HOSTS = ({"address": "127.0.0.1", "node": "n1"}, {"address": "127.0.0.2", "node": "n2"})


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Cluster:
    """munged, slurmctld and two slurmd, all of this test's own; ended by pid, with all below them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.env = {"SLURM_CONF": str(self.conf)}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", "munge"):
            (folder / name).mkdir()
        (folder / "munge" / "key").write_bytes(secrets.token_bytes(1024))
        (folder / "munge" / "key").chmod(0o400)
        self.conf.write_text(
            CONF.format(folder=folder, host=socket.gethostname(), user=getpass.getuser(), ports=free_ports(3))
        )

    def start(self, until: Callable[[Callable[[], Any]], Any]) -> None:
        munge = self.folder / "munge"
        files = [f"--{name}={munge / file}" for name, file in (("socket", "socket"), ("key-file", "key"))]
        files += [f"--{name}-file={munge / name}" for name in ("log", "pid", "seed")]
        self.daemon("munged", "munged", "--foreground", "--force", "--num-threads=2", *files)
        until(lambda: (munge / "socket").exists())
        self.daemon("slurmctld", "slurmctld", "-D", "-i", "-c")
        for node in ("n1", "n2"):
            self.daemon(node, "slurmd", "-D", "-N", node)
        until(lambda: self.ask("sinfo", "--noheader", "--format=%T %D").split() == ["idle", "2"])

    def daemon(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                command,
                env={**os.environ, **self.env, "PATH": f"{os.environ.get('PATH', '')}:{SBIN}"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                process_group=0,
            )

    def ask(self, *command: str) -> str:
        return subprocess.run(command, env={**os.environ, **self.env}, capture_output=True, text=True).stdout

    def jobs(self) -> str:
        return self.ask("squeue", "--noheader")

    def stepds(self, node: str) -> list[int]:
        """The daemons of a node's steps, which run apart from slurmd: by the name that they give themselves."""
        found = []
        for entry in Path("/proc").iterdir():
            stat = stat_of(int(entry.name)) if entry.name.isdigit() else None
            if stat is not None and stat.name == "slurmstepd" and stat.state not in "ZX":
                environ = (entry / "environ").read_bytes()
                if f"SLURM_CONF={self.conf}".encode() in environ and self.node_of(stat.pid) == node:
                    found.append(stat.pid)
        return found

    def node_of(self, pid: int) -> str | None:
        """The node that a slurmstepd serves, as its tasks are told."""
        for below in descendants(pid):
            for variable in Path(f"/proc/{below.pid}/environ").read_bytes().split(b"\0"):
                if variable.startswith(b"SLURMD_NODENAME="):
                    return variable.partition(b"=")[2].decode()
        return None

    def take_away(self, node: str) -> None:
        """All of a node at once, without a word to anybody: as if its power had failed."""
        lost = [self.daemons[node].pid, *self.stepds(node)]
        lost += [stat.pid for pid in lost for stat in descendants(pid)]
        for pid in lost:
            os.kill(pid, signal.SIGSTOP)
        for pid in lost:
            os.kill(pid, signal.SIGKILL)
        self.daemons[node].wait()

    def stop(self) -> None:
        self.ask("scancel", f"--user={getpass.getuser()}")
        for name in reversed(self.daemons):
            process = self.daemons[name]
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, until: Callable[..., Any]) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    made = Cluster(folder)
    try:
        made.start(until)
        yield made
    finally:
        made.stop()


def test_a_sweep_asks_for_two_nodes_and_ends_with_verdicts(sweeps: Any, cluster: Cluster, until: Any) -> None:
    file = sweeps.file(HOSTS, launcher="slurm", slurm={"allocate": ["-N2", "--quiet"]})
    done = sweeps.start(file, **cluster.env).finish()
    assert done.code == 0, done.out + done.err
    cells = done.cells()
    assert cells["pd"]["verdict"]["state"] == "pass" and cells["pd"]["evidence"]["pd_exercised"] is True
    assert cells["pd"]["counts"]["correct"] == 40 and cells["monolithic"]["status"] == "ok"
    record = done.deployments()["pd"]
    assert record["launcher"] == "slurm" and record["leftovers"] == [] and record["failure"] is None
    assert record["processes"]["decode-0"]["url"].startswith("http://127.0.0.2:")
    assert "Started on http://0.0.0.0:" in done.log("decode-0"), "the log came back"
    assert not done.servers()
    until(lambda: cluster.jobs() == "")


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


def batch(folder: Path) -> tuple[str, ...]:
    """What runs a command as a batch job on the first of two nodes, and waits for it."""
    script = folder / "batch.sh"
    script.write_text('#!/bin/sh\nexec "$@"\n')
    return ("sbatch", "--wait", "--quiet", "-N2", "--no-kill", f"--output={folder / 'batch.out'}", str(script))


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
