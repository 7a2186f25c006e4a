"""Lines of JSON on disk: appended one at a time, read back even if the last one is cut."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from evals.errors import DataError
from evals.records import SCHEMA, RequestRecord


class JsonlWriter:
    """Appends to a file; a line is with the operating system, in a single write, when `append` returns.

    A cut last line, left by a process that was killed, is taken off on opening; `removed_bytes` is its length.
    `append` raises OSError if the line could not be written whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.removed_bytes = self._remove_cut_line()

    def append(self, row: Mapping[str, Any]) -> None:
        self._write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))

    def append_record(self, record: RequestRecord) -> None:
        self.append(record.to_json())

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        written = os.write(self._fd, line)
        if written != len(line):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise OSError(f"{self.path}: only {written} of {len(line)} bytes were written; is the disk full?")

    def _remove_cut_line(self) -> int:
        size = os.fstat(self._fd).st_size
        end = size
        while end > 0:
            begin = max(0, end - 2**16)
            last = os.pread(self._fd, end - begin, begin).rfind(b"\n")
            if last >= 0:
                end = begin + last + 1
                break
            end = begin
        if end != size:
            os.ftruncate(self._fd, end)
        return size - end


@dataclass(frozen=True)
class Lines:
    """The whole lines of a file, and how many bytes of a cut line follow them (0: none)."""

    rows: tuple[dict[str, Any], ...]
    cut_bytes: int


@dataclass(frozen=True)
class Records:
    """The records of a file, and how many bytes of a cut line follow them (0: none).

    `repeated` are the numbers of lines that say once more what an earlier one says: they are no records.
    """

    records: tuple[RequestRecord, ...]
    cut_bytes: int
    repeated: tuple[int, ...] = ()


def read_jsonl(path: Path) -> Lines:
    """Rows of a JSONL file. Raises DataError, naming file and line, for a whole line that is not an object."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    *whole, cut = content.split(b"\n")
    rows = []
    for number, line in enumerate(whole, 1):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            row = None
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected a JSON object")
        rows.append(row)
    return Lines(tuple(rows), len(cut))


def ends_whole(path: Path) -> bool:
    """Whether a file ends with its last line's end; an empty one does. The rest of it is not read."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) in (b"", b"\n")


def read_records(path: Path) -> Records:
    """Records of a `requests.jsonl`. Raises DataError, naming file and line, for a line that is not one, or that is
    another record of a request than an earlier line: which of them is true, nothing tells.
    """
    lines = read_jsonl(path)
    records, repeated = [], []
    first: dict[str, int] = {}
    for number, row in enumerate(lines.rows, 1):
        if (schema := row.get("schema", SCHEMA)) != SCHEMA:
            raise DataError(
                f"{path}:{number}: schema {schema}, this version of the rig reads {SCHEMA}: "
                "read it with the version that wrote it, or ask again with this one"
            )
        try:
            record = RequestRecord.from_json(row)
            earlier = first.setdefault(record.request_id, number)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}:{number}: not a record of a request ({type(error).__name__}: {error})") from None
        if earlier == number:
            records.append(record)
        elif lines.rows[earlier - 1] == row:
            repeated.append(number)
        else:
            raise DataError(
                f"{path}:{number}: another record of {record.request_id} than in line {earlier}: "
                "the file is damaged; restore it, or ask again"
            )
    return Records(tuple(records), lines.cut_bytes, tuple(repeated))
