"""Server-sent events, cut into their data. Pure, and quick on the shape that engines send."""

from __future__ import annotations


class SseParser:
    """Turns bytes, however they are cut, into the data of events (WHATWG HTML, 9.2.6).

    Comments and fields other than `data` are dropped; several data lines are joined by a line feed. An
    event that no blank line ends is not one.
    """

    __slots__ = ("_ends_in_cr", "_rest", "_started")

    def __init__(self) -> None:
        self._rest = b""
        self._ends_in_cr = False
        self._started = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that this chunk completes, in order."""
        if not self._started:
            self._started = True
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        if b"\r" in chunk or self._ends_in_cr:
            chunk = self._line_feeds(chunk)
        if self._rest:
            chunk = self._rest + chunk
        whole, mark, rest = chunk.rpartition(b"\n\n")
        self._rest = rest
        if not mark:
            return []
        if whole.startswith(b"data: "):
            events = whole[6:].split(b"\n\ndata: ")
            if whole.count(b"\n") == 2 * (len(events) - 1):
                # Every event is one line of data, as engines write them: cut at once.
                return events
        events = []
        for block in whole.split(b"\n\n"):
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(block[6:])
            elif (data := _data(block)) is not None:
                events.append(data)
        return events

    def _line_feeds(self, chunk: bytes) -> bytes:
        """CRLF and CR as LF; a CR at the end counts at once, and a LF that follows it later does not."""
        if self._ends_in_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._ends_in_cr = False
        if chunk.endswith(b"\r"):
            self._ends_in_cr = True
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data(block: bytes) -> bytes | None:
    lines = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines) if lines else None
