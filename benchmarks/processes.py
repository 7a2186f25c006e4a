"""Processes under test: started, waited for, their CPU time read, ended."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
START_S = 60.0

_CPUCLOCK_SCHED = 2
"""Linux, include/linux/posix-timers.h: the CPU clock of a process is ~pid << 3 with this for its kind."""


def cpu_seconds(pid: int) -> float:
    """CPU time, user and system, of a process and its living children, of all their threads, to the nanosecond."""
    pids = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return sum(time.clock_gettime(~each << 3 | _CPUCLOCK_SCHED) for each in pids)


def rss_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    return float(psutil.Process(pid).memory_info().rss / 2**20)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def end_children_on_sigterm() -> None:
    """Makes SIGTERM an exception, so that what was started is ended on the way out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def raise_open_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def running(
    command: Sequence[str | Path], port: int | None = None, log: Path | None = None
) -> Iterator[tuple[int, int]]:
    """A process in a group of its own, until it listens: its pid and its port.

    Without `port` it must print the one it has. The whole group is ended on leaving.
    """
    with contextlib.ExitStack() as stack:
        errors = stack.enter_context(log.open("wb")) if log else subprocess.DEVNULL
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            stdout=subprocess.PIPE if port is None else errors,
            stderr=errors,
            start_new_session=True,
        )
        try:
            if port is None:
                assert process.stdout is not None
                port = int(stack.enter_context(process.stdout).readline())
            _wait_for(process, port)
            yield process.pid, port
        finally:
            _end(process)


@contextlib.contextmanager
def mock_engine(delay_ms: float = 0.0) -> Iterator[tuple[int, int]]:
    with running([sys.executable, "-m", "benchmarks.mock_engine", "--token-delay-ms", str(delay_ms)]) as started:
        yield started


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with {process.returncode} before it listened")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args} did not listen on {port} within {START_S:g} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            return
