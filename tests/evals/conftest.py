"""A server on loopback that answers exactly as a test says, byte by byte, and the GSM8K files."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from evals.client import Request, Target, Timeouts, send
from evals.records import RequestRecord
from evals.session import Session


@dataclass
class Call:
    """One request as the server got it, and the means to answer it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter
    closed: bool = False

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: str = "200 OK", kind: str = "text/event-stream", **headers: str) -> None:
        """Headers of a chunked answer."""
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Transfer-Encoding: chunked"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def event(self, data: Any) -> None:
        await self.chunk(b"data: " + (data if isinstance(data, bytes) else orjson.dumps(data)) + b"\n\n")

    async def end(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def json(self, data: Any, status: str = "200 OK", **headers: str) -> None:
        await self.whole(orjson.dumps(data), status, "application/json", **headers)

    async def whole(self, data: bytes, status: str = "200 OK", kind: str = "text/plain", **headers: str) -> None:
        extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n{extra}\r\n"
        await self.send(head.encode() + data)

    async def stream(self, *texts: str, usage: dict[str, Any] | None = None, finish: str | None = "stop") -> None:
        """A well-behaved streamed completion."""
        await self.head()
        for text in texts:
            await self.event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})
        if finish:
            await self.event({"choices": [{"index": 0, "text": "", "finish_reason": finish}]})
        if usage:
            await self.event({"choices": [], "usage": usage})
        await self.event(b"[DONE]")
        await self.end()

    def hang_up(self) -> None:
        """Close the connection in order."""
        self.closed = True
        self.writer.close()

    def reset(self) -> None:
        """Break the connection: the client gets a TCP reset."""
        self.closed = True
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Behaviour = Callable[[Call], Awaitable[None]]


@dataclass
class Server:
    """`behave` is set by the test; `calls` are the requests so far, `active` and `peak` those in flight."""

    url: str = ""
    behave: Behaviour | None = None
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    active: int = 0
    peak: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode().strip().split("\r\n")
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                call = Call(first.split(" ")[1], headers, orjson.loads(body), writer)
                self.calls.append(call)
                self.active += 1
                self.peak = max(self.peak, self.active)
                try:
                    assert self.behave is not None
                    await self.behave(call)
                finally:
                    self.active -= 1
                if call.closed:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    state = Server()
    listening = await asyncio.start_server(state.serve, "127.0.0.1", 0, backlog=4096)
    state.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    before = asyncio.all_tasks()
    try:
        yield state
    finally:
        listening.close()
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@pytest.fixture
def ask() -> Callable[..., Awaitable[RequestRecord]]:
    """Send one request, with options of `send` and of its target, and give its record."""

    async def one(
        url: str, *, stream: bool = True, timeouts: Timeouts | None = None, retries: int = 0, **target: Any
    ) -> RequestRecord:
        request = Request("s-0", "Question: 1+1?\nAnswer:", {"max_tokens": 8, "temperature": 0.0})
        async with Session() as session:
            return await send(
                session,
                Target(url, "m", **target),
                request,
                t0=asyncio.get_running_loop().time(),
                stream=stream,
                timeouts=timeouts or Timeouts(),
                retries=retries,
            )

    return one


@pytest.fixture(scope="session")
def gsm8k_folder() -> Path:
    """The folder of the GSM8K files, from PDRIG_DATA."""
    folder = os.environ.get("PDRIG_DATA")
    if folder and (Path(folder) / "test.jsonl").is_file() and (Path(folder) / "train.jsonl").is_file():
        return Path(folder)
    reason = "PDRIG_DATA must name a folder with GSM8K's train.jsonl and test.jsonl"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
