"""One leg over HTTP: sending it, and naming what went wrong."""

from __future__ import annotations

import errno
from urllib.parse import urlsplit

from proxy.errors import Answer, LegError, RawHeaders, StaleError
from proxy.guard import Guard
from proxy.settings import Instance, Settings
from proxy.wire import Connection, Lost, NotHttp, Pool

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110, section 7.6.1, and the two of old clients."""

NOT_TO_CLIENT = HOP_BY_HOP | {b"content-length"}
NOT_TO_ENGINE = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"content-type",
    b"content-encoding",
    b"accept-encoding",
    b"expect",
    b"x-request-id",
}
"""The length and type are the leg's own; answers come uncompressed, because they are read on the way."""

OWN_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Reasons not to get a socket that are this machine's, not the engine's."""


def end_to_end(headers: RawHeaders, dropped: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """The headers that go on to the next hop; names are compared without case."""
    kept = []
    named: set[bytes] = set()
    for header in headers:
        name = header[0].lower()
        if name not in dropped:
            kept.append(header)
        elif name == b"connection":
            named |= {token.strip().lower() for token in header[1].split(b",")}
    named -= {b"close", b"keep-alive"}
    return [header for header in kept if header[0].lower() not in named] if named else kept


def engine_headers(headers: RawHeaders, request_id: bytes) -> bytes:
    """The lines that both legs send: the client's end-to-end headers, Authorization among them, and our own."""
    lines = [b"%b: %b\r\n" % header for header in end_to_end(headers, NOT_TO_ENGINE)]
    lines.append(b"Content-Type: application/json\r\nX-Request-Id: %b\r\n" % request_id)
    return b"".join(lines)


class Upstream:
    """The connections to all instances; made and closed within the running loop."""

    def __init__(self, settings: Settings) -> None:
        self._connect = settings.connect_timeout
        self._first_byte = settings.first_byte_timeout
        self._idle = settings.idle_timeout
        self._pools = {
            instance.name: Pool(instance.url, settings.keep_alive)
            for instance in (*settings.prefill_instances, *settings.decode_instances)
        }
        self._heads: dict[tuple[str, str], bytes] = {}

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    async def send(
        self, instance: Instance, path: str, body: bytes, headers: bytes, guard: Guard, new_connection: bool
    ) -> Reply:
        """Sends a leg and waits for the first byte of its answer's body. Raises LegError, StaleError."""
        head = self._heads.get((instance.name, path))
        if head is None:
            parts = urlsplit(instance.url)
            text = f"POST {parts.path}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            head = self._heads[instance.name, path] = text.encode()
        guard.leg = instance.role
        guard.arm(self._first_byte, "first_byte_timeout")
        pool = self._pools[instance.name]
        connection = None if new_connection else pool.idle()
        if connection is None:
            try:
                connection = await pool.connect(self._connect)
            except OSError as error:
                raise _not_connected(error, instance) from error
        try:
            connection.send(b"%b%bContent-Length: %d\r\n\r\n%b" % (head, headers, len(body), body))
            first = await connection.read()
        except BaseException as error:
            connection.close()
            if isinstance(error, Lost | NotHttp):
                raise _named(error, instance) from error
            raise
        return Reply(connection, pool, first, instance, guard, self._idle)


class Reply:
    """An answer whose body has begun: `first` are its first bytes, none if it has no body."""

    __slots__ = ("_closed", "_connection", "_guard", "_idle", "_instance", "_pool", "first", "status")

    def __init__(
        self, connection: Connection, pool: Pool, first: bytes, instance: Instance, guard: Guard, idle: float | None
    ) -> None:
        self._connection = connection
        self._pool = pool
        self._closed = False
        self._instance = instance
        self._guard = guard
        self._idle = idle
        self.first = first
        self.status = connection.status

    @property
    def streams(self) -> bool:
        return self.status == 200 and any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in self._connection.headers
        )

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What goes on to the client; the length is left to who sends it."""
        return end_to_end(self._connection.headers, NOT_TO_CLIENT)

    async def more(self) -> bytes:
        """The next bytes, none at the end. Raises LegError with class `reset`."""
        self._guard.arm(self._idle, "idle_timeout")
        try:
            return await self._connection.read()
        except (Lost, NotHttp) as error:
            raise _named(error, self._instance) from error

    async def rest(self) -> bytes:
        """The whole body. Raises LegError with class `reset`."""
        if self._connection.finished:
            return self.first
        chunks = [self.first]
        while chunk := await self.more():
            chunks.append(chunk)
        return b"".join(chunks)

    async def answer(self) -> Answer:
        return Answer(self.status, self.headers, await self.rest())

    def close(self) -> None:
        """Ends the leg at once if it has not ended: the engine sees its client go away."""
        if not self._closed:
            self._closed = True
            self._pool.give_back(self._connection)


def _not_connected(error: OSError, instance: Instance) -> LegError:
    where = f"{instance.name} ({instance.url})"
    if isinstance(error, TimeoutError) and error.errno is None:
        return LegError(instance.role, "connect_timeout", f"{where} took no connection in time")
    if error.errno in OWN_LIMITS:
        return LegError("proxy", "internal", f"no socket to {where}: {error.strerror or error}")
    return LegError(instance.role, "connect", f"{where}: {error.strerror or error}")


def _named(error: Lost | NotHttp, instance: Instance) -> LegError:
    """The class of what went wrong on the wire."""
    where = f"{instance.name} ({instance.url})"
    if isinstance(error, NotHttp):
        return LegError(instance.role, "bad_response", f"{where} does not speak HTTP: {str(error)[:120]}")
    if error.begun:
        return LegError(instance.role, "reset", f"{where} closed the connection within its answer")
    message = f"{where} closed the connection without an answer"
    return StaleError(instance.role, message) if error.reused else LegError(instance.role, "reset", message)
