"""A program that starts itself anew within another one: the one within leaves its pid and its exit code in a file.

What is between the two may have exit codes of its own, and keep signals to itself. The one within holds a lock on the
file for as long as it lives, so that its end is known however it comes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FILE = "PDRIG_WITHIN"
"""The variable that names the file."""


@contextmanager
def told() -> Iterator[None]:
    """The whole of a program: where it is one within another, it says that it has begun, and how it ends."""
    path = os.environ.pop(FILE, None)
    if path is None:
        yield
        return
    with Path(path).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        print(os.getpid(), file=file, flush=True)
        try:
            yield
        except SystemExit as end:
            print(end.code, file=file, flush=True)
            raise


@dataclass(frozen=True)
class Within:
    """What the program within has told: `pid` once it has begun, `code` once it has come to its own end."""

    lives: bool
    pid: int | None = None
    code: int | None = None


def read(path: Path) -> Within:
    """What is known now from a file that is there."""
    with path.open() as file:
        lives = False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            lives = True
        return Within(lives, *map(int, file.read().split()))
