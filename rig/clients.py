"""How the rig reaches the servers under test over HTTP, apart from the questions that it asks."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import cache

import httpx


def client(headers: Mapping[str, str] | None = None, timeout_s: float | None = None) -> httpx.AsyncClient:
    """A client that takes no HTTP proxy from the environment; requests have no limit of time unless one is given.

    No connection is used twice: one that has been idle the server may close just as it is used again.
    """
    return httpx.AsyncClient(
        headers=headers,
        timeout=timeout_s,
        trust_env=False,
        verify=_certificates(),
        limits=httpx.Limits(max_keepalive_connections=0),
    )


@cache
def _certificates() -> ssl.SSLContext:
    """Read once: a sweep takes many clients, and reading the authorities takes longer than a request."""
    return httpx.create_ssl_context(trust_env=False)
