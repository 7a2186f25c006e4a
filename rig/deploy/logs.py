"""What a server's log says: how far it is, whether its engine is dead, and the one line that matters.

The messages are those of vLLM 0.27 to 0.32 (`v1/engine/core.py`, `core_client.py`, `utils.py`,
`v1/executor/multiproc_executor.py`), Python's tracebacks, and what shells, containers, kernels and srun print.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

KEEP_LINES = 4000
KEEP_CHARS = 2000
LINE_CHARS = 500
READ_BYTES = 1 << 20

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(
    r"^(?:\((?P<source>[^()]*pid=\d+)\)\s?)?"
    r"(?:\[rank\d+\]:\s?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[^\]]*\] ?)?"
    r"(?P<body>.*)$"
)
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_VALIDATION = re.compile(r"\d+ validation errors? for ")

_DEAD = re.compile(
    r"EngineCore encountered a fatal error"
    r"|EngineCore failed to start"
    r"|EngineDeadError"
    r"|Engine core initialization failed"
    r"|engine core exited unexpectedly"
    r"|(?:Worker proc|WorkerProc rank=|Engine core process) ?\S* died unexpectedly"
    r"|AsyncLLM output_handler failed"
    r"|^Process (?:EngineCore|\S*Worker)\S*:$"
    r"|^Fatal Python error: "
    r"|^terminate called after throwing an instance of "
)
# Where the story of a death begins: the worker's report comes before the engine's.
_BEGINNING = re.compile(_DEAD.pattern + r"|WorkerProc (?:hit an exception|failed to start)")
# Consequences, raised in one process because another one failed or was told to go.
_SECONDARY = re.compile(
    r"EngineDeadError|EngineGenerateError|Engine core initialization failed|Frontend process failed"
    r"|Worker failed with error|WorkerProc initialization failed|died unexpectedly|died with exit code"
    r"|CancelledError|KeyboardInterrupt|SystemExit|BrokenPipeError|ConnectionResetError"
    r"|^srun: error: .*: tasks? \S+: Exited with exit code"
)
# What to show if there are only consequences: a killed worker leaves no traceback of its own.
_TELLING = re.compile(r"^RuntimeError: Worker failed with error|(?:died|exited) unexpectedly")
_BARE = re.compile(
    r"^\S+(?: \S+)?: error: "
    r"|^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): "
    r"|^\s*what\(\): "
    r"|^(?:Fatal Python error: |Segmentation fault|Aborted|Killed|free\(\): |double free|docker: |OCI runtime)"
    r"|: (?:No such file or directory|Permission denied|Exec format error)$|command not found$"
)

_PROGRESS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Initializing a V1 LLM engine"), "initializing the engine"),
    (re.compile(r"Starting to load model"), "loading the model"),
    (re.compile(r"Loading \S+ checkpoint shards:\s+(?P<done>\d+%)"), "loading weights"),
    (re.compile(r"(?:Loading weights|Model loading) took"), "weights loaded"),
    (re.compile(r"Compiling a graph|Dynamo bytecode transform"), "compiling"),
    (re.compile(r"Capturing CUDA graphs?.*?:\s+(?P<done>\d+%)"), "capturing CUDA graphs"),
    (re.compile(r"(?:GPU|CPU) KV cache size"), "KV cache allocated"),
    (re.compile(r"init engine \("), "engine initialized"),
    (re.compile(r"Application startup complete"), "HTTP server up"),
)


@dataclass
class _Story:
    """The traceback that one source is printing: `chain` holds its exception lines, cause first."""

    inside: bool = False
    chained: bool = False
    chain: list[str] = field(default_factory=list)
    at: int = 0
    level: str | None = None


def _lines(text: str) -> list[tuple[str, str | None, str]]:
    """(source, level, body) of every line; a carriage return ends a line too, as progress bars use it."""
    found = []
    for line in re.split(r"\r\n|\r|\n", _ANSI.sub("", text)):
        match = _PREFIX.match(line)
        if match:
            found.append((match["source"] or "", match["level"], match["body"].rstrip()))
    return found


def engine_dead(text: str) -> str | None:
    """The first line which says that an engine process is dead or dying; None if there is none.

    Lines of level INFO and DEBUG do not count: they may quote a prompt.
    """
    for _, level, body in _lines(text):
        if level not in ("INFO", "DEBUG") and _DEAD.search(body):
            return body.strip()[:LINE_CHARS]
    return None


def progress(line: str) -> str | None:
    """How far the server is by this line of its log, in a few words; None if the line does not tell."""
    for pattern, words in _PROGRESS:
        if match := pattern.search(line):
            done = match.groupdict().get("done")
            return f"{words} {done}" if done else words
    return None


def decisive_line(text: str) -> str | None:
    """The line of a failed server's log that names the cause; None if no line tells of a failure.

    The root of the first chain of tracebacks at or after the engine's first word of failure; without such a
    word the last chain, or a later bare error (of a shell, argparse, the C++ runtime); else the last line of
    level ERROR.
    """
    lines = _lines(text)
    stories = _tracebacks(lines)
    begin = next(
        (at for at, (_, level, body) in enumerate(lines) if level not in ("INFO", "DEBUG") and _BEGINNING.search(body)),
        None,
    )
    if begin is not None:
        for story in stories:
            if story.at >= begin and (root := _root(story)) is not None:
                return root[:LINE_CHARS]
        if (death := next((body for _, _, body in lines[begin:] if _TELLING.search(body)), None)) is not None:
            return death.strip()[:LINE_CHARS]
    loud = [story for story in stories if story.level in (None, "ERROR", "CRITICAL")]
    causes = [(story.at, root) for story in loud if (root := _root(story)) is not None]
    causes += [(at, body) for at, (_, level, body) in enumerate(lines) if level is None and _is_cause(body)]
    if causes:
        return max(causes, key=lambda cause: cause[0])[1].strip()[:LINE_CHARS]
    if loud:
        return loud[-1].chain[0][:LINE_CHARS]
    errors = [body for _, level, body in lines if level in ("ERROR", "CRITICAL") and body.strip()]
    return errors[-1].strip()[:LINE_CHARS] if errors else None


def _is_cause(body: str) -> bool:
    return bool(_BARE.search(body)) and not _SECONDARY.search(body)


def _root(story: _Story) -> str | None:
    return next((line for line in story.chain if not _SECONDARY.search(line)), None)


def _tracebacks(lines: list[tuple[str, str | None, str]]) -> list[_Story]:
    """All chains of tracebacks in the order of their last exception; sources interleave, so each has its own."""
    stories: list[_Story] = []
    current: dict[str, _Story] = {}
    for at, (source, level, body) in enumerate(lines):
        story = current.get(source)
        if body.strip() == _TRACEBACK:
            if story is None or not story.chained:
                story = current[source] = _Story(level=level)
            story.inside, story.chained = True, False
        elif story is None:
            continue
        elif story.inside:
            if body and not body[0].isspace():
                story.inside = False
                story.chain.append(body)
                story.at = at
                if len(story.chain) == 1:
                    stories.append(story)
        elif body in _CHAINED:
            story.chained = True
        elif _VALIDATION.search(story.chain[-1]) and at == story.at + 1 and body.startswith("  "):
            story.chain[-1] = f"{story.chain[-1]}: {body.strip()}"
    return stories


class LogTail:
    """Reads a log as it grows, each byte once, and keeps its last lines.

    Starts at the file's present end if `from_end`, else at its beginning; starts over if the file shrinks.
    """

    def __init__(self, path: Path, from_end: bool = False) -> None:
        self.path = path
        self._at = size(path) if from_end else 0
        self._rest = b""
        self._kept: deque[str] = deque(maxlen=KEEP_LINES)

    def read_new(self) -> list[str]:
        """The lines completed since the last call, at most about 1 MiB of them; an unreadable file has none."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._at:
                    self._at, self._rest = 0, b""
                file.seek(self._at)
                data = file.read(READ_BYTES)
        except OSError:
            return []
        self._at += len(data)
        lines, self._rest = _completed(self._rest, data)
        self._kept.extend(lines)
        return lines

    def text(self) -> str:
        """The lines kept, with an unfinished last one."""
        return "\n".join([*self._kept, _text(self._rest)])


def read_between(path: Path, start: int, end: int) -> Iterator[str]:
    """The lines between two sizes of a growing log, in bytes, with an unfinished last one; each cut to KEEP_CHARS.

    From the file's beginning if it is shorter than `start`, as it was begun anew then. Holds about READ_BYTES at a
    time. An unreadable file has no lines.
    """
    rest = b""
    with suppress(OSError), path.open("rb") as file:
        at = start if file.seek(0, os.SEEK_END) >= start else 0
        file.seek(at)
        while at < end and (data := file.read(min(READ_BYTES, end - at))):
            at += len(data)
            lines, rest = _completed(rest, data)
            yield from lines
    if rest:
        yield _text(rest)


def size(path: Path) -> int:
    """How long a log is, in bytes; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _completed(rest: bytes, data: bytes) -> tuple[list[str], bytes]:
    """The lines that are complete, each cut to KEEP_CHARS, and what is left of the last one."""
    *lines, left = re.split(rb"[\r\n]+", rest + data)
    return [_text(line) for line in lines if line], left[-READ_BYTES:]


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")[:KEEP_CHARS]
