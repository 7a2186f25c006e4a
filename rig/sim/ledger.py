"""What the simulated engine did to each request: a JSON line each, so that a rig's table can be held against it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass
class Entry:
    """One request on one server.

    `request_id` is the X-Request-Id as it came; `right` says whether the text that was sent gives the
    question's answer, None where none was sent or the question is not known; `status` None means that no
    status line was sent.
    """

    request_id: str | None
    engine_request_id: str
    side: str
    endpoint: str
    stream: bool
    number: int
    concurrency: int
    prompt_sha256: str
    prompt_tokens: int
    since_finish_ms: float | None = None
    question: str | None = None
    target: str | None = None
    answer: str | None = None
    right: bool | None = None
    faults: list[str] = field(default_factory=list)
    status: int | None = None
    finish_reason: str | None = None
    completion_tokens: int = 0
    external_tokens: int = 0
    local_tokens: int = 0
    outcome: str = "answered"
    duplicate_id: bool = False


class Ledger:
    """Appends whole lines to one file, which several servers may share; no file, no ledger."""

    def __init__(self, path: str | None, **constant: Any) -> None:
        self._constant = constant
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o644) if path else None

    def write(self, entry: Entry) -> None:
        if self._file is not None:
            os.write(self._file, orjson.dumps({**self._constant, **vars(entry)}) + b"\n")
