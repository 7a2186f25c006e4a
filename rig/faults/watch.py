"""The control file as the engine sees it: read again when it changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .control import Control


class Watch:
    """Keeps what the control file says; `say` gets one line each time that it cannot be used."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._seen: tuple[int, int, int] | None = None
        self._missing = False
        self._control = Control()

    def control(self) -> Control:
        """What the file says now; without faults when it is missing or broken. Costs one stat when it is unchanged."""
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                self._seen = seen
                self._missing = False
                self._control = Control()
                self._control = Control.read(self._path)
        except OSError as error:
            if not self._missing:
                self._say(f"no fault is planted: {self._path} cannot be read ({error.strerror})")
            self._seen, self._missing, self._control = None, True, Control()
        except ValueError as error:
            self._say(f"no fault is planted: {self._path} is not a control file: {error}")
        return self._control
