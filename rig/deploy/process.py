"""One guarded process: started through the guard, watched by log, exit and tree, ended as a tree."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rig.deploy import guard
from rig.deploy.events import Event, OnEvent
from rig.deploy.logs import LogTail, decisive_line, engine_dead, progress
from rig.errors import StartFailed

LOG_POLL_S = 0.25
TREE_POLL_S = 1.0
# A log is quiet, so the story of a failure is complete, after this long; waited for at most QUIET_LIMIT_S.
QUIET_S = 0.5
QUIET_LIMIT_S = 3.0
# Beyond the grace the guard needs its own time: ORPHAN_GRACE_S where it relays, KILL_WAIT_S and the reaping.
GUARD_MARGIN_S = guard.ORPHAN_GRACE_S + guard.KILL_WAIT_S + 5
# vLLM names its processes so (setproctitle): VLLM::EngineCore, VLLM::Worker_TP0.
ENGINE_NAME = "VLLM::"


@dataclass(frozen=True)
class Failure:
    """Why a process is of no more use: `what` happened, and the log's decisive line.

    Where no line tells of a failure, `line` is the last one and `is_cause` is false.
    """

    what: str
    line: str | None
    is_cause: bool = True


class GuardedProcess:
    """A server or the proxy. `failed` is done as soon as it ended, or its engine did while it lives on.

    `pid` is the command's own process, `guard_pid` its parent's; `started_unix` is in seconds.
    """

    def __init__(self, name: str, log: Path, grace_s: float, on_event: OnEvent, has_engine: bool) -> None:
        self.name = name
        self.log = log
        self.pid: int | None = None
        self.guard_pid: int | None = None
        self.started_unix = time.time()
        self.failed: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self._grace_s = grace_s
        self._on_event = on_event
        self._has_engine = has_engine
        self._tail = LogTail(log, from_end=True)
        self._told: set[str] = set()
        self._engine: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._tree: dict[int, guard.Stat] = {}
        self._code: int | None = None
        self._left: list[str] = []
        self._stopping = False
        self._launched = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, argv: Sequence[str], env: Mapping[str, str], relay: bool = False) -> None:
        """Starts the command under its guard; returns when its pid is known, or the guard has ended.

        With `relay` the command's input is what `send` gives it, and signs of life. Raises StartFailed where the system
        does not start it.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        reader = asyncio.StreamReader()
        read_end, write_end = os.pipe()
        self._status, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb")
        )
        options = ["--grace", str(self._grace_s), "--status-fd", str(write_end)]
        options += ["--relay", "1"] if relay else []
        with self.log.open("ab") as output:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", guard.__file__, *options, "--", *argv),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=dict(env),
                    pass_fds=(write_end,),
                    # A group, not a session: Linux gives each session a scheduling group of its own, and engines
                    # that poll with sched_yield then never yield to one another on a machine with few cores.
                    process_group=0,
                )
            except BaseException as error:
                self._status.close()
                if isinstance(error, OSError):
                    # More words or variables than the system takes, no memory, no further process: this launch alone.
                    raise StartFailed(f"{self.name} could not be started: {error.strerror}", self.name) from error
                raise
            finally:
                os.close(write_end)
        self.guard_pid = self._process.pid
        self._tasks = [asyncio.create_task(self._follow_status(reader)), asyncio.create_task(self._follow_log())]
        await self._launched.wait()

    def send(self, data: bytes) -> None:
        """Gives the command, which was started to relay, something to read."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    def tree(self) -> list[guard.Stat]:
        """The guard and all living descendants."""
        if self.guard_pid is None or (own := guard.stat_of(self.guard_pid)) is None:
            return []
        return [own, *guard.descendants(self.guard_pid)]

    async def stop(self) -> tuple[str, ...]:
        """Ends the tree, within the grace and a margin; returns `name: pid N (command)` of what is left."""
        if self.guard_pid is None:
            return ()
        self._stopping = True
        self._remember()
        with suppress(ProcessLookupError):
            self._process.terminate()
        # Not shorter than the guard's own bounds, else it would be interrupted while it verifies.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s + GUARD_MARGIN_S):
                await self._process.wait()
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._status.close()
        self._kill_remembered()
        return tuple(f"{self.name}: {left}" for left in await self._leftovers())

    def catch_up(self) -> None:
        """Reads the log to its present end, so that its events come before what follows."""
        while self._read():
            pass

    def last_line(self) -> str | None:
        """The last thing the log says: where a server hangs."""
        self.catch_up()
        return next((line.strip() for line in reversed(self._tail.text().splitlines()) if line.strip()), None)

    async def _follow_status(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            word, _, rest = line.decode().strip().partition(" ")
            if word == "started":
                self.pid = int(rest)
                self._launched.set()
            elif word == "exit":
                self._code = int(rest)
                self._fail(self._ending(self._code))
            elif word == "left":
                self._left.append(rest)
        self._launched.set()
        if self._code is None and not self._stopping:
            self._kill_remembered()
            self._fail("ended: its guard process was killed")

    async def _follow_log(self) -> None:
        next_look = 0.0
        while True:
            lines = self._read()
            if self._has_engine and not self.failed.done():
                if any(engine_dead(line) for line in lines):
                    await self._wait_quiet()
                    self._fail("lost its engine")
                elif time.monotonic() >= next_look:
                    next_look = time.monotonic() + TREE_POLL_S
                    if (gone := self._lost_engine()) is not None:
                        await self._wait_quiet()
                        self._fail(f"lost its engine process {gone}")
            await asyncio.sleep(LOG_POLL_S)

    def _read(self) -> list[str]:
        lines = self._tail.read_new()
        for line in lines:
            text = progress(line) if self._has_engine else None
            if text is not None and text not in self._told:
                self._told.add(text)
                self._on_event(Event(self.name, "loading", text))
        return lines

    async def _wait_quiet(self) -> None:
        deadline = time.monotonic() + QUIET_LIMIT_S
        quiet_since = time.monotonic()
        while not self.failed.done() and time.monotonic() < min(deadline, quiet_since + QUIET_S):
            await asyncio.sleep(LOG_POLL_S / 5)
            if self._read():
                quiet_since = time.monotonic()

    def _ending(self, code: int) -> str:
        """What the command's end means."""
        return exit_text(code)

    def _fail(self, what: str) -> None:
        if not self._stopping and not self.failed.done():
            last = self.last_line()
            cause = decisive_line(self._tail.text())
            self.failed.set_result(Failure(what, cause or last, is_cause=cause is not None))

    def _remember(self) -> dict[int, guard.Stat]:
        """Looks at the tree and keeps it with start times, so that it can be found if the guard is lost."""
        living = {stat.pid: stat for stat in self.tree()}
        self._tree.update(living)
        return living

    def _lost_engine(self) -> str | None:
        living = self._remember()
        for pid, start in self._engine.items():
            if pid not in living or living[pid].start != start:
                return f"(pid {pid})" if self.pid in living else None
        # A child between fork and exec, or a mere fork, bears its parent's name, and the former not for long.
        seen = {
            stat.pid: stat.start
            for stat in living.values()
            if stat.name.startswith(ENGINE_NAME)
            and (stat.parent not in living or living[stat.parent].name != stat.name)
        }
        self._engine.update({pid: start for pid, start in seen.items() if self._seen.get(pid) == start})
        self._seen = seen
        return None

    def _remembered(self) -> list[guard.Stat]:
        found = (guard.stat_of(pid) for pid in self._tree)
        return [now for now in found if now and now.start == self._tree[now.pid].start and now.lives]

    def _kill_remembered(self) -> None:
        for stat in self._remembered():
            with suppress(OSError):
                os.kill(stat.pid, signal.SIGKILL)

    async def _leftovers(self) -> list[str]:
        deadline = time.monotonic() + GUARD_MARGIN_S
        while (left := self._remembered()) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(LOG_POLL_S / 5)
        return [f"pid {stat.pid} ({stat.name})" for stat in left]


def exit_text(code: int) -> str:
    """`ended with exit code 1`, `was ended by SIGKILL`; a negative code is a signal's number."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
