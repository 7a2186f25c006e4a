"""How a hand-off fails, and how the client is told.

ProxyError        the person who starts the proxy must change something; exit code 2, or 3 for a lost port
Refused           a request that cannot be handed off; the client gets a 400 that says why
LegError          a leg, or the proxy between them, failed; it has a class and a status for the client
`-- StaleError    a reused connection was closed before it answered: nothing was lost, it may be sent again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

LegName = Literal["prefill", "decode"]
ErrorLeg = Literal["prefill", "decode", "proxy"]
ErrorClass = Literal[
    "connect",
    "connect_timeout",
    "first_byte_timeout",
    "idle_timeout",
    "reset",
    "http_status",
    "stream_error",
    "stream_cut",
    "no_kv_params",
    "bad_response",
    "refused",
    "cancelled",
    "internal",
]
"""The same words as in the evaluator's records, less those that only a client can see."""

STATUS: dict[ErrorClass, int] = {
    "connect": 502,
    "connect_timeout": 504,
    "first_byte_timeout": 504,
    "idle_timeout": 504,
    "reset": 502,
    "http_status": 502,
    "stream_error": 502,
    "stream_cut": 502,
    "no_kv_params": 502,
    "bad_response": 502,
    "refused": 400,
    "cancelled": 503,
    "internal": 500,
}
"""What the client gets where no leg gave a status of its own."""

RawHeaders = Sequence[tuple[bytes, bytes]]


class ProxyError(Exception):
    """One line for the person who starts the proxy; `exit_code` is 2 for usage, 3 for a port that is taken."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class Refused(Exception):
    """The request cannot be handed off; `param` names the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        self.param = param
        super().__init__(message)


@dataclass(frozen=True)
class Answer:
    """What a leg answered: status, end-to-end headers, whole body."""

    status: int
    headers: RawHeaders
    body: bytes


class LegError(Exception):
    """A hand-off failed in `leg` with `error_class`; `answer` is the failing leg's own, where it gave one."""

    def __init__(self, leg: ErrorLeg, error_class: ErrorClass, message: str, answer: Answer | None = None) -> None:
        self.leg = leg
        self.error_class: ErrorClass = error_class
        self.message = message
        self.answer = answer
        super().__init__(f"{leg}: {error_class}: {message}")

    def to_json(self) -> dict[str, str]:
        return {"leg": self.leg, "class": self.error_class, "message": self.message}


class StaleError(LegError):
    """Class `reset`, on a connection that had served before and gave no byte this time."""

    def __init__(self, leg: LegName, message: str) -> None:
        super().__init__(leg, "reset", message)


def error_body(error: LegError, param: str | None = None) -> bytes:
    """An error object in the shape of the OpenAI API, with `leg` and `class` beside its own fields."""
    status = STATUS[error.error_class]
    return orjson.dumps(
        {
            "error": {
                "message": error.message,
                "type": "BadRequestError" if status == 400 else "ProxyError",
                "param": param,
                "code": status,
                "leg": error.leg,
                "class": error.error_class,
            }
        }
    )


def error_event(error: LegError) -> bytes:
    """The same as a server-sent event."""
    return b"data: " + error_body(error) + b"\n\n"
