"""What a proxy is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from proxy.errors import LegName, ProxyError

Mode = Literal["pull", "push"]


@dataclass(frozen=True)
class Instance:
    """One engine: `name` is its role and its place in the list (`prefill-0`), `url` has no trailing slash."""

    name: str
    role: LegName
    url: str


@dataclass(frozen=True)
class Settings:
    """Times are seconds; None as a deadline means none. Raises ProxyError for what cannot work.

    `first_byte_timeout` runs from sending a leg to the first byte of its body, so for an answer that is not
    streamed it bounds the whole generation. `idle_timeout` is the longest pause within a body. `keep_alive`
    is how long an idle upstream connection is kept for reuse: below the 5 s after which vLLM closes one
    (VLLM_HTTP_TIMEOUT_KEEP_ALIVE). `drain` is how long requests in flight may go on after a stop was asked for.
    """

    prefill: tuple[str, ...]
    decode: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    mode: Mode = "pull"
    lenient: bool = False
    legs: Path | None = None
    connect_timeout: float | None = 10.0
    first_byte_timeout: float | None = 600.0
    idle_timeout: float | None = 300.0
    keep_alive: float = 2.0
    drain: float = 10.0
    health_timeout: float = 2.0
    workers: int = 1

    def __post_init__(self) -> None:
        for role, urls in (("prefill", self.prefill), ("decode", self.decode)):
            if not urls:
                raise ProxyError(f"no {role} instance: give at least one --{role} URL")
            for url in urls:
                _check_url(role, url)
        both = {url.rstrip("/") for url in self.prefill} & {url.rstrip("/") for url in self.decode}
        if both:
            raise ProxyError(f"{min(both)} is given as --prefill and as --decode: they must be different servers")
        for name in ("connect_timeout", "first_byte_timeout", "idle_timeout", "keep_alive", "health_timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ProxyError(f"--{name.replace('_', '-')} must be more than 0 seconds, not {value:g}")
        if self.drain < 0:
            raise ProxyError(f"--drain must not be negative, and is {self.drain:g}")
        if not 0 <= self.port <= 65535:
            raise ProxyError(f"--port must be between 0 and 65535, not {self.port}")
        if self.workers < 1:
            raise ProxyError(f"--workers must be at least 1, not {self.workers}")

    @property
    def prefill_instances(self) -> tuple[Instance, ...]:
        return _instances("prefill", self.prefill)

    @property
    def decode_instances(self) -> tuple[Instance, ...]:
        return _instances("decode", self.decode)


def _instances(role: LegName, urls: tuple[str, ...]) -> tuple[Instance, ...]:
    return tuple(Instance(f"{role}-{i}", role, url.rstrip("/")) for i, url in enumerate(urls))


def _check_url(role: str, url: str) -> None:
    try:
        if not url.isprintable() or any(c.isspace() or c == "\\" for c in url):
            raise ValueError
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise ProxyError(f"--{role} {_without_credentials(url)}: expected a URL such as http://127.0.0.1:8100")
    if parts.username is not None or parts.password is not None:
        raise ProxyError(f"--{role} {_without_credentials(url)}: credentials in a URL are not supported; send a header")


def _without_credentials(url: str) -> str:
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
