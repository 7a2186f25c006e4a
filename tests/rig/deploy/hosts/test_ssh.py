"""`launcher: ssh` against a local sshd: one of this test's own, on a high port, with keys made for it."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.deploy.guard import descendants

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
SSHD = shutil.which("sshd", path=PATH)
MISSING = [name for name in ("sshd", "ssh", "ssh-keygen") if shutil.which(name, path=PATH) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"no {', '.join(MISSING)}: apt-get install openssh-server openssh-client (docs/hosts.md)"
)

CONF = """\
Port {port}
ListenAddress 127.0.0.1
ListenAddress 127.0.0.2
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/key.pub
StrictModes no
PasswordAuthentication no
UsePAM no
PermitRootLogin prohibit-password
AllowUsers {user}
"""


class Host:
    """A sshd in the foreground; `options` are what ssh needs to reach it."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        for name in ("host_key", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        conf = folder / "sshd_config"
        conf.write_text(CONF.format(port=port, folder=folder, user=getpass.getuser()))
        self.options = ["-p", str(port), "-i", str(folder / "key"), "-F", "none", "-o", "IdentitiesOnly=yes"]
        self.options += ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={folder / 'known'}"]
        if os.geteuid() == 0:
            # A sshd of root's changes its root there before it knows its user (sshd(8), /run/sshd).
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.log = folder / "sshd.log"
        self.process = subprocess.Popen([str(SSHD), "-D", "-f", conf, "-E", self.log], stdin=subprocess.DEVNULL)
        self.port = port

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def connections(self) -> set[int]:
        return {stat.pid for stat in descendants(self.process.pid) if stat.name == "sshd"}

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def host(tmp_path: Path, until: Callable[..., Any]) -> Iterator[Host]:
    made = Host(tmp_path)
    try:
        until(made.listens)
        yield made
    finally:
        made.stop()


def hosts(first: str = "127.0.0.1", second: str = "127.0.0.2") -> tuple[dict[str, str], dict[str, str]]:
    return {"address": "127.0.0.1", "node": first}, {"address": "127.0.0.2", "node": second}


def test_a_sweep_on_two_hosts_ends_with_verdicts(sweeps: Any, host: Host) -> None:
    done = sweeps.start(sweeps.file(hosts(), launcher="ssh", ssh={"options": host.options})).finish()
    assert done.code == 0, done.out + done.err
    cells = done.cells()
    assert cells["pd"]["verdict"]["state"] == "pass" and cells["pd"]["evidence"]["pd_exercised"] is True
    record = done.deployments()["pd"]
    assert record["launcher"] == "ssh" and record["leftovers"] == [] and record["failure"] is None
    assert "Started on http://0.0.0.0:" in done.log("decode-0"), "the log came back"
    assert not done.servers() and not host.connections()


def test_a_rig_that_is_killed_takes_the_servers_of_other_hosts_along(sweeps: Any, host: Host, until: Any) -> None:
    file = sweeps.file(hosts(), launcher="ssh", ssh={"options": host.options}, baseline="none", sim={"ms_per_token": 9})
    run = sweeps.start(file)
    until(lambda: run.answers() > 0 or run.process.poll() is not None)
    assert len(run.servers()) >= 2
    run.process.send_signal(signal.SIGKILL)
    until(lambda: not run.servers() and not host.connections())


def test_a_connection_that_breaks_fails_the_cell_and_leaves_nothing(sweeps: Any, host: Host, until: Any) -> None:
    file = sweeps.file(hosts(), launcher="ssh", ssh={"options": host.options}, baseline="none", sim={"ms_per_token": 9})
    file["tasks"]["tiny"]["limit"] = 400
    run = sweeps.start(file)
    until(lambda: run.answers() > 8 or run.process.poll() is not None)
    for pid in host.connections():
        os.kill(pid, signal.SIGKILL)
    done = run.finish()
    assert done.code == 3, done.out + done.err
    assert done.cells()["pd"]["status"] == "failed"
    line = done.failure()
    assert "was lost with 127.0.0." in line and "(ssh ended with exit code 255)" in line
    assert not done.servers() and done.deployments()["pd"]["leftovers"] == []


def test_a_host_that_cannot_be_reached_is_named(sweeps: Any, host: Host) -> None:
    file = sweeps.file(hosts(second="nobody@127.0.0.2"), launcher="ssh", ssh={"options": host.options}, baseline="none")
    done = sweeps.start(file).finish()
    assert done.code == 3
    line = done.failure()
    assert "decode-0 was lost with nobody@127.0.0.2 (ssh ended with exit code 255) before it was ready" in line
    assert "Permission denied" in line and not done.servers()


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_port_that_is_taken_there_is_said(sweeps: Any, host: Host, role: str) -> None:
    file = sweeps.file(hosts(), launcher="ssh", ssh={"options": host.options}, baseline="none")
    port = file["cell"][role]["side_channel_port"]
    with socket.create_server(("", port)):
        done = sweeps.start(file).finish()
    assert done.code == 3
    line = done.failure()
    assert f"{role}-0 ended with exit code 1 on 127.0.0." in line
    assert f"Address already in use: port {port}" in line and not done.servers()
