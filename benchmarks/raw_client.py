"""A load generator that costs little: raw keep-alive connections, answers checked for being whole."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

import httptools


@dataclass
class Load:
    """What a load came to: seconds of each request that was answered whole, why others failed, body pieces read."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    pieces: int = 0


@dataclass(frozen=True)
class Ask:
    """One request, written out, and the number of tokens its answer must hold."""

    data: bytes
    tokens: int
    stream: bool


def ask(tokens: int, stream: bool, port: int, extra: bytes = b"") -> Ask:
    """A completion of `tokens` tokens; `extra` are further members of the body, each followed by a comma."""
    body = b'{"model":"mock","prompt":"Two and five make how much? Say it in words.",%b"max_tokens":%d,"stream":%b}'
    body %= (extra, tokens, b"true" if stream else b"false")
    head = b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
    head += b"authorization: Bearer not-a-secret\r\ncontent-length: %d\r\n\r\n"
    return Ask(head % (port, len(body)) + body, tokens, stream)


class Connection(asyncio.Protocol):
    """One connection; `send` gives the status and the whole body of the answer to one request."""

    def __init__(self) -> None:
        self._parser: httptools.HttpResponseParser
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._body: list[bytes] = []
        self._transport: asyncio.Transport
        self.pieces = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, data: bytes) -> asyncio.Future[tuple[int, bytes]]:
        self._answer = asyncio.get_running_loop().create_future()
        self._body = []
        self._parser = httptools.HttpResponseParser(self)
        if self._transport.is_closing():
            self._answer.set_exception(ConnectionError("closed before it was used"))
        self._transport.write(data)
        return self._answer

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionError("closed within an answer"))

    def on_body(self, body: bytes) -> None:
        self.pieces += 1
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._body)))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


async def connect(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection


async def run(port: int, request: Ask, concurrency: int, count: int, limit_s: float | None = None) -> Load:
    """`count` requests, `concurrency` at a time, each slot on a connection of its own.

    What has no answer after `limit_s` seconds is a failure.
    """
    load = Load()
    left = iter(range(count))

    async def slot() -> None:
        connection = await connect(port)
        try:
            for _ in left:
                begin = time.perf_counter()
                try:
                    problem = wrong(request, *await connection.send(request.data))
                except (OSError, httptools.HttpParserError) as error:
                    problem = f"{type(error).__name__}: {error}"
                if problem is None:
                    load.seconds.append(time.perf_counter() - begin)
                else:
                    load.failures.append(problem)
                    connection.close()
                    load.pieces += connection.pieces
                    connection = await connect(port)
        finally:
            load.pieces += connection.pieces
            connection.close()

    try:
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*(slot() for _ in range(min(concurrency, count))))
    except TimeoutError:
        missing = count - len(load.seconds) - len(load.failures)
        load.failures += [f"no answer within {limit_s:g} s"] * missing
    return load


def wrong(request: Ask, status: int, body: bytes) -> str | None:
    """What is wrong with an answer; None for a whole one."""
    if status != 200:
        return f"HTTP {status}: {body[:200]!r}"
    if body.count(b" seven") != request.tokens:
        return f"{body.count(b' seven')} tokens instead of {request.tokens}"
    if request.stream and not body.endswith(b"data: [DONE]\n\n"):
        return "no end mark"
    return None


async def two_legs(prefill_port: int, decode_port: int, first: Ask, second: Ask, count: int) -> list[float]:
    """Seconds of `count` pairs of requests, one after the other, without anything between."""
    prefill, decode = await connect(prefill_port), await connect(decode_port)
    seconds = []
    try:
        for _ in range(count):
            begin = time.perf_counter()
            await prefill.send(first.data)
            await decode.send(second.data)
            seconds.append(time.perf_counter() - begin)
    finally:
        prefill.close()
        decode.close()
    return seconds
