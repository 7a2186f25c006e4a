"""HTTP/1.1 to one server: connections that are kept and used again, answers read as they come.

Only what a request to an engine needs, so that it costs little: it goes out in one piece, and its answer is followed
no further than its status, its headers and the bytes of its body. The proxy's legs and the evaluator's requests
both go this way.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence
from typing import cast
from urllib.parse import urlsplit

import httptools

UNREAD_LIMIT = 2**18
"""Bytes of a body that may wait for whoever reads it; beyond it the server is made to wait."""


class Lost(Exception):
    """The connection ended within an exchange.

    `begun`: after bytes of an answer; `reused`: it had served before; `broken`: it was not closed in order.
    """

    def __init__(self, begun: bool, reused: bool, broken: bool) -> None:
        self.begun = begun
        self.reused = reused
        self.broken = broken
        super().__init__("the connection was closed")


class NotHttp(Exception):
    """What came is no answer of HTTP/1.1."""


class Connection(asyncio.Protocol):
    """A connection, and the answer that comes on it: `status` is 0 until its headers are there."""

    __slots__ = (
        "_begun",
        "_failure",
        "_headers",
        "_keep",
        "_parser",
        "_paused",
        "_pieces",
        "_size",
        "_transport",
        "_used",
        "_waiter",
        "complete",
        "idle_since",
        "status",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self._size = 0
        self._paused = False
        self._begun = False
        self._keep = False
        self._used = 0
        self.complete = True
        self.idle_since = 0.0
        self.status = 0

    @property
    def usable(self) -> bool:
        """Whether another request may go out: the answer was read to its end, and the server stays connected."""
        return self.finished and self._failure is None and (self._keep or not self._used)

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and all of it was read."""
        return self.complete and not self._pieces

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        return self._headers

    def send(self, request: bytes) -> None:
        """Begins an exchange; only on a connection that is `usable`."""
        self._used += 1
        self._headers = []
        self._begun = self.complete = False
        self.status = 0
        self._transport.write(request)

    async def read(self) -> bytes:
        """The next bytes of the body, none at its end. Raises Lost, NotHttp."""
        if not self._pieces and not self.complete and self._failure is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._pieces:
            data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
            return data
        if self.complete:
            return b""
        assert self._failure is not None
        raise self._failure

    def close(self) -> None:
        """Ends the connection at once, whatever it does."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(NotHttp(str(error)))
        if self._pieces:
            self._size += len(data)
            if self._size > UNREAD_LIMIT and not self._paused:
                self._paused = True
                self._transport.pause_reading()
        if self._pieces or self.complete:
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if error is None and self.status and not self.complete and self._ends_with_connection():
            self.complete = True
        if self._failure is None:
            self._failure = Lost(self._begun, self._used > 1, error is not None)
        self._wake()

    def on_message_begin(self) -> None:
        if self.complete:
            # An answer that nobody asked for: the next one could not be told from it.
            raise NotHttp("bytes after the end of an answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        # What comes after the status are the trailers of a chunked body.
        if not self.status:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self.status < 200:
            # 100 Continue and its like: the answer itself is still to come.
            self.status = 0
            self._headers.clear()
            return
        self.complete = True
        self._keep = self._parser.should_keep_alive()

    def _ends_with_connection(self) -> bool:
        return not any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._transport.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Pool:
    """The connections to one server. An idle one is kept for `keep_alive` seconds; the latest is used first."""

    def __init__(self, url: str, keep_alive: float) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._keep_alive = keep_alive
        self._idle: deque[Connection] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    def idle(self) -> Connection | None:
        """A connection that has served before; None if there is none to use again."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since < self._keep_alive:
                return connection
            connection.close()
        return None

    async def connect(self, timeout: float | None) -> Connection:
        """A new connection, within `timeout` seconds. Raises OSError; the TimeoutError among them has no errno."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            _, connection = await loop.create_connection(Connection, self._host, self._port, ssl=self._tls)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keeps a connection whose exchange is over, and ends one whose exchange is not."""
        if not connection.usable or self._closed:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._keep_alive, self._sweep)

    def close(self) -> None:
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = None
        while self._idle and loop.time() - self._idle[0].idle_since >= self._keep_alive:
            self._idle.popleft().close()
        if self._idle:
            self._sweeper = loop.call_at(self._idle[0].idle_since + self._keep_alive, self._sweep)
