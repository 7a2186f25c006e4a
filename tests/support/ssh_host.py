"""A real sshd of the tests' own, on a high port, with keys made for it."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from needs import program
from sim_sweeps import free_ports

from rig.deploy.guard import descendants

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
        (port,) = free_ports(1)
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
        self.process = subprocess.Popen(
            [str(program("ssh")), "-D", "-f", conf, "-E", self.log], stdin=subprocess.DEVNULL
        )
        self.port = port

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def connections(self) -> set[int]:
        return {stat.pid for stat in descendants(self.process.pid) if stat.name.startswith("sshd")}

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
