"""The ends of the logs of a failed cell's servers, and which of them to show; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rig.records import CellResult


@dataclass(frozen=True)
class LogTail:
    """The last lines of one server's log, secrets masked: `file` is its path within the run."""

    server: str
    file: str
    lines: tuple[str, ...]

    @property
    def title(self) -> str:
        """What it is, in a line."""
        many = f"the last {len(self.lines)} lines" if len(self.lines) != 1 else "one line"
        return f"Log of {self.server}: {many} of {self.file}"


def decisive(cell: CellResult, logs: Sequence[LogTail]) -> list[LogTail]:
    """Of the logs those that have the failure's line, or else those of servers that it names, or else all."""
    reasons = cell.verdict.reasons if cell.verdict else ()
    said = " ".join([cell.failure or "", *(f"{r.text} {r.evidence or ''}" for r in reasons)])
    lines = [r.evidence for r in reasons if r.channel == "errors" and r.evidence]
    having = [log for log in logs if any(line in text for line in lines for text in log.lines)]
    return having or [log for log in logs if log.server in said] or [log for log in logs if log.lines]
