"""The parent of one server: whatever happens to the server or to the rig, nothing of the server outlives it.

Run by file path with the standard library alone, so that it starts in milliseconds:

    python -I -S guard.py --grace SECONDS [--status-fd N] [--relay 1] -- COMMAND...

It is a subreaper, so descendants that change their session, or whose parent was killed, stay its own. Its
standard input is a pipe from the rig: end of file (the rig is gone, even by SIGKILL) ends the tree, and so do
SIGTERM, SIGINT, SIGHUP; a second one cuts the grace short. When the command ends, what it left running is ended
too, and the guard ends as the command did, by code or by signal.

With `--relay 1` the command is the way to another machine (ssh, srun) and has a guard at its other end: it is given
what comes in on standard input, and after whole lines an empty one a second as a sign of life. It is ended by closing
that pipe, so that the other guard can end its tree and this one sees that it has.

Lines on the status descriptor: `started PID`, `ending` (the guard was told to), `exit CODE` (negative: by that
signal), `left PID NAME` for a process that not even SIGKILL could end. Linux only (prctl, /proc).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import signal
import sys
import time
from typing import NamedTuple, NoReturn

# From Linux's include/uapi/linux/prctl.h.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

ORPHAN_GRACE_S = 5.0
KILL_WAIT_S = 10.0
PARENT_POLL_MS = 1000
# The largest that an unprivileged user may ask for (proc(5), /proc/sys/fs/pipe-max-size): never full, never waited for.
RELAY_BYTES = 1 << 20
TREE_POLL_MS = 50

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stat(NamedTuple):
    """What /proc/PID/stat says: `start` is in clock ticks since boot and tells a reused pid from the old one."""

    pid: int
    name: str
    state: str
    parent: int
    start: int

    @property
    def lives(self) -> bool:
        """Whether it has not ended; a zombie has, and waits for its parent alone."""
        return self.state not in "ZX"


def stat_of(pid: int) -> Stat | None:
    """The process with this pid; None if there is none. Field numbers: proc_pid_stat(5)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        return None
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    return Stat(pid, head.partition("(")[2], fields[0], int(fields[1]), int(fields[19]))


def descendants(root: int) -> list[Stat]:
    """All living processes below `root`; zombies are not living, but what is below them is looked at."""
    children: dict[int, list[Stat]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit() and (stat := stat_of(int(entry))) is not None:
            children.setdefault(stat.parent, []).append(stat)
    found: list[Stat] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        queue.extend(stat.pid for stat in below)
        found.extend(stat for stat in below if stat.lives)
    return found


def _relay() -> tuple[int, int]:
    """A pipe that takes a whole message without being read, and is never waited for."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, RELAY_BYTES)
    os.set_blocking(write_end, False)
    return read_end, write_end


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _spawn(command: list[str], stdin: int) -> int:
    guard = os.getpid()
    # Until the child has its own handlers, a signal to it would be written to the guard's wakeup pipe.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid:
        # The child does so as well: whichever is first, its group is known when its pid is told.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid
    try:
        os.setpgid(0, 0)
        # If the guard itself is killed, at least the server's first process goes with it.
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (*ENDING, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.dup2(stdin, 0)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


class Guard:
    """One command, its descendants, and how the command ended (`code`; None while it runs).

    `prefix` stands before each line on the status descriptor. With `silence_s` a standard input that says nothing for
    so long is as good as one that has ended.
    """

    def __init__(
        self,
        command: list[str],
        grace_s: float,
        status_fd: int | None,
        *,
        relay: bool = False,
        prefix: str = "",
        silence_s: float | None = None,
    ) -> None:
        self._grace_s = grace_s
        self._status_fd = status_fd
        self._prefix = prefix
        self._silence_s = silence_s
        self._heard = time.monotonic()
        self._parent = os.getppid()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._wakeup, write_end = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end)
        for number in (*ENDING, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self.code: int | None = None
        self._hurry = False
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._poll.register(self._wakeup, select.POLLIN)
        self._relay: int | None = None
        self._relayed_line = False
        if relay:
            stdin, self._relay = _relay()
        else:
            stdin = os.open(os.devnull, os.O_RDONLY)
        self._pid = _spawn(command, stdin)
        os.close(stdin)
        self.report(f"started {self._pid}")

    def run(self) -> int:
        """Until the command has ended or must end; then ends the tree. Returns the command's code."""
        while self.code is None and not self._must_end(PARENT_POLL_MS):
            self._reap()
            if self._relayed_line:
                self._pass_on(b"\n")
        if self.code is None:
            self.report("ending")
        grace_s = self._grace_s if self.code is None else min(self._grace_s, ORPHAN_GRACE_S)
        for stat in self._end_tree(grace_s):
            self.report(f"left {stat.pid} {stat.name}")
        return 1 if self.code is None else self.code

    def report(self, line: str) -> None:
        """Writes a line to the status descriptor, as long as somebody reads it."""
        if self._status_fd is None:
            return
        try:
            os.write(self._status_fd, f"{self._prefix}{line}\n".encode())
        except OSError:
            self._status_fd = None

    def _pass_on(self, data: bytes) -> None:
        if self._relay is None:
            return
        try:
            os.write(self._relay, data)
        except OSError:
            # Full, so not read: the other end notices the silence. Broken: the command is about to end.
            return

    def _must_end(self, timeout_ms: int) -> bool:
        """Waits for a signal or for the rig's end; True if the tree must go."""
        end = False
        for descriptor, _ in self._poll.poll(timeout_ms):
            if descriptor == 0:
                if data := os.read(0, RELAY_BYTES):
                    self._heard = time.monotonic()
                    self._pass_on(data)
                    self._relayed_line = data.endswith(b"\n")
                else:
                    self._poll.unregister(0)
                    end = True
            else:
                end = end or any(number in ENDING for number in os.read(self._wakeup, 4096))
        # The pipe stays open if a forked child of the rig still holds it; the parent's pid does not lie.
        if os.getppid() != self._parent:
            self._parent = os.getppid()
            end = True
        if self._silence_s is not None and time.monotonic() - self._heard > self._silence_s:
            end = True
        if end:
            self._silence_s = None
        return end

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self.code = os.waitstatus_to_exitcode(status)
                self.report(f"exit {self.code}")

    def _signal_tree(self, number: signal.Signals) -> list[Stat]:
        tree = descendants(os.getpid())
        for stat in tree:
            try:
                os.kill(stat.pid, number)
            except OSError:
                continue
        return tree

    def _wait_tree(self, limit_s: float) -> list[Stat]:
        """What is still below after so long, or once somebody is in a hurry."""
        deadline = time.monotonic() + limit_s
        while (tree := descendants(os.getpid())) and time.monotonic() < deadline and not self._hurry:
            self._hurry = self._must_end(TREE_POLL_MS)
            self._reap()
        return tree

    def _end_tree(self, grace_s: float) -> list[Stat]:
        """SIGTERM, then after the grace SIGKILL until nothing is below; what withstands both is returned.

        What is relayed to is first told by the end of its input, and has the grace for that.
        """
        if self._relay is not None:
            os.close(self._relay)
            self._relay = None
            if not self._wait_tree(grace_s):
                self._reap()
                return []
            grace_s = ORPHAN_GRACE_S
        self._signal_tree(signal.SIGTERM)
        tree = self._wait_tree(grace_s)
        deadline = time.monotonic() + KILL_WAIT_S
        while tree and time.monotonic() < deadline:
            self._signal_tree(signal.SIGKILL)
            self._must_end(TREE_POLL_MS)
            self._reap()
            tree = descendants(os.getpid())
        self._reap()
        return tree


def _end_as(code: int) -> NoReturn:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else 128 - code)


def main(arguments: list[str]) -> NoReturn:
    """Reads the options, guards the command, ends as it did."""
    split = arguments.index("--")
    options = dict(zip(arguments[:split:2], arguments[1:split:2], strict=True))
    status_fd = int(options["--status-fd"]) if "--status-fd" in options else None
    if status_fd is not None:
        os.set_inheritable(status_fd, False)
    guard = Guard(arguments[split + 1 :], float(options["--grace"]), status_fd, relay="--relay" in options)
    _end_as(guard.run())


if __name__ == "__main__":
    main(sys.argv[1:])
