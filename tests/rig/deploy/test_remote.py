"""Servers carried to another machine, with a pipe of this one in place of the way there."""

from __future__ import annotations

import json
import os
import platform
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rig import provenance
from rig.deploy import Deployment, node, remote
from rig.deploy.guard import descendants, stat_of
from rig.errors import DeployError, PortLost, ServerDied, StartFailed
from rig.planned import ServerPlan

Until = Callable[[Callable[[], Any]], Any]


class Pipe:
    """The way is `cat`, behind it the machine: whatever `command` says it is."""

    by = "cat"

    def __init__(self, command: str | None = None) -> None:
        self.asked: list[str] = []
        self.words = command or f"cat | {shlex.join((sys.executable, '-I', '-S', '-c', remote.BOOT))}"

    def command(self, server: ServerPlan, mark: str) -> tuple[str, ...]:
        return ("sh", "-c", self.words)

    def environment(self) -> dict[str, str]:
        return remote.here()

    def inherited(self) -> dict[str, str]:
        return {"HF_HOME": "/of/the/rig", "A_TOKEN": "is overruled"}

    async def left(self, process: remote.RemoteProcess) -> str | None:
        self.asked.append(process.name)
        return "nobody knows"


def there(server: ServerPlan) -> ServerPlan:
    return replace(server, host="127.0.0.1", node="far")


async def launch(rig: Any, pipe: Pipe, *servers: ServerPlan) -> Deployment:
    plan = replace(rig.plan(*map(there, servers)), launcher="ssh")
    deployment = await remote.launch(plan, rig.folder / plan.id, rig.events.append, pipe)
    rig.launched.append(deployment)
    return deployment


def environ(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def served(rig: Any) -> int:
    """The pid of the one server, as its log names it."""
    (log,) = (rig.folder / "d1" / "logs").glob("decode-0.log")
    return next(int(line.split()[-1]) for line in log.read_text().splitlines() if ": started " in line)


async def test_up_and_down(rig: Any) -> None:
    pipe = Pipe()
    deployment = await launch(rig, pipe, rig.server())
    pid = served(rig)
    assert environ(pid)["A_TOKEN"] == "hush" and environ(pid)["HF_HOME"] == "/of/the/rig"
    tree = descendants(os.getpid())
    assert pid in {stat.pid for stat in tree}
    assert not any("hush" in command_line(stat.pid) for stat in tree), "what is secret is on no command line"
    assert next(e.text for e in rig.events if e.phase == "starting").startswith("on far, log: ")
    assert await deployment.lost() is None
    assert await deployment.stop() == () and pipe.asked == []
    assert rig.gone(pid)
    said = (rig.folder / "d1" / "logs" / "decode-0.log").read_text()
    assert said.rstrip().endswith(": ended"), "the end was seen"
    assert json.loads((rig.folder / "d1" / "deployment.json").read_text())["leftovers"] == []


async def test_an_end_there_is_told_with_code_and_cause(rig: Any) -> None:
    with pytest.raises(StartFailed) as raised:
        await launch(rig, Pipe(), rig.server("prefill-0", role="prefill"), rig.server(fault="exit"))
    assert "decode-0 ended with exit code 3 on far before it was ready: OSError: no such model" in str(raised.value)


async def test_a_server_that_is_killed_there_is_noticed(rig: Any) -> None:
    deployment = await launch(rig, Pipe(), rig.server())
    os.kill(served(rig), signal.SIGKILL)
    error = await deployment.wait_failed()
    assert type(error) is ServerDied and "decode-0 was ended by SIGKILL on far" in str(error)


async def test_a_way_that_breaks_ends_the_server_there(rig: Any, until: Until) -> None:
    deployment = await launch(rig, Pipe(), rig.server(fault="engine"))
    pid = served(rig)
    (way,) = (stat.pid for stat in descendants(os.getpid()) if stat.name == "cat")
    os.kill(way, signal.SIGKILL)
    assert "was ended on far, and not by this run" in str(await deployment.wait_failed())
    assert rig.gone(pid)
    assert await deployment.stop() == ()


async def test_a_machine_that_is_never_reached_is_named(rig: Any) -> None:
    pipe = Pipe("echo no route to host >&2; exit 9")
    with pytest.raises(StartFailed) as raised:
        await launch(rig, pipe, rig.server())
    text = "decode-0 was lost with far (cat ended with exit code 9) before it was ready; its log ends with: no route"
    assert text in str(raised.value) and pipe.asked == ["decode-0"]
    left = json.loads((rig.folder / "d1" / "deployment.json").read_text())["leftovers"]
    assert left == ["decode-0: nobody knows"]


async def test_what_resists_there_is_killed(rig: Any) -> None:
    plan = rig.plan(there(rig.server(fault="stubborn")))
    plan = replace(plan, limits=replace(plan.limits, stop_s=0.3))
    deployment = await remote.launch(plan, rig.folder / plan.id, rig.events.append, Pipe())
    rig.launched.append(deployment)
    pid = served(rig)
    assert await deployment.stop() == () and rig.gone(pid)


@pytest.mark.parametrize("side_channel", [False, True])
async def test_a_port_that_is_taken_there(rig: Any, side_channel: bool) -> None:
    server = rig.server()
    with socket.create_server(("127.0.0.2", 0)) as held:
        port = held.getsockname()[1]
        taken = replace(server, side_channel_ports=(port,)) if side_channel else replace(server, port=port)
        with pytest.raises(PortLost, match=rf"on far .*Address already in use: port {port}"):
            await launch(rig, Pipe(), taken)


async def test_an_address_that_is_answered_already(rig: Any) -> None:
    """Else a server of somebody else would be taken for ours."""
    stale = await rig.launch(rig.plan(rig.server()))
    ours = replace(rig.server(), url=stale.url)
    plan = replace(rig.plan(there(ours)), id="d2")
    with pytest.raises(PortLost, match=f"{stale.url} is answered by a server that this run did not start"):
        await remote.launch(plan, rig.folder / plan.id, rig.events.append, Pipe())
    assert await stale.lost() is None


async def test_a_silent_server_is_lost_before_its_end_is_known(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rig.deploy.deployment.LOST_S", 0.1)
    deployment = await launch(rig, Pipe(), rig.server())
    os.kill(served(rig), signal.SIGSTOP)
    monkeypatch.setattr("rig.deploy.ready.HEALTH_TIMEOUT_S", 0.1)
    error = await deployment.lost()
    assert type(error) is ServerDied and str(error).startswith("decode-0 on far does not answer any more (http://")
    os.kill(served(rig), signal.SIGCONT)


async def test_a_server_that_has_ended_is_lost_with_its_cause(rig: Any) -> None:
    deployment = await launch(rig, Pipe(), rig.server())
    os.kill(served(rig), signal.SIGKILL)
    error = await deployment.lost()
    assert isinstance(error, DeployError) and "was ended by SIGKILL on far" in str(error)


def start_there(**fields: Any) -> subprocess.Popen[bytes]:
    message = {
        "mark": "m: ",
        "argv": ["sh", "-c", "echo up; exec sleep 1000"],
        "env": {},
        "inherited": {},
        "gpus": [],
        "ports": [],
        "cwd": "/no/such/folder",
        "grace_s": 5,
        "gpu_free_s": 0,
        "silence_s": 60,
    }
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", remote.BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(remote.message(**(message | fields)))
    process.stdin.flush()
    return process


def test_silence_ends_what_runs_there() -> None:
    """The pipe stays open: the rig's machine may have lost its power."""
    process = start_there(silence_s=0.2)
    assert process.stdout is not None
    assert process.stdout.read().decode().split("\n")[-2] == "m: ended"
    assert process.wait() == 0
    process.communicate()


def test_a_guard_that_is_gone_and_one_that_lives() -> None:
    process = start_there()
    assert process.stdout is not None
    word, pid, start, step = process.stdout.readline().decode().split()[1:]
    assert (word, pid, step) == ("at", str(process.pid), "-") and int(start) == stat_of(process.pid).start  # type: ignore[union-attr]
    look = {"pid": int(pid), "start": int(start), "limit_s": 0.0}

    def looked() -> bytes:
        command = [sys.executable, "-I", "-S", "-c", remote.BOOT]
        return subprocess.run(command, input=remote.message(look=look), stdout=subprocess.PIPE).stdout.strip()

    assert looked() == b"lives"
    process.communicate()
    assert looked() == b"gone"


SLURMS = {"SLURM_JOB_GPUS": "4,5,6", "CUDA_VISIBLE_DEVICES": "4,5,6"}


@pytest.mark.parametrize(
    ("wanted", "environ", "devices"),
    [
        (("0", "1"), SLURMS, "4,5"),
        (("2",), {"SLURM_STEP_GPUS": "2", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}, "GPU-c"),
        (("0",), {"CUDA_VISIBLE_DEVICES": "7"}, None),
        ((), SLURMS, None),
    ],
)
def test_planned_gpus_count_those_of_the_step(
    wanted: tuple[str, ...], environ: Mapping[str, str], devices: str | None
) -> None:
    assert node.gpus_of_step(wanted, environ) == devices


@pytest.mark.parametrize("wanted", [("3",), ("0", "GPU-x")])
def test_a_step_with_too_few_gpus(wanted: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="Slurm gave 3 to this step"):
        node.gpus_of_step(wanted, SLURMS)


def test_too_few_gpus_there_are_said_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SLURMS.items():
        monkeypatch.setenv(name, value)
    process = start_there(gpus=["3"])
    out, _ = process.communicate()
    assert b"ValueError: GPU 3 wanted, and Slurm gave 3" in out and b"m: exit 1\nm: ended" in out


@pytest.mark.parametrize(("after", "held"), [(100, ""), (9100, "m: held GPU 0: 9000 MiB more in use than before")])
def test_gpu_memory_that_is_not_back_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, held: str
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/asked ] && m={after} || m=100\n: > {tmp_path}/asked\necho 0, GPU-a, $m\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    process = start_there(gpus=["0"], argv=["sh", "-c", "exit 0"])
    # The pipe stays open: its end would tell the guard to end the server, which is quicker some times.
    assert process.stdout is not None
    lines = process.stdout.read().decode().splitlines()
    process.communicate()
    assert lines[-1] == "m: ended" and (held in lines[-2] if held else lines[-2] == "m: exit 0")


def engine(folder: Path, told: str) -> Path:
    """A program whose `--version` says something."""
    program = folder / "serve"
    program.write_text(f"#!/bin/sh\n{told}\n")
    program.chmod(0o755)
    return program


def test_an_engine_is_asked_on_its_own_machine(tmp_path: Path) -> None:
    program = engine(tmp_path, 'echo "engine of $MACHINE"')
    way = Pipe(f"MACHINE=far; export MACHINE; cat | {shlex.join((sys.executable, '-I', '-S', '-c', remote.BOOT))}")
    assert remote.engine(way, "far", (str(program), "serve")) == {"vllm": "engine of far"}


def test_the_probe_goes_along_to_an_environment_there(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, line in (("vllm", "exit 1"), ("python", f'exec {sys.executable} "$@"')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    known = remote.engine(Pipe(), "far", (str(tmp_path / "bin" / "vllm"), "serve"))
    assert known["python"] == platform.python_version() and known.keys() == provenance.UNKNOWN.keys()


@pytest.mark.parametrize("way", ["exit 255", "cat > /dev/null; echo no JSON", "cat > /dev/null; echo '[1]'"])
def test_an_engine_that_cannot_be_asked_is_not_known(way: str) -> None:
    assert remote.engine(Pipe(way), "far", ("vllm", "serve")) == {}
    assert remote.engine(Pipe(), "far", ("/no/such/vllm", "serve")) == {}
