"""`launcher: ssh` against a local sshd: one of this test's own, on a high port, with keys made for it."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from typing import Any

import pytest
from ssh_host import Host, hosts

pytestmark = pytest.mark.needs("ssh")


def test_a_sweep_on_two_hosts_ends_with_verdicts(sweeps: Any, host: Host) -> None:
    file = sweeps.telling(sweeps.file(hosts(), launcher="ssh", ssh={"options": host.options}))
    done = sweeps.start(file).finish()
    assert done.code == 0, done.out + done.err
    cells = done.cells()
    assert cells["pd"]["verdict"]["state"] == "pass" and cells["pd"]["evidence"]["pd_exercised"] is True
    record = done.deployments()["pd"]
    assert record["launcher"] == "ssh" and record["leftovers"] == [] and record["failure"] is None
    assert "Started on http://0.0.0.0:" in done.log("decode-0"), "the log came back"
    assert done.info()["engines"]["sim"]["vllm"] == "engine 1.5 by ssh", "it is asked where it runs"
    assert not done.servers() and not host.connections()


def test_a_rig_that_is_killed_takes_the_servers_of_other_hosts_along(sweeps: Any, host: Host, until: Any) -> None:
    file = sweeps.file(hosts(), launcher="ssh", ssh={"options": host.options}, baseline="none", sim={"ms_per_token": 9})
    file["tasks"]["tiny"]["limit"] = 1000
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
        # The end of one process of a connection is that of the other, which may be gone before its turn.
        with suppress(ProcessLookupError):
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
