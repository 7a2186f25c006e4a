"""readings.json: how far an evaluation was at each look at its counters, so that a killed one can be gone on with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from evals.records import RequestRecord
from rig.series import Reading
from rig.store import RunFolder, load, write_text

FILE = "readings.json"


@dataclass(frozen=True)
class LogSpan:
    """Part of an instance's log, from and to so many bytes."""

    path: str
    start: int
    end: int


@dataclass(frozen=True)
class Part:
    """Requests of a cell that one launch of its deployment answered, with its counters around them.

    `ended` are ids of those whose records were on disk well before `after` was read, `begun` counts those that had
    been begun when it had been read, whatever became of them.
    """

    deployment: str
    before: tuple[Reading, ...]
    after: tuple[Reading, ...]
    ended: tuple[str, ...]
    begun: int
    logs: dict[str, LogSpan]

    @property
    def under_way(self) -> int:
        """Requests that had been begun, and of which is not said how they ended."""
        return self.begun - len(self.ended)


@dataclass(frozen=True)
class Attempt:
    """One attempt at a cell; `t0_unix` is where the clock of its records starts, `parts` are earlier ones' as well."""

    t0_unix: float
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Kept:
    """What a cell's next attempt starts with: records of questions and canaries, and the parts that prove them.

    `again` counts the records that are asked again, `repeated` lines of the file that were there twice and count once.
    """

    t0_unix: float
    parts: tuple[Part, ...]
    records: tuple[RequestRecord, ...]
    again: int
    repeated: int = 0


_ATTEMPT = TypeAdapter(Attempt)


def write_attempt(run: RunFolder, cell_id: str, attempt: Attempt) -> None:
    write_text(_path(run, cell_id), _ATTEMPT.dump_json(attempt).decode() + "\n")


def read_attempt(run: RunFolder, cell_id: str) -> Attempt | None:
    """The cell's latest attempt; None where none was begun. Raises DataError for a file that is none."""
    path = _path(run, cell_id)
    return load(_ATTEMPT, path) if path.is_file() else None


def _path(run: RunFolder, cell_id: str) -> Path:
    return run.cell(cell_id) / FILE
