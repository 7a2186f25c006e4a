"""What happened to one request: the shape of a line in `requests.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

SCHEMA = 1

Kind = Literal["question", "canary", "warmup", "preflight"]
ErrorLeg = Literal["prefill", "decode", "proxy", "unknown", "client"]
"""Where a request failed; `client` is the rig's own making, `proxy` the router between, `unknown` behind a router that
does not say which of its legs it was.
"""

ErrorClass = Literal[
    "connect",
    "connect_timeout",
    "first_byte_timeout",
    "idle_timeout",
    "total_timeout",
    "reset",
    "http_status",
    "stream_error",
    "stream_cut",
    "no_kv_params",
    "empty",
    "bad_response",
    "refused",
    "cancelled",
    "internal",
]
"""How it failed.

connect: no connection; reset: an open connection broke; http_status: an answer of 400 or more;
stream_error: an error object within the stream; stream_cut: the stream ended without its end mark;
no_kv_params: the prefill leg gave none; empty: an answer of 200 without any text; bad_response: not what
the API promises; refused: the proxy will not hand such a request off; cancelled: the sweep was stopped;
internal: a fault of the rig.
"""


@dataclass(frozen=True)
class RequestError:
    """Why a request has no usable answer."""

    leg: ErrorLeg
    error_class: ErrorClass
    message: str

    def to_json(self) -> dict[str, str]:
        return {"leg": self.leg, "class": self.error_class, "message": self.message}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RequestError:
        return cls(data["leg"], data["class"], data["message"])


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request and its answer. Times are monotonic seconds from the cell's start; absent is None.

    `response_id` is the id that the answer has for itself. `itl_ms` are the gaps between the arrivals of chunks with
    text, in ms, when streamed.
    """

    kind: Kind
    sample_id: str
    request_id: str
    endpoint: str
    prompt_sha256: str
    t_submit: float
    t_end: float
    pass_: int = 0
    repeat: int = 0
    t_first_token: float | None = None
    http_status: int | None = None
    finish_reason: str | None = None
    text: str | None = None
    reasoning: str | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    response_id: str | None = None
    itl_ms: tuple[float, ...] | None = None
    error: RequestError | None = None
    attempts: int = 1
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data["pass"] = data.pop("pass_")
        data["error"] = self.error.to_json() if self.error else None
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RequestRecord:
        """Raises KeyError or TypeError for a line that is not a record of this schema."""
        fields = dict(data)
        fields["pass_"] = fields.pop("pass")
        fields["error"] = RequestError.from_json(fields["error"]) if fields["error"] else None
        for name in ("token_ids", "logprobs", "itl_ms"):
            fields[name] = tuple(fields[name]) if fields.get(name) is not None else None
        return cls(**fields)
