"""The run folder: where it is, what is in it, written so that a killed rig loses nothing.

Small files are written whole to a temporary name and renamed, so a reader never sees half a file.
`requests.jsonl` is only ever appended to, by `evals.sink`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

import orjson
from pydantic import TypeAdapter, ValidationError

from evals.errors import EvalError
from evals.records import RequestRecord
from evals.sink import JsonlWriter, Records, ends_whole, read_jsonl, read_records
from rig.errors import DataError
from rig.records import SCHEMA, CellResult, Judged, JudgedCanary, Leg, Pair, RunInfo, RunResult

T = TypeVar("T")

_CELL = TypeAdapter(CellResult)
_RUN = TypeAdapter(RunInfo)
_JUDGED = TypeAdapter(Judged)
_LEG = TypeAdapter(Leg)
_PAIR = TypeAdapter(Pair)
_CANARY = TypeAdapter(JudgedCanary)


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".part")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def new_run_id(name: str, now: datetime | None = None) -> str:
    """Sortable by time, with the sweep's name: `20260131-235959-tiny_hybrid`."""
    stamp = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}"


@dataclass(frozen=True)
class CellFiles:
    """The lines of a cell's files; None of a file that is not there. `pairs` are by baseline."""

    requests: Records | None
    judged: list[Judged] | None
    pairs: dict[str, list[Pair]]
    canaries: list[JudgedCanary]


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, parent: Path, name: str) -> RunFolder:
        """Make a new, empty run folder; a second run within the same second gets a number."""
        run_id = new_run_id(name)
        for attempt in range(1, 1000):
            path = parent / (run_id if attempt == 1 else f"{run_id}-{attempt}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise DataError(
                    f"{parent}: no run can be written there: {error.strerror}; give another --out"
                ) from None
            return cls(path)
        raise DataError(f"{parent}: no free name for a run folder")

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run; raises DataError when it is not one."""
        if not (path / "run.json").is_file():
            raise DataError(f"{path}: not a run folder (it has no run.json)")
        return cls(path)

    def deployment(self, deployment_id: str) -> Path:
        return self.path / "deployments" / deployment_id

    def cell(self, cell_id: str) -> Path:
        return self.path / "cells" / cell_id

    def requests(self, cell_id: str) -> Path:
        return self.cell(cell_id) / "requests.jsonl"

    def new_deployment(self, deployment_id: str) -> str:
        """The name of a folder for one more launch of a deployment: its id, then `ID.2`, `ID.3`."""
        launches = 1 + len(
            [*self.path.glob(f"deployments/{deployment_id}"), *self.path.glob(f"deployments/{deployment_id}.*")]
        )
        return deployment_id if launches == 1 else f"{deployment_id}.{launches}"

    def new_requests(self, cell_id: str, kept: Iterable[RequestRecord] = ()) -> Path:
        """Where a cell's records go; those of an earlier, unfinished attempt are renamed: they stay as they were.

        Only those of them that are `kept` begin the new file.
        """
        path = self.requests(cell_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name("requests.part")
        scratch.unlink(missing_ok=True)
        with JsonlWriter(scratch) as sink:
            for record in kept:
                sink.append_record(record)
        if path.exists():
            earlier = len(list(path.parent.glob("requests.*.jsonl")))
            path.rename(path.with_name(f"requests.{earlier + 1}.jsonl"))
        scratch.rename(path)
        return path

    def write_info(self, info: RunInfo) -> None:
        write_text(self.path / "run.json", _RUN.dump_json(info, indent=1).decode() + "\n")

    def write_cell(self, result: CellResult) -> None:
        write_cell(self.cell(result.cell_id) / "cell.json", result)

    def write_judged(self, cell_id: str, judged: Iterable[Judged], name: str = "judged.jsonl") -> None:
        write_judged(self.cell(cell_id) / name, judged)

    def write_pairs(self, cell_id: str, baseline: str, pairs: Iterable[Pair]) -> None:
        """Write the cell's pairs with one baseline, whose name may have any characters, one a line."""
        _write_rows(self.cell(cell_id) / f"pairs.{quote(baseline, safe='')}.jsonl", _PAIR, pairs)

    def write_canaries(self, cell_id: str, canaries: Iterable[JudgedCanary]) -> None:
        _write_rows(self.cell(cell_id) / "canaries.jsonl", _CANARY, canaries)

    def read_info(self) -> RunInfo:
        return load(_RUN, self.path / "run.json", SCHEMA)

    def read_cell(self, cell_id: str) -> CellResult | None:
        """The cell's result, or None when it has none yet."""
        path = self.cell(cell_id) / "cell.json"
        return load(_CELL, path, SCHEMA) if path.is_file() else None

    def read_judged(self, cell_id: str) -> list[Judged]:
        return _rows(_JUDGED, self.cell(cell_id) / "judged.jsonl")

    def read_pairs(self, cell_id: str) -> dict[str, list[Pair]]:
        """The cell's pairs by baseline, in the order of their names; empty where it was held against nothing."""
        paths = sorted(self.cell(cell_id).glob("pairs.*.jsonl"))
        return {unquote(p.name.removeprefix("pairs.").removesuffix(".jsonl")): _rows(_PAIR, p) for p in paths}

    def read_canaries(self, cell_id: str) -> list[JudgedCanary]:
        """The cell's judged canaries; empty where it has none."""
        path = self.cell(cell_id) / "canaries.jsonl"
        return _rows(_CANARY, path) if path.is_file() else []

    def damage(self, result: CellResult) -> str | None:
        """Why a finished cell's files are not those that its result was made from; None where they are."""
        if result.task is None:
            return None
        try:
            return _damage(result.task.n, self.read_requests(result.cell_id), self.read_judged(result.cell_id))
        except (DataError, EvalError) as error:
            return f"its files are damaged: {error}"

    def read_files(self, cell_id: str) -> CellFiles:
        """What a cell that is finished, or was begun, has on disk; one that never asked has no such files."""
        asked, judged = self.requests(cell_id), self.cell(cell_id) / "judged.jsonl"
        return CellFiles(
            read_records(asked) if asked.is_file() else None,
            self.read_judged(cell_id) if judged.is_file() else None,
            self.read_pairs(cell_id),
            self.read_canaries(cell_id),
        )

    def holes(self, result: CellResult, files: CellFiles) -> tuple[str, ...]:
        """What of a finished cell's files is cut, there twice, or less than its result was made from; else empty.

        Pairs that are missing altogether can be made from the requests of both cells, and are no hole.
        """
        found = [
            f"{path.name} ends within a line: what stood behind that is lost"
            for path in sorted(self.cell(result.cell_id).glob("*.jsonl"))
            if not ends_whole(path)
        ]
        if result.task is None:
            return tuple(found)
        asked, judged = files.requests, files.judged
        found += [
            f"{name} is missing" for name, rows in (("requests.jsonl", asked), ("judged.jsonl", judged)) if rows is None
        ]
        if asked is not None and asked.repeated:
            number, first = len(asked.repeated), asked.repeated[0]
            found.append(f"requests.jsonl: lines that are there twice and count once: {number}, the first is {first}")
        if asked is not None and judged is not None and (damage := _damage(result.task.n, asked.records, judged)):
            found.append(damage)
        for comparison in result.comparisons:
            first = sum(pair.repeat == 0 for pair in files.pairs.get(comparison.baseline, ()))
            if comparison.baseline in files.pairs and first < comparison.n:
                found.append(f"pairs with {comparison.baseline}: {first} of {comparison.n} are there")
        return tuple(found)

    def read_requests(self, cell_id: str) -> list[RequestRecord]:
        return list(read_records(self.requests(cell_id)).records)

    def read_legs(self, deployment_id: str) -> list[Leg] | None:
        """The proxy's legs, or None where there is no log of them."""
        path = self.deployment(deployment_id) / "legs.jsonl"
        return _rows(_LEG, path) if path.is_file() else None

    def read(self) -> RunResult:
        """All results of the run, in the order of the plan."""
        info = self.read_info()
        cells, rows = info.resolved.get("cells", []), info.resolved.get("reference", [])
        if not all(isinstance(part, list) and all(isinstance(row, dict) for row in part) for part in (cells, rows)):
            raise DataError(f"{self.path / 'run.json'}: resolved: not what a sweep writes")
        order = {cell.get("id"): i for i, cell in enumerate(cells)}
        ids = [path.parent.name for path in self.path.glob("cells/*/cell.json")]
        results = [self.read_cell(i) for i in sorted(ids, key=lambda i: (order.get(i, len(order)), i))]
        return RunResult(info, tuple(r for r in results if r is not None), tuple(rows))


def _damage(questions: int, records: Iterable[RequestRecord], judged: Iterable[Judged]) -> str | None:
    asked = sum(r.kind == "question" and r.repeat == 0 for r in records)
    scored = sum(j.repeat == 0 for j in judged)
    if asked == scored == questions:
        return None
    return f"its files are damaged: {questions} questions, {asked} whole records, {scored} judged"


def as_json(value: object) -> object:
    """A value as it reads back after it was written as JSON."""
    return json.loads(json.dumps(value, default=str))


def write_cell(path: Path, result: CellResult) -> None:
    """Write a cell's result."""
    write_text(path, _CELL.dump_json(result, indent=1).decode() + "\n")


def write_judged(path: Path, judged: Iterable[Judged]) -> None:
    """Write judged records, one a line."""
    _write_rows(path, _JUDGED, judged)


def _write_rows(path: Path, adapter: TypeAdapter[T], rows: Iterable[T]) -> None:
    write_text(path, "".join(adapter.dump_json(row).decode() + "\n" for row in rows))


def _rows(adapter: TypeAdapter[T], path: Path) -> list[T]:
    rows = []
    for number, row in enumerate(read_jsonl(path).rows, 1):
        try:
            rows.append(adapter.validate_python(row))
        except ValidationError as error:
            raise _unreadable(f"{path}:{number}", error) from None
    return rows


def load(adapter: TypeAdapter[T], path: Path, schema: int | None = None) -> T:
    """A JSON file as its shape. Raises DataError for one that has another, or another `schema` than is given."""
    content = path.read_bytes()
    if schema is not None:
        require_schema(path, content, schema)
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        raise _unreadable(str(path), error) from None


def require_schema(path: Path, content: bytes, schema: int) -> None:
    """Raises DataError where a file says that it has another schema; what says nothing is for its reader to judge."""
    try:
        data = orjson.loads(content)
    except orjson.JSONDecodeError:
        return
    found = data.get("schema", schema) if isinstance(data, dict) else schema
    if found != schema:
        raise DataError(
            f"{path}: schema {found}, this version of the rig reads {schema}: "
            "read it with the version that wrote it, or make it again with this one"
        )


def _unreadable(where: str, error: ValidationError) -> DataError:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    return DataError(
        f"{where}: {f'{key}: ' if key else ''}{first['msg']} (damaged, or written by another version of the rig?)"
    )
