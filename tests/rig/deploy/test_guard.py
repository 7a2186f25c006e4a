"""The guard alone: codes, signals, its pipe, and processes that try to get away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rig.deploy import guard

Until = Callable[[Callable[[], Any]], Any]


def start(*command: str, grace: str = "20") -> tuple[subprocess.Popen[bytes], int]:
    """The guard and the descriptor of its status lines."""
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, "--grace", grace, "--status-fd", str(write_end), "--", *command],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(write_end,),
    )
    os.close(write_end)
    return process, read_end


def words(read_end: int) -> list[list[str]]:
    """All status lines until the guard has ended."""
    with os.fdopen(read_end) as file:
        return [line.split() for line in file]


ENDS = [
    (("sh", "-c", "exit 0"), 0),
    (("sh", "-c", "exit 7"), 7),
    (("sh", "-c", "kill -TERM $$"), -signal.SIGTERM),
    (("sh", "-c", "kill -KILL $$"), -signal.SIGKILL),
    (("sh", "-c", "kill -SEGV $$"), -signal.SIGSEGV),
    (("/no/such/command",), 127),
]


@pytest.mark.parametrize(("command", "code"), ENDS)
def test_it_ends_as_the_command_did(command: tuple[str, ...], code: int) -> None:
    process, status = start(*command)
    lines = words(status)
    process.communicate()
    assert process.returncode == code
    assert [line[0] for line in lines] == ["started", "exit"]
    assert lines[1][1] == str(int(code))


ESCAPE = "setsid sleep 1000 & setsid sh -c 'sleep 1000 & sleep 1000' & (setsid sleep 1000 &) ; "


@pytest.mark.parametrize("way", ["pipe", "signal", "command ends", "command killed"])
async def test_nothing_gets_away(way: str, tmp_path: Path, until: Until) -> None:
    """The command's children leave its session and its process group, one is orphaned."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process, status = start("sh", "-c", f"{ESCAPE} read x < {fifo}")
    pid = int(os.read(status, 100).split()[1])
    below = await until(lambda: len(found := guard.descendants(process.pid)) == 6 and found)
    assert process.stdin
    if way == "pipe":
        process.stdin.close()
    elif way == "signal":
        process.terminate()
    elif way == "command killed":
        os.kill(pid, signal.SIGKILL)
    else:
        fifo.write_text("\n")
    process.wait()
    os.close(status)
    assert not [s for s in below if (now := guard.stat_of(s.pid)) and now.start == s.start]


STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"heard\\n"))
os.write(2, b"up\\n")
while True:
    signal.pause()
"""


def test_a_second_sigterm_cuts_the_grace_short() -> None:
    process, status = start(sys.executable, "-c", STUBBORN, grace="1000")
    assert process.stderr
    assert process.stderr.readline() == b"up\n"
    process.terminate()
    assert process.stderr.readline() == b"heard\n"
    process.terminate()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    os.close(status)


def test_stat_of_a_process_with_a_strange_name() -> None:
    script = "import ctypes; ctypes.CDLL(None).prctl(15, b'a) R (b', 0, 0, 0); print('up', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        stat = guard.stat_of(process.pid)
        assert stat is not None
        assert (stat.name, stat.parent) == ("a) R (b", os.getpid())
        process.communicate(b"\n")
    assert guard.stat_of(process.pid) is None


def relaying(*command: str) -> subprocess.Popen[bytes]:
    options = ("--grace", "20", "--relay", "1")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, *options, "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_what_is_relayed_comes_whole_and_signs_of_life_follow_it() -> None:
    """A sign of life within a message that comes in parts would break it."""
    read = (
        "import os, sys; print(os.read(0, 4), flush=True); lines = os.fdopen(0);"
        "print(repr(lines.readline()), flush=True); print(repr(lines.readline()), flush=True)"
    )
    process = relaying(sys.executable, "-c", read)
    assert process.stdin and process.stdout
    process.stdin.write(b"one ")
    process.stdin.flush()
    assert process.stdout.readline() == b"b'one '\n"
    process.stdin.write(b"two\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"'two\\n'\n"
    assert process.stdout.readline() == b"'\\n'\n", "a sign of life"
    process.communicate()
    assert process.returncode == 0


async def test_what_is_relayed_to_is_ended_by_the_end_of_its_input(until: Until) -> None:
    """It has the grace to see to what is at its other end; a signal would cut that off."""
    command = ("sh", "-c", "trap 'echo cut off' TERM; cat > /dev/null; echo seen to; exit 5")
    process = relaying(*command)
    await until(lambda: any(stat.name == "cat" for stat in guard.descendants(process.pid)))
    process.terminate()
    out, _ = process.communicate()
    assert out == b"seen to\n" and process.returncode == 5
