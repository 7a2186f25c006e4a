"""One request of a client on its way through the proxy: its names, its legs, what its answer says."""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

import orjson

from proxy.errors import LegError, LegName, RawHeaders
from proxy.legs import LegsWriter
from proxy.metrics import Metrics
from proxy.settings import Instance
from proxy.stream import error_message
from proxy.upstream import engine_headers

MAX_ENGINE_ID_PREFIX = 128
"""Of the client's id this much goes into the engine's, which stays a header of ordinary size."""

SECRET_HEADERS = frozenset({b"authorization", b"x-api-key", b"api-key", b"cookie"})

_UNREADABLE = re.compile(r"[^!-~]")


class Exchange:
    """`request_id` is the client's X-Request-Id, or ours; engines see `engine_request_id`, never used twice."""

    def __init__(self, headers: RawHeaders) -> None:
        given = next((value for name, value in headers if name.lower() == b"x-request-id"), b"").strip()
        self.raw_request_id = given or uuid.uuid4().hex.encode()
        self.request_id = self.raw_request_id.decode("latin-1")
        self.headers = headers
        self.engine_request_id = ""
        self.prefill: Instance | None = None
        self.decode: Instance | None = None
        self.started = False
        self.unparametered = False
        self.retries = 0
        self._secrets: tuple[str, ...] | None = None

    def leg_headers(self) -> bytes:
        """For both legs of one hand-off: the same X-Request-Id, by which push mode pairs them."""
        readable = _UNREADABLE.sub("_", self.request_id[:MAX_ENGINE_ID_PREFIX])
        self.engine_request_id = f"{readable}-{uuid.uuid4().hex}"
        return engine_headers(self.headers, self.engine_request_id.encode())

    def response_headers(self, error: LegError | None = None) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-pdrig-request-id", self.raw_request_id)]
        if self.prefill is not None and self.decode is not None:
            headers.append((b"x-pdrig-prefill", self.prefill.name.encode()))
            headers.append((b"x-pdrig-decode", self.decode.name.encode()))
        if self.unparametered:
            headers.append((b"x-pdrig-lenient", b"no_kv_params"))
        if self.retries:
            headers.append((b"x-pdrig-retries", b"%d" % self.retries))
        if error is not None:
            headers.append((b"x-pdrig-error-leg", error.leg.encode()))
            headers.append((b"x-pdrig-error-class", error.error_class.encode()))
        return headers

    def redacted(self, text: str) -> str:
        """`text` without the credentials that the client sent, for whatever an engine may echo."""
        if self._secrets is None:
            self._secrets = tuple(
                part
                for name, value in self.headers
                if name.lower() in SECRET_HEADERS
                for part in value.decode("latin-1").split()
                if len(part) > 6
            )
        for secret in self._secrets:
            text = text.replace(secret, "[redacted]")
        return text


class LegLine:
    """A leg that runs; `end` writes its line once and counts it. Times are unix seconds."""

    __slots__ = (
        "_ended",
        "_exchange",
        "_legs",
        "_metrics",
        "engine_id",
        "instance",
        "params_present",
        "status",
        "t_first_byte",
        "t_start",
    )

    def __init__(self, exchange: Exchange, instance: Instance, legs: LegsWriter, metrics: Metrics) -> None:
        self._exchange = exchange
        self._legs = legs
        self._metrics = metrics
        self._ended = False
        self.instance = instance
        self.t_start = time.time()
        self.t_first_byte: float | None = None
        self.status: int | None = None
        self.engine_id: str | None = None
        self.params_present: bool | None = None

    def begun(self, status: int) -> None:
        self.t_first_byte = time.time()
        self.status = status

    def end(self, error: LegError | None = None) -> float:
        """The time of the leg's end; the first call counts."""
        t_end = time.time()
        if self._ended:
            return t_end
        self._ended = True
        self._metrics.leg_ended(self.instance.role, self.instance.name, t_end - self.t_start)
        self._legs.put(self._line(t_end, error))
        return t_end

    def _line(self, t_end: float, error: LegError | None) -> dict[str, Any]:
        role: LegName = self.instance.role
        return {
            "request_id": self._exchange.request_id,
            "leg": role,
            "instance": self.instance.name,
            "engine_request_id": self._exchange.engine_request_id,
            "engine_id": self.engine_id,
            "status": self.status,
            "t_start": self.t_start,
            "t_first_byte": self.t_first_byte,
            "t_end": t_end,
            "params_present": self.params_present,
            "error": error and {**error.to_json(), "message": self._exchange.redacted(error.message)},
        }


def answer_message(status: int, body: bytes) -> str:
    """What an engine's error answer says, in one line of at most 300 characters."""
    try:
        text = error_message(orjson.loads(body))
    except ValueError:
        text = None
    text = text or body[:1200].decode("utf-8", "replace").strip() or "an empty body"
    return f"HTTP {status}: {' '.join(text.split())[:300]}"
