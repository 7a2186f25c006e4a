"""Reading a stream of server-sent events without parsing it."""

from __future__ import annotations

import orjson

END_MARK = b"data: [DONE]"
FIELDS = (b"data", b"event", b"id", b"retry", b"")
"""What the lines of a stream of events begin with; a comment has a colon alone."""


class StreamScanner:
    """Passes events on as they come and notices the end mark, error objects and the engine's id.

    Only whole lines are passed on, so that a stream which is cut never shows half an event; a chunk that
    ends with a line, as nearly all do, is passed on as it is. JSON strings hold no raw line breaks or quotes,
    so the marks cannot be part of a generated text.
    """

    __slots__ = ("_held", "_last", "done", "engine_id", "error")

    def __init__(self) -> None:
        self._held = b""
        self._last = b"\n\n"
        self.done = False
        self.error: str | None = None
        self.engine_id: str | None = None

    def feed(self, chunk: bytes) -> bytes:
        """The bytes to pass on now; possibly none."""
        if self._held:
            chunk = self._held + chunk
            self._held = b""
        if not chunk.endswith(b"\n"):
            cut = chunk.rfind(b"\n") + 1
            self._held = chunk[cut:]
            chunk = chunk[:cut]
            if not chunk:
                return b""
        if b'"error"' in chunk or b'"remote_engine_id"' in chunk:
            self._look_into(chunk)
        # The end mark's line can only be cut by a chunk's end if it was held back, so a look at the end will do.
        if END_MARK in chunk[-64:] and _ends_with_mark(chunk):
            self.done = True
        self._last = chunk
        return chunk

    def close(self) -> bytes:
        """At the stream's end: what was held back, if it is the end mark without its line break."""
        held, self._held = self._held, b""
        if held.strip() == END_MARK:
            self.done = True
            return held
        return b""

    def break_event(self) -> bytes:
        """What ends an event that was begun, so that another one can follow."""
        return b"" if self._last.endswith(b"\n\n") else b"\n"

    def _look_into(self, chunk: bytes) -> None:
        for line in chunk.split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            if b'"error"' not in line and b'"remote_engine_id"' not in line:
                continue
            try:
                event = orjson.loads(line[5:])
            except ValueError:
                continue
            if not isinstance(event, dict):
                continue
            if self.error is None:
                self.error = error_message(event)
            self.engine_id = engine_id(event) or self.engine_id


def _ends_with_mark(chunk: bytes) -> bool:
    rest = chunk.rstrip()
    return rest.endswith(END_MARK) and (len(rest) == len(END_MARK) or rest[-len(END_MARK) - 1 :][:1] in b"\r\n")


def begins_as_events(body: bytes) -> bool:
    """Whether the first bytes of a body are those of a stream of events, or too few to tell."""
    line, ended, _ = body.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n").partition(b"\n")
    name, colon, _ = line.partition(b":")
    if colon or ended:
        return name.rstrip(b"\r") in FIELDS
    return any(field.startswith(name) for field in FIELDS)


def error_message(data: object) -> str | None:
    """The message of an error object as vLLM (`{"error": {...}}`) and its older builds write it; None if it is none."""
    if not isinstance(data, dict):
        return None
    error = data.get("error")
    if not error and data.get("object") == "error":
        error = data
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message) if message else "an error without a message"


def engine_id(data: object) -> str | None:
    """The engine that an answer names in its `kv_transfer_params`."""
    params = data.get("kv_transfer_params") if isinstance(data, dict) else None
    name = params.get("remote_engine_id") if isinstance(params, dict) else None
    return name if isinstance(name, str) else None
