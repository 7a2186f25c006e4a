"""What a deployment says while it comes up, lives and ends. No logic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["starting", "loading", "ready", "checking", "stopping", "stopped", "failed"]


@dataclass(frozen=True)
class Event:
    """How far one server is; `server` is its name, `proxy`, `pair` (the hand-off check) or `gpu` (memory not back)."""

    server: str
    phase: Phase
    text: str


OnEvent = Callable[[Event], None]
