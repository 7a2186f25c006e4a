"""What a person sees while a sweep runs: live bars on a terminal, plain lines elsewhere. Writes to one stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from rig.readers import Lasting
from rig.records import Outcome

PLAIN_INTERVAL_S = 10.0
"""On a stream that is not a terminal, one line of progress at most every so many seconds."""


@dataclass
class Tally:
    """Running counts of one evaluation."""

    total: int
    begun: float
    done: int = 0
    correct: int = 0
    errors: int = 0
    unscored: int = 0

    def add(self, outcome: Outcome) -> None:
        self.done += 1
        self.correct += outcome == "correct"
        self.errors += outcome == "error"
        self.unscored += outcome == "unscored"

    def text(self, now: float) -> str:
        """`120/400, accuracy 0.967, 0 errors, 3.9/s, 72 s left`; accuracy over what was scored."""
        scored = self.done - self.errors - self.unscored
        accuracy = f"{self.correct / scored:.3f}" if scored else "-"
        rate = self.done / (now - self.begun) if now > self.begun and self.done else None
        pace = f", {rate:.1f}/s, {(self.total - self.done) / rate:.0f} s left" if rate else ""
        return f"{self.done}/{self.total}, accuracy {accuracy}, {self.errors} errors{pace}"


class Display(AbstractContextManager["Display"]):
    """Where a sweep says how far it is."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = cast(TextIO, Lasting(stream))
        self._clock = clock
        self._live: Progress | None = None
        if stream.isatty():
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn())
            self._live = Progress(*columns, console=Console(file=self._stream), transient=True)
        self._bars: dict[str, TaskID] = {}
        self._tallies: dict[str, Tally] = {}
        self._last_line: dict[str, float] = {}

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """One line that stays."""
        if self._live:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._stream, flush=True)

    def server(self, name: str, phase: str, text: str) -> None:
        """How far a server is: `decode-0: loading, Loading safetensors ...`."""
        line = f"  {name}: {phase}{f', {text}' if text else ''}"
        if self._live is None:
            self.say(line)
        elif phase in ("stopped", "failed"):
            self._drop(name)
            if phase == "failed":
                self.say(line)
        elif name in self._bars:
            self._live.update(self._bars[name], description=line[:110])
        else:
            self._bars[name] = self._live.add_task(line[:110], total=None)

    def evaluation(self, title: str, total: int) -> None:
        """An evaluation of so many questions begins."""
        self._tallies[title] = Tally(total, self._clock())
        self._last_line[title] = self._clock()
        if self._live:
            self._drop(f"evaluation {title}")
            self._bars[f"evaluation {title}"] = self._live.add_task(f"  {title}", total=total)

    def answered(self, title: str, outcome: Outcome) -> None:
        """One more question of an evaluation has its outcome."""
        tally = self._tallies[title]
        tally.add(outcome)
        now = self._clock()
        line = f"  {title}: {tally.text(now)}"
        finished = tally.done == tally.total
        if self._live:
            self._live.update(self._bars[f"evaluation {title}"], completed=tally.done, description=line)
            if finished:
                self._drop(f"evaluation {title}")
                self.say(line)
        elif finished or now - self._last_line[title] >= PLAIN_INTERVAL_S:
            self._last_line[title] = now
            self.say(line)

    def evaluated(self, title: str) -> None:
        """An evaluation is over, perhaps before all its questions were asked."""
        self._drop(f"evaluation {title}")

    def _drop(self, name: str) -> None:
        if self._live and name in self._bars:
            self._live.remove_task(self._bars.pop(name))
