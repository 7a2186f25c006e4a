"""The control file as the engine sees it: read again when it changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .control import Control, Fault


class Watch:
    """Keeps what the control file says; `say` gets one line each time that it, or a fault in it, cannot be used."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._seen: tuple[int, int, int] | None = None
        self._missing = False
        self._control = Control()

    def control(self, impossible: Callable[[Fault], str | None] = lambda _: None) -> Control:
        """What the file says now, without the faults that are `impossible` here (with the reason).

        Without faults when it is missing or broken. Costs one stat when it is unchanged.
        """
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                self._seen = seen
                self._missing = False
                self._control = Control()
                self._control = self._possible(Control.read(self._path), impossible)
        except OSError as error:
            if not self._missing:
                self._say(f"no fault is planted: {self._path} cannot be read ({error.strerror})")
            self._seen, self._missing, self._control = None, True, Control()
        except ValueError as error:
            self._say(f"no fault is planted: {self._path} is not a control file: {error}")
        return self._control

    def _possible(self, control: Control, impossible: Callable[[Fault], str | None]) -> Control:
        kept = []
        for fault in control.faults:
            if reason := impossible(fault):
                self._say(f"{fault.fault} is not planted: {reason}")
            else:
                kept.append(fault)
        return replace(control, faults=tuple(kept))
