"""The connections of a load, and how a request begins on one."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from proxy.wire import Connection, Pool

IDLE_CONNECTION_S = 2.0
"""A connection idle this long is not used again: uvicorn, and so vLLM, closes them after 5."""


class Session:
    """As many connections as the load asks for; those left idle are closed on leaving."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}

    def pool(self, base_url: str) -> Pool:
        """The connections to the server of an address."""
        pool = self._pools.get(base_url)
        if pool is None:
            pool = self._pools[base_url] = Pool(base_url, IDLE_CONNECTION_S)
        return pool

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        for pool in self._pools.values():
            pool.close()


def request_head(url: str, headers: Mapping[str, str], length: int) -> bytes:
    """What precedes a JSON body of `length` bytes. Raises ValueError for a header that would break the request."""
    parts = urlsplit(url)
    lines = [f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}"]
    for name, value in headers.items():
        if any(mark in name or mark in value for mark in "\r\n\0"):
            raise ValueError("a header holds a line break")
        lines.append(f"{name}: {value}")
    lines += ["Content-Type: application/json", f"Content-Length: {length}", "", ""]
    return "\r\n".join(lines).encode()


def header(connection: Connection, name: str) -> str | None:
    """A header of the answer; `name` in lower case."""
    wanted = name.encode()
    return next((value.decode("latin-1") for key, value in connection.headers if key.lower() == wanted), None)
