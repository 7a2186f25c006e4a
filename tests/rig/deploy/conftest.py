"""Small servers that behave, or misbehave, as vLLM does over HTTP; and plans that start them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from processes import alive
from sim_sweeps import free_ports

from rig.deploy import Deployment, Event, launch
from rig.deploy.guard import descendants
from rig.planned import AttachedServer, DeploymentPlan, Limits, ProxyPlan, ServerPlan
from rig.records import Role

SERVER = '''
import ctypes, json, os, signal, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, FAULT = int(sys.argv[1]), sys.argv[2]
VALUES = [-6.1] * 5 if FAULT == "equal" else [-0.1, -2.5, -4.0, -5.0, -6.0]
TEXT, TOKEN = ("", "<|endoftext|>") if FAULT == "equal" else (" ok", " ok")
FATAL = """(EngineCore pid=7) ERROR 11-29 19:49:43 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore pid=7) ERROR 11-29 19:49:43 [core.py:1512] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-29 19:49:43 [core.py:1512]   File "core.py", line 1, in step
(EngineCore pid=7) ERROR 11-29 19:49:43 [core.py:1512] AssertionError: CPU GDN attention requires BF16."""


def say(text):
    """In one write, so that nobody reads a half of it."""
    os.write(2, (text + "\\n").encode())


def engine():
    """A child in a session of its own, named as vLLM names its engine: it bears the name once this returns."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        ctypes.CDLL(None).prctl(15, b"VLLM::EngineCore", 0, 0, 0)
        os.write(write_end, b"named")
        while True:
            signal.pause()
    os.read(read_end, 5)
    return pid


class Handler(BaseHTTPRequestHandler):
    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/v1/models":
            self.answer(200, {"data": [{"id": "tiny"}]})
        elif self.path == "/control/fatal":
            say(FATAL)
            self.answer(200, {})
        else:
            self.answer(200, {})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        if FAULT == "first_exit":
            say("Traceback (most recent call last):\\n  File x\\nValueError: Unexpected head dim size, 32")
            os._exit(1)
        if FAULT == "first_fatal":
            say(FATAL)
            return self.answer(500, {"error": "EngineCore encountered an issue."})
        if FAULT == "hang_answer":
            threading.Event().wait()
        top = dict(zip([TOKEN, "a", "b", "c", "d"], VALUES))
        logprobs = {"tokens": [TOKEN], "token_logprobs": [VALUES[0]], "top_logprobs": [top]}
        self.answer(200, {"choices": [{"text": TEXT, "logprobs": logprobs}]})

    def log_message(self, *args):
        pass


if FAULT == "exit":
    say("Traceback (most recent call last):\\n  File x\\nOSError: no such model")
    sys.exit(3)
if FAULT == "in_use":
    say("Traceback (most recent call last):\\n  File x\\nOSError: [Errno 98] Address already in use")
    sys.exit(1)
if FAULT in ("fatal", "hang"):
    say(FATAL if FAULT == "fatal" else "INFO 11-29 19:49:35 [x.py:1] Starting to load model tiny...")
    while True:
        signal.pause()
child = engine() if FAULT == "engine" else None
if FAULT == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
say("INFO 11-29 19:49:35 [x.py:1] Starting to load model tiny...")
ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
'''

PROXY = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, FAULT, PREFILLS, DECODES = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
LEGS = open(sys.argv[sys.argv.index("--legs") + 1], "a")
count = 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self):
        global count
        if self.path == "/legs/flush":
            LEGS.flush()
            return self.do_GET()
        self.rfile.read(int(self.headers["content-length"]))
        n, count = count, count + 1
        top = {" ok": -0.1, " a": -3.0}
        choice = {"text": " ok", "logprobs": {"tokens": [" ok"], "token_logprobs": [-0.1], "top_logprobs": [top]}}
        data = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        if FAULT != "silent":
            self.send_header("x-pdrig-prefill", f"prefill-{n % PREFILLS}")
            self.send_header("x-pdrig-decode", f"decode-{n % DECODES}")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        LEGS.write("{}\\n")
        self.wfile.write(data)

    def log_message(self, *args):
        pass


ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
"""

LONG = Limits(start_s=100, check_s=100, stop_s=20)


class Rig:
    """Makes plans of fake servers, launches them, keeps the events, and stops all that was launched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.launched: list[Deployment] = []
        self.server_script = folder / "server.py"
        self.server_script.write_text(SERVER)
        self.proxy_script = folder / "proxy.py"
        self.proxy_script.write_text(PROXY)

    def server(self, name: str = "decode-0", fault: str = "none", role: Role = "decode") -> ServerPlan:
        (port,) = free_ports(1)
        argv = (sys.executable, str(self.server_script), str(port), fault)
        return ServerPlan(name, role, argv, {"A_TOKEN": "hush"}, port, f"http://127.0.0.1:{port}", "tiny")

    def proxy(self, fault: str = "none", prefills: int = 1, decodes: int = 1) -> ProxyPlan:
        (port,) = free_ports(1)
        argv = (sys.executable, str(self.proxy_script), str(port), fault, str(prefills), str(decodes))
        return ProxyPlan(argv, port, f"http://127.0.0.1:{port}")

    def plan(self, *servers: ServerPlan, proxy: ProxyPlan | None = None, limits: Limits = LONG) -> DeploymentPlan:
        kind = "pd" if proxy else "monolithic"
        return DeploymentPlan("d1", kind, "local", "tiny", None, servers, (), proxy, limits)

    def attached(self, *running: ServerPlan, log: Path | None = None) -> DeploymentPlan:
        servers = tuple(AttachedServer(s.name, s.role, s.url, "tiny", None, str(log) if log else None) for s in running)
        return DeploymentPlan("d2", "monolithic", "attach", "tiny", None, (), servers, None, LONG)

    async def launch(self, plan: DeploymentPlan) -> Deployment:
        deployment = await launch(plan, self.folder / plan.id, self.events.append)
        self.launched.append(deployment)
        return deployment

    @staticmethod
    def gone(pid: int) -> bool:
        return not alive(pid)

    def phases(self, server: str) -> list[str]:
        return [event.phase for event in self.events if event.server == server]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    yield made
    for deployment in made.launched:
        await deployment.stop()
    assert not [stat for stat in descendants(os.getpid()) if any("guard.py" in part for part in _cmdline(stat.pid))]


def _cmdline(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Waits for a condition that another process brings about; the test's own limit bounds it."""

    async def wait(condition: Callable[[], Any]) -> Any:
        while not (value := condition()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return value

    return wait
