"""Who reads what the rig prints may leave: a pipe without its other end, a terminal that was closed."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


@contextmanager
def may_leave() -> Iterator[None]:
    """For what is written to a reader: that nobody is there any more is no reason to end."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise


class Lasting:
    """A stream that is written to the same way after its reader has left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with may_leave():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with may_leave():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
