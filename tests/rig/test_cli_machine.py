"""What `pdrig sweep` and `pdrig selftest` do with the machine before anything starts: its GPUs, what an earlier
attempt left running, ports."""

from __future__ import annotations

import fcntl
import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rig import run as runs
from rig.cli import main
from rig.cli_common import planned_sweep
from rig.deploy.lock import lock_file
from rig.deploy.record import boot_id, identity
from rig.store import RunFolder

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "selftest_sim.yaml"
COMMANDS = [["sweep"], ["selftest", "--config"]]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> list[str]:
    """The lines on stderr of a command that ends as bad usage."""
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in argv])
    assert end.value.code == 2
    return capsys.readouterr().err.splitlines()


def config(folder: Path, device: str = "cpu", port: int | None = None) -> Path:
    sweep = yaml.safe_load(CONFIG.read_text())
    sweep["engines"]["sim"]["device"] = device
    if port is not None:
        sweep["cell"]["decode"]["port"] = port
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep))
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=["sweep", "selftest"])
def test_gpus_that_another_holds_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    path = lock_file()
    path.parent.mkdir(parents=True)
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(json.dumps({"pid": 4711, "run": "runs/first", "started": "then"}))
        held.flush()
        lines = refused(capsys, *command, config(tmp_path, "gpu"), "--out", tmp_path / "out")
    assert lines == [
        "pdrig: the GPUs of this machine are taken by the sweep with pid 4711 (since then, run runs/first); wait for "
        "it, or end it"
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", COMMANDS, ids=["sweep", "selftest"])
def test_what_an_earlier_attempt_left_running_is_ended_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], taken_port: int, command: list[str]
) -> None:
    file = config(tmp_path, port=taken_port)
    plan = planned_sweep(file)
    run = stored(plan, file, tmp_path, selftest=command[0] == "selftest")
    engine = subprocess.Popen(["sleep", "1000"], process_group=0)
    try:
        folder = run.deployment("d")
        folder.mkdir(parents=True)
        processes = {"decode-0": {"guard": None, "process": identity(engine.pid)}}
        about = {"boot_id": boot_id(), "rig": None, "processes": processes}
        (folder / "deployment.json").write_text(json.dumps(about))
        first, then = refused(capsys, *command, file, "--resume", run.path)
        assert first == f"ended what was left running: d/decode-0: pid {engine.pid} (sleep)"
        assert f"port {taken_port} " in then, "ports are looked at when nothing of the run holds them any more"
        assert engine.wait() == -9
    finally:
        engine.kill()
        engine.wait()


@pytest.mark.parametrize("command", COMMANDS, ids=["sweep", "selftest"])
def test_a_run_that_is_still_being_run_is_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    file = config(tmp_path)
    run = stored(planned_sweep(file), file, tmp_path, selftest=command[0] == "selftest")
    rig = subprocess.Popen(["sleep", "1000"], process_group=0)
    try:
        folder = run.deployment("d")
        folder.mkdir(parents=True)
        about = {"boot_id": boot_id(), "rig": identity(rig.pid), "processes": {}}
        (folder / "deployment.json").write_text(json.dumps(about))
        (line,) = refused(capsys, *command, file, "--resume", run.path)
        assert f"is still being run by pid {rig.pid}" in line and rig.poll() is None
    finally:
        rig.kill()
        rig.wait()


def stored(plan: object, file: Path, parent: Path, selftest: bool) -> RunFolder:
    """A run that was begun, and of which nothing was asked yet."""
    run = runs.begin(plan, file, parent / "runs")  # type: ignore[arg-type]
    if selftest:
        info = run.read_info()
        run.write_info(replace(info, resolved={**info.resolved, "selftest": "full"}))
    return run
