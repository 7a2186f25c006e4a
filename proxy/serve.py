"""Running the proxy as a process."""

from __future__ import annotations

import functools
import logging
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile

import uvicorn
from uvicorn.supervisors import Multiprocess

from proxy.app import create_app
from proxy.errors import ProxyError
from proxy.legs import LegsWriter
from proxy.metrics import MULTIPROC_ENV
from proxy.settings import Settings

BACKLOG = 16384
"""Connections that may wait to be accepted; the kernel lowers it to net.core.somaxconn."""

CLIENT_KEEP_ALIVE_S = 75
"""Longer than clients keep a connection idle, so that ours is never closed under their next request."""

WORKER_SILENT_S = 60
"""A worker that says nothing for so long is replaced; one that only starts, or has much to do, is not."""


def serve(settings: Settings) -> int:
    """Serves until SIGTERM or SIGINT; requests in flight are given `drain` seconds. Returns the exit code.

    Raises ProxyError if the address is taken or the legs file cannot be written.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    raise_open_files()
    LegsWriter(settings.legs).close()
    listener = listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    numbers = tempfile.mkdtemp(prefix="pdrig-proxy-") if settings.workers > 1 else None
    # What comes before the server hears it is kept for it. The signal that stopped it is raised again when it is done;
    # by then it is dealt with.
    early: list[int] = []
    before = {
        sig: signal.signal(sig, lambda number, _: early.append(number)) for sig in (signal.SIGTERM, signal.SIGINT)
    }
    print(f"proxy: http://{f'[{host}]' if ':' in host else host}:{port}", file=sys.stderr, flush=True)
    try:
        if numbers is None:
            return _run_one(settings, listener, early)
        os.environ[MULTIPROC_ENV] = numbers
        workers = Multiprocess(_config(settings), sockets=[listener])
        workers.signal_queue += early
        workers.run()
        return 0
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)
        listener.close()
        if numbers is not None:
            os.environ.pop(MULTIPROC_ENV, None)
            shutil.rmtree(numbers, ignore_errors=True)


class _Server(uvicorn.Server):
    """Ends at once where it was told to before it could hear it."""

    def __init__(self, config: uvicorn.Config, early: list[int]) -> None:
        super().__init__(config)
        self._early = early

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.should_exit = self.should_exit or bool(self._early)


def _run_one(settings: Settings, listener: socket.socket, early: list[int]) -> int:
    server = _Server(_config(settings), early)
    server.run(sockets=[listener])
    return 0 if server.started else 3


def _config(settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        functools.partial(create_app, settings),
        factory=True,
        workers=settings.workers,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        backlog=BACKLOG,
        access_log=False,
        log_config=None,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=CLIENT_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.drain)),
        timeout_worker_healthcheck=WORKER_SILENT_S,
    )


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises ProxyError with exit code 3 if the port is taken, 2 if the host is not ours."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ProxyError(f"--host {host}: {error.strerror or error}") from None
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        taken = error.errno == 98
        advice = "choose another --port" if taken else "choose another --host"
        raise ProxyError(f"{host}:{port}: {error.strerror}; {advice}", 3 if taken else 2) from None
    sock.setblocking(False)
    return sock


def raise_open_files() -> None:
    """A request holds two sockets at a time: the soft limit of open files becomes the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
