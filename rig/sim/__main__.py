"""Start one simulated engine: `python -m rig.sim MODEL [any option of vllm serve]`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from functools import partial

from aiohttp import web

from rig.sim import config, log
from rig.sim.config import Settings
from rig.sim.engine import Engine
from rig.sim.faults import Planted
from rig.sim.options import OptionError, Options, parse
from rig.sim.server import MAX_BODY_BYTES, Face

_CHILD = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(float(sys.argv[1]))"


def main() -> int:
    try:
        options = parse(sys.argv[1:], os.environ)
        settings = config.load(options, os.environ)
    except OptionError as error:
        print(f"rig.sim: {error}", file=sys.stderr)
        return 2
    planted = Planted(settings.faults)
    if planted.at_start("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = planted.at_start("orphan_child")
    if child:
        _leave_child(float(child.param("lifetime_s")), bool(child.param("new_session")))
    slow = planted.at_start("slow_start")
    if slow:
        time.sleep(float(slow.param("ms")) / 1000)
    failing = planted.at_start("start_error")
    if failing:
        log.line("ERROR", "core.py:1510", "EngineCore failed to start.")
        log.line("ERROR", "core.py:1510", f"Traceback (most recent call last):\n{failing.param('message')}")
        if failing.param("exits"):
            return int(failing.param("code"))
        while True:
            signal.pause()
    try:
        return _run(options, settings, stoppable=not planted.at_start("ignore_sigterm"))
    except OSError as error:
        log.line("ERROR", "core.py:1510", f"EngineCore failed to start.\n{type(error).__name__}: {error}")
        return 1


def _leave_child(lifetime_s: float, new_session: bool) -> None:
    """Start a process that outlives this one, as an engine core that nobody told to stop."""
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(lifetime_s), "VLLM::EngineCore"], start_new_session=new_session
    )
    log.line("INFO", "core.py:112", f"EngineCore runs in process {child.pid}")


def _run(options: Options, settings: Settings, stoppable: bool) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_serve(options, settings, stoppable))
    return uvloop.run(_serve(options, settings, stoppable))


async def _serve(options: Options, settings: Settings, stoppable: bool) -> int:
    """Serve until a signal says to stop. Raises OSError when a port is taken."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    if stoppable:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    engine = Engine(options, settings, os.environ)
    runners = []
    if engine.tickets:
        side = web.ServerRunner(web.Server(engine.tickets.handle, access_log=None))
        runners.append(side)
        await side.setup()
        for rank in range(options.dp):
            await web.TCPSite(side, options.side_host, options.side_port + rank).start()
    face = web.Server(
        Face(engine).handle,
        request_factory=partial(web.BaseRequest, loop=loop, client_max_size=MAX_BODY_BYTES),
        handler_cancellation=True,
        keepalive_timeout=settings.keep_alive_s,
        access_log=None,
    )
    runner = web.ServerRunner(face, shutdown_timeout=0.5)
    runners.append(runner)
    await runner.setup()
    await web.TCPSite(runner, options.host, options.port, backlog=2048).start()
    log.line("INFO", "launcher.py:40", f"Started on http://{options.host}:{options.port}", process="APIServer")
    log.line("INFO", "launcher.py:41", f"ignored options: {', '.join(options.ignored) or 'none'}", process="APIServer")
    await stop.wait()
    for each in reversed(runners):
        await each.cleanup()
    if engine.reader:
        await engine.reader.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
