"""What an earlier attempt left running: found by pid, start and group together, ended with all that is below it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import alive

from rig.deploy import guard, leftovers
from rig.deploy.record import boot_id, identity
from rig.errors import DataError, UsageError

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes in groups of their own; none outlives the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*command: str) -> subprocess.Popen[bytes]:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen(command, process_group=0, **pipes))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def write(run: Path, processes: dict[str, Any], **fields: Any) -> None:
    """The deployment.json of a launch."""
    folder = run / "deployments" / "d"
    folder.mkdir(parents=True, exist_ok=True)
    data = {"boot_id": boot_id(), "rig": None, "processes": processes} | fields
    (folder / "deployment.json").write_text(json.dumps(data))


def guarded(start: Start, *command: str) -> tuple[subprocess.Popen[bytes], int]:
    """A guard and the pid of what it guards, which has said that it runs."""
    process = start(sys.executable, "-I", "-S", guard.__file__, "--grace", "20", "--", *command)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    (below,) = guard.descendants(process.pid)[:1]
    return process, below.pid


@pytest.mark.parametrize("stopped", [False, True])
def test_a_guard_ends_its_tree_even_if_it_was_stopped(tmp_path: Path, start: Start, stopped: bool) -> None:
    process, below = guarded(start, "sh", "-c", "echo up; sleep 1000; :")
    if stopped:
        os.kill(process.pid, signal.SIGSTOP)
    write(tmp_path, {"decode-0": {"guard": identity(process.pid), "process": identity(below)}})
    found = leftovers.find(tmp_path)
    assert [(one.pid, one.is_guard, one.server) for one in found] == [
        (process.pid, True, "decode-0"),
        (below, False, "decode-0"),
    ]
    assert str(found[1]) == f"d/decode-0: pid {below} (sh)"
    leftovers.stop(found, 20)
    assert process.wait() is not None and guard.stat_of(below) is None
    assert leftovers.find(tmp_path) == []


def test_without_a_guard_what_is_known_and_what_is_below_it_is_killed(tmp_path: Path, start: Start) -> None:
    process = start("sh", "-c", "trap '' TERM; setsid sleep 1000 & echo up; wait")
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    below = {stat.pid for stat in guard.descendants(process.pid)}
    write(tmp_path, {"decode-0": {"guard": None, "process": None, "tree": [identity(process.pid)]}})
    leftovers.stop(leftovers.find(tmp_path), 20)
    assert process.wait() == -signal.SIGKILL
    assert below and not any(map(alive, below))


@pytest.mark.parametrize(
    "changed",
    [{"start": 1}, {"group": 1}, {"group": None}, {"pid": 2**22 + 1}],
    ids=["another start", "another group", "no group", "another pid"],
)
def test_a_process_that_is_not_the_one_is_left_alone(tmp_path: Path, start: Start, changed: dict[str, Any]) -> None:
    process = start("sleep", "1000")
    seen = {**(identity(process.pid) or {}), **changed}
    write(tmp_path, {"decode-0": {"guard": seen, "process": seen, "tree": [seen]}, "proxy": {}})
    assert leftovers.find(tmp_path) == []


def test_pids_of_another_boot_mean_nothing(tmp_path: Path, start: Start) -> None:
    process = start("sleep", "1000")
    write(tmp_path, {"decode-0": {"guard": identity(process.pid)}}, boot_id="another", rig=identity(process.pid))
    assert leftovers.find(tmp_path) == []
    leftovers.require_ended(tmp_path)


def test_a_run_whose_rig_lives_is_not_touched(tmp_path: Path, start: Start) -> None:
    process = start("sleep", "1000")
    write(tmp_path, {}, rig=identity(process.pid))
    with pytest.raises(UsageError, match=rf"still being run by pid {process.pid} \(d\); end it first"):
        leftovers.require_ended(tmp_path)


@pytest.mark.parametrize("left", ["", '{"boot_id": "'])
def test_a_record_that_a_crash_cut_is_told_in_a_line(tmp_path: Path, left: str) -> None:
    """What ran there is not known then, and guessing would end a stranger's process."""
    write(tmp_path, {})
    (tmp_path / "deployments" / "d" / "deployment.json").write_text(left)
    for look in (leftovers.require_ended, leftovers.find):
        with pytest.raises(DataError, match=r"deployment\.json: damaged, so what it may have left running"):
            look(tmp_path)
