"""What a report of single requests is made from: the results of a run, and the records of each cell; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from evals.records import RequestRecord
from rig.pairs import Side, make_pairs
from rig.records import CellResult, Judged, JudgedCanary, Pair, RunResult
from rig.report.logs import LogTail


@dataclass(frozen=True)
class CellData:
    """The requests of one cell: raw, judged, held against each baseline by its name, and canaries.

    `logs` are the ends of its servers' logs where it failed; `holes` say what of its files is cut or missing.
    """

    records: Sequence[RequestRecord] = ()
    judged: Sequence[Judged] = ()
    pairs: Mapping[str, Sequence[Pair]] = field(default_factory=dict)
    canaries: Sequence[JudgedCanary] = ()
    logs: Sequence[LogTail] = ()
    holes: Sequence[str] = ()


@dataclass(frozen=True)
class RunData:
    """A run with the requests of its cells, by cell id; a cell that asked nothing may be absent."""

    results: RunResult
    cells: Mapping[str, CellData] = field(default_factory=dict)

    def cell(self, cell_id: str) -> CellData:
        return self.cells.get(cell_id) or CellData()

    def holes(self) -> list[str]:
        """What of the run's files is cut or missing, each with its cell's name."""
        return [
            f"{result.cell_id}: {hole}" for result in self.results.cells for hole in self.cell(result.cell_id).holes
        ]

    def pairs(self, result: CellResult) -> dict[str, Sequence[Pair]]:
        """Pairs of a cell by baseline, in the order of its comparisons; then those with itself.

        Where a run has none on disk they are made from the requests of both cells, without what only the engines'
        logs and settings tell: who served a request, and the block size.
        """
        return self._pairs.get(result.cell_id, {})

    @cached_property
    def _pairs(self) -> dict[str, dict[str, Sequence[Pair]]]:
        return {result.cell_id: self._of(result) for result in self.results.cells}

    def _of(self, result: CellResult) -> dict[str, Sequence[Pair]]:
        stored = self.cell(result.cell_id).pairs
        names = [c.baseline for c in result.comparisons]
        names += [name for name in stored if name not in names]
        found = {name: stored[name] if name in stored else self._paired(result.cell_id, name) for name in names}
        return {name: pairs for name, pairs in found.items() if pairs}

    def _paired(self, cell_id: str, baseline: str) -> list[Pair]:
        mine, theirs = self.cell(cell_id), self.cell(baseline)
        return make_pairs(_side(mine), _side(theirs), None, mine.records)


def _side(cell: CellData) -> Side:
    return Side(cell.judged, [record for record in cell.records if record.kind == "question"])


def arrival(records: Sequence[RequestRecord]) -> dict[str, int]:
    """The place of each question in order of arrival, from 0, by request id."""
    questions = sorted((r for r in records if r.kind == "question"), key=lambda r: (r.t_submit, r.request_id))
    return {record.request_id: i for i, record in enumerate(questions)}
