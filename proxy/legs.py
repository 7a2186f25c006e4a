"""`legs.jsonl`: one line for each leg, written by a thread so that a slow disk never holds up a request."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from proxy.errors import ProxyError

logger = logging.getLogger("pdrig.proxy")

BATCH_S = 0.02
"""Lines that come within this time are written together: at most so much is lost to a SIGKILL."""


class LegsWriter:
    """Appends to `path` (None: keeps nothing). `close` writes what is left. Raises ProxyError if it cannot open."""

    def __init__(self, path: Path | None) -> None:
        self._lines: deque[Mapping[str, Any] | threading.Event] = deque()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._complained = False
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered and in append mode: one write a batch, whole lines even beside other workers.
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise ProxyError(f"--legs {path}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._run, name="legs", daemon=True)
        self._thread.start()

    def put(self, line: Mapping[str, Any]) -> None:
        if self._thread is None:
            return
        self._lines.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def flush(self) -> None:
        """Waits until every line that was put before is in the file."""
        if self._thread is None:
            return
        written = threading.Event()
        self._lines.append(written)
        self._wake.set()
        written.wait()

    def close(self) -> None:
        if self._thread is None:
            return
        self._stop.set()
        self._wake.set()
        self._thread.join()
        self._thread = None
        self._file.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            self._write()
            self._stop.wait(BATCH_S)
        self._write()

    def _write(self) -> None:
        batch = bytearray()
        waiting: list[threading.Event] = []
        while self._lines:
            line = self._lines.popleft()
            if isinstance(line, threading.Event):
                waiting.append(line)
            else:
                batch += orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        view = memoryview(batch)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            if not self._complained:
                self._complained = True
                logger.error("legs are lost, the file cannot be written: %s", error)
        for written in waiting:
            written.set()
