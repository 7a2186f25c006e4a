"""A real Slurm of two nodes on this machine, and nothing of it outside its folder: munged, slurmctld, two slurmd."""

from __future__ import annotations

import getpass
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import needs
import pytest
from sim_sweeps import free_ports

from rig.deploy.guard import descendants, stat_of

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
                env={**os.environ, **self.env, "PATH": needs.PATH},
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
            if stat is not None and stat.name == "slurmstepd" and stat.lives:
                mine = f"SLURM_CONF={self.conf}".encode() in environ_of(stat.pid)
                if mine and self.node_of(stat.pid) == node:
                    found.append(stat.pid)
        return found

    def node_of(self, pid: int) -> str | None:
        """The node that a slurmstepd serves, as its tasks are told."""
        for below in descendants(pid):
            for variable in environ_of(below.pid):
                if variable.startswith(b"SLURMD_NODENAME="):
                    return variable.partition(b"=")[2].decode()
        return None

    def take_away(self, node: str) -> None:
        """All of a node at once, without a word to anybody: as if its power had failed."""
        lost = [self.daemons[node].pid, *self.stepds(node)]
        lost += [stat.pid for pid in lost for stat in descendants(pid)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in lost:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
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


def environ_of(pid: int) -> list[bytes]:
    """The variables of a process; none of one that has ended since."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, until: Callable[..., Any]) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    made = Cluster(folder)
    try:
        made.start(until)
        yield made
    finally:
        made.stop()


def batch(folder: Path) -> tuple[str, ...]:
    """What runs a command as a batch job on the first of two nodes, and waits for it."""
    script = folder / "batch.sh"
    script.write_text('#!/bin/sh\nexec "$@"\n')
    return ("sbatch", "--wait", "--quiet", "-N2", "--no-kill", f"--output={folder / 'batch.out'}", str(script))
