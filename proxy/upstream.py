"""One leg over HTTP: sending it, and naming what went wrong."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from contextvars import ContextVar

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import Answer, LegError, LegName, RawHeaders, StaleError
from proxy.guard import Guard
from proxy.settings import Instance, Settings

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

_new_connection: ContextVar[bool] = ContextVar("_new_connection", default=False)
_was_reused: ContextVar[bool] = ContextVar("_was_reused", default=False)


class _Connector(aiohttp.TCPConnector):
    """Knows whether a request got a connection that had served before, and can be told to open a new one."""

    async def _get(self, key: object, traces: object) -> Connection | None:
        if _new_connection.get():
            return None
        connection: Connection | None = await super()._get(key, traces)  # type: ignore[arg-type]
        if connection is not None:
            _was_reused.set(True)
        return connection

    async def _create_connection(self, req: object, traces: object, timeout: object) -> ResponseHandler:
        _was_reused.set(False)
        return await super()._create_connection(req, traces, timeout)  # type: ignore[arg-type]


def end_to_end(headers: RawHeaders, dropped: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """The headers that go on to the next hop; names are compared without case."""
    kept = [(name, value) for name, value in headers if name.lower() not in dropped]
    named = {
        token.strip().lower() for name, value in headers if name.lower() == b"connection" for token in value.split(b",")
    } - {b"close", b"keep-alive"}
    return [(name, value) for name, value in kept if name.lower() not in named] if named else kept


def engine_headers(headers: RawHeaders) -> CIMultiDict[str]:
    """The client's end-to-end headers, Authorization among them, as both legs send them."""
    result: CIMultiDict[str] = CIMultiDict()
    for name, value in end_to_end(headers, NOT_TO_ENGINE):
        result.add(name.decode("latin-1"), _header_text(value))
    result["Content-Type"] = "application/json"
    return result


def _header_text(value: bytes) -> str:
    # The client library writes header text as UTF-8, so this gives the bytes that came.
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


class Upstream:
    """The connections to all instances; made and closed within the running loop."""

    def __init__(self, settings: Settings) -> None:
        self._first_byte = settings.first_byte_timeout
        self._idle = settings.idle_timeout
        self._session = aiohttp.ClientSession(
            connector=_Connector(limit=0, keepalive_timeout=settings.keep_alive),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        )
        self._urls: dict[tuple[str, str], URL] = {}

    async def close(self) -> None:
        await self._session.close()

    async def send(
        self,
        instance: Instance,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        guard: Guard,
        new_connection: bool,
    ) -> Reply:
        """Sends a leg and waits for the first byte of its answer's body. Raises LegError, StaleError."""
        leg = instance.role
        url = self._urls.get((instance.url, path))
        if url is None:
            url = self._urls[instance.url, path] = URL(f"{instance.url}{path}")
        _new_connection.set(new_connection)
        guard.leg = leg
        guard.arm(self._first_byte, "first_byte_timeout")
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._session.post(url, data=body, headers=headers, allow_redirects=False)
            first = await response.content.readany()
        except BaseException as error:
            if response is not None:
                response.close()
            if isinstance(error, aiohttp.ClientError | OSError | asyncio.TimeoutError | ValueError):
                raise _named(error, instance, response is not None, _was_reused.get()) from error
            raise
        return Reply(response, first, instance, guard, self._idle)


class Reply:
    """An answer whose body has begun: `first` are its first bytes, none if it has no body."""

    __slots__ = ("_guard", "_idle", "_instance", "_response", "first", "status")

    def __init__(
        self, response: aiohttp.ClientResponse, first: bytes, instance: Instance, guard: Guard, idle: float | None
    ) -> None:
        self._response = response
        self._instance = instance
        self._guard = guard
        self._idle = idle
        self.first = first
        self.status = response.status

    @property
    def streams(self) -> bool:
        return self.status == 200 and self._response.headers.get("Content-Type", "").startswith("text/event-stream")

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What goes on to the client; the length is left to who sends it."""
        return end_to_end(self._response.raw_headers, NOT_TO_CLIENT)

    async def more(self) -> bytes:
        """The next bytes, none at the end. Raises LegError with class `reset`."""
        self._guard.arm(self._idle, "idle_timeout")
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _named(error, self._instance, True, False) from error

    async def rest(self) -> bytes:
        """The whole body. Raises LegError with class `reset`."""
        chunks = [self.first]
        while not self._response.content.at_eof():
            chunks.append(await self.more())
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def answer(self) -> Answer:
        return Answer(self.status, self.headers, await self.rest())

    def close(self) -> None:
        """Ends the leg at once if it has not ended: the engine sees its client go away."""
        self._response.close()


def _named(error: BaseException, instance: Instance, answered: bool, reused: bool) -> LegError:
    """The class of what went wrong on the wire; `answered` once the answer's headers had come."""
    leg: LegName = instance.role
    where = f"{instance.name} ({instance.url})"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return LegError(leg, "connect_timeout", f"{where} took no connection in time")
    if isinstance(error, aiohttp.ClientConnectorError):
        if error.errno in OWN_LIMITS:
            return LegError("proxy", "internal", f"no socket to {where}: {error.os_error.strerror or error.os_error}")
        return LegError(leg, "connect", f"{where}: {error.os_error.strerror or error.os_error}")
    if isinstance(error, aiohttp.ClientPayloadError):
        return LegError(leg, "reset", f"{where} closed the connection within its answer")
    if isinstance(error, aiohttp.ServerDisconnectedError | OSError):
        if answered:
            return LegError(leg, "reset", f"{where} closed the connection within its answer")
        message = f"{where} closed the connection without an answer"
        return StaleError(leg, message) if reused else LegError(leg, "reset", message)
    if isinstance(error, aiohttp.ClientResponseError):
        return LegError(leg, "bad_response", f"{where} does not speak HTTP: {error.message[:120]}")
    return LegError(leg, "internal", f"{where}: {type(error).__name__}: {error}")
