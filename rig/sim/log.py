"""Log lines in the shape of vLLM's own, so that what reads an engine's log reads these."""

from __future__ import annotations

import os
import sys
import time
from typing import Literal

Level = Literal["INFO", "WARNING", "ERROR"]


def line(level: Level, source: str, text: str, process: str = "EngineCore") -> None:
    """Print one line at once; `source` is the file and line that vLLM would name."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    for part in text.splitlines():
        print(f"({process} pid={os.getpid()}) {level} {stamp} [{source}] {part}", file=sys.stdout)
    sys.stdout.flush()


def engine_died(cause: str) -> None:
    """The lines of an engine core that ended with `cause`, the last line of its traceback."""
    line("ERROR", "core.py:1512", "EngineCore encountered a fatal error.")
    line("ERROR", "core.py:1512", f"Traceback (most recent call last):\n{cause}")
    line(
        "ERROR",
        "async_llm.py:787",
        "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        process="APIServer",
    )
