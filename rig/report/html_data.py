"""The requests of a run as compact JSON for the page's script; pure.

Texts are kept once, and where a question has several, the others as what follows the part they share with
the first. Where even that is too much, those that are right and equal to their baseline go first.
"""

from __future__ import annotations

import json
import re
from typing import Any

from rig.divergence import first_difference
from rig.records import Judged, JudgedCanary
from rig.records_requests import ITSELF
from rig.report.data import RunData
from rig.verdict import state_name

TEXT_BUDGET = 7_000_000
"""Bytes of texts in one page, so that it stays below 10 MB."""
SHARED = 16
"""Characters that two texts of one question must share for one to be kept as the rest of the other."""
LEFT_OUT = -2
"""In place of a text's number where it has been left out."""
OUTCOMES = {
    **{"correct": "c", "wrong": "w", "unparsed": "u", "truncated": "t", "unscored": "n", "error": "e"},
    **{"right": "r", "crossed": "x"},
}

_HALF = re.compile("[\ud800-\udfff]")


class Texts:
    """Numbered texts, each kept once."""

    def __init__(self, budget: int = TEXT_BUDGET) -> None:
        self.kept: list[str | list[Any]] = []
        self.left_out = 0
        self._numbers: dict[str, int] = {}
        self._firsts: dict[str, tuple[int, str]] = {}
        self._room = budget

    def add(self, question: str, text: str) -> int:
        """The number of a text that answers `question`; LEFT_OUT where there is no room for it."""
        if text in self._numbers:
            return self._numbers[text]
        entry: str | list[Any] = text
        first = self._firsts.get(question)
        if first is not None and (shared := first_difference(first[1], text) or 0) >= SHARED:
            # The script counts in UTF-16.
            units = len(text[:shared].encode("utf-16-le", "surrogatepass")) // 2
            entry = [first[0], units, text[shared:]]
        size = len(embedded(entry))
        if size > self._room:
            self.left_out += 1
            return LEFT_OUT
        self._room -= size
        number = len(self.kept)
        self.kept.append(entry)
        self._numbers[text] = number
        if first is None:
            self._firsts[question] = (number, text)
        return number


def embedded(value: Any) -> bytes:
    """JSON that may stand in a script element: no `<` in it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")
    return _HALF.sub(lambda half: f"\\u{ord(half.group()):04x}", text).encode()


def requests_data(data: RunData, budget: int = TEXT_BUDGET) -> dict[str, Any]:
    """All questions and canaries of a run, in columns; assets/report.js reads them."""
    cells = [_Cell(data, i) for i in range(len(data.results.cells))]
    rows = {record.request_id: (i, row) for i, cell in enumerate(cells) for row, record in enumerate(cell.records)}
    texts = Texts(budget)
    wanted = {request_id for cell in cells for request_id in cell.wanted()}
    ranked = sorted(
        (r.request_id not in wanted, i, row) for i, c in enumerate(cells) for row, r in enumerate(c.records)
    )
    for _, i, row in ranked:
        cells[i].take_texts(row, texts)
    samples = list(dict.fromkeys(record.sample_id for cell in cells for record in cell.records))
    numbers = {sample: i for i, sample in enumerate(samples)}
    targets: dict[str, str] = {}
    for cell in cells:
        targets |= {j.sample_id: j.target_text or j.target or "" for j in cell.judged.values() if isinstance(j, Judged)}
    return {
        "samples": samples,
        "targets": [targets.get(sample, "") for sample in samples],
        "texts": texts.kept,
        "left_out": texts.left_out,
        "cells": [cell.columns(numbers, rows) for cell in cells],
    }


class _Cell:
    """The rows of one cell: questions in order of arrival, then canaries."""

    def __init__(self, data: RunData, number: int) -> None:
        self.result = data.results.cells[number]
        self.number = number
        found = data.cell(self.result.cell_id)
        kept = [record for record in found.records if record.kind in ("question", "canary")]
        self.records = sorted(kept, key=lambda r: (r.kind != "question", r.t_submit, r.request_id))
        self.judged: dict[str, Judged | JudgedCanary] = {}
        self.judged.update((j.request_id, j) for j in found.judged)
        self.judged.update((c.request_id, c) for c in found.canaries)
        self.pairs = {name: {p.request_id: p for p in pairs} for name, pairs in data.pairs(self.result).items()}
        self.ids = [cell.cell_id for cell in data.results.cells]
        self.texts = [-1] * len(self.records)
        self.reasoning: dict[int, int] = {}

    def wanted(self) -> set[str]:
        """Requests that somebody will want to read, and those beside them: all but the right and equal ones."""
        ids: set[str] = set()
        for record in self.records:
            judged = self.judged.get(record.request_id)
            pairs = [found[record.request_id] for found in self.pairs.values() if record.request_id in found]
            fine = judged is not None and judged.outcome in ("correct", "right")
            if not fine or any(p.equal is False or p.baseline_outcome != "correct" for p in pairs):
                ids |= {record.request_id, *(p.baseline_request_id for p in pairs)}
        return ids

    def take_texts(self, row: int, texts: Texts) -> None:
        record = self.records[row]
        if record.text is not None:
            self.texts[row] = texts.add(record.sample_id, record.text)
        if record.reasoning:
            self.reasoning[row] = texts.add(record.sample_id + "\0reasoning", record.reasoning)

    def columns(self, samples: dict[str, int], rows: dict[str, tuple[int, int]]) -> dict[str, Any]:
        records = self.records
        judged = [self.judged.get(r.request_id) for r in records]
        return {
            "id": self.result.cell_id,
            "state": state_name(self.result),
            "sample": [samples[r.sample_id] for r in records],
            "repeat": {i: r.repeat for i, r in enumerate(records) if r.repeat},
            "id_tail": [r.request_id.removeprefix(r.sample_id) for r in records],
            "outcome": "".join(OUTCOMES[j.outcome] if j else "-" for j in judged),
            "answer": [j.answer if j else None for j in judged],
            "expected": {i: j.expected for i, j in enumerate(judged) if isinstance(j, JudgedCanary)},
            "text": self.texts,
            "reasoning": self.reasoning,
            "at": [round(r.t_submit, 3) for r in records],
            "e2e": [None if r.error else round((r.t_end - r.t_submit) * 1000, 1) for r in records],
            "ttft": [None if r.error else _ms(r.t_submit, r.t_first_token) for r in records],
            "prompt": [r.prompt_tokens for r in records],
            "tokens": [r.completion_tokens for r in records],
            "finish": {i: r.finish_reason for i, r in enumerate(records) if r.finish_reason not in (None, "stop")},
            "error": {
                i: f"{r.error.leg}: {r.error.error_class}: {r.error.message}" for i, r in enumerate(records) if r.error
            },
            "tainted": {i: "; ".join(j.tainted) for i, j in enumerate(judged) if isinstance(j, Judged) and j.tainted},
            "against": [self._against(name, rows) for name in self.pairs],
        }

    def _against(self, name: str, rows: dict[str, tuple[int, int]]) -> dict[str, Any]:
        """One baseline: its cell's number (-1: not in this run), and for each row its row and what the pair says."""
        pairs = [self.pairs[name].get(record.request_id) for record in self.records]
        cell = self.number if name == ITSELF else self.ids.index(name) if name in self.ids else -1
        extra = ("concurrency", "block_remainder", "prefill", "decode", "predecessor")
        return {
            "name": name,
            "cell": cell,
            "row": [rows[p.baseline_request_id][1] if p and p.baseline_request_id in rows else -1 for p in pairs],
            "outcome": "".join(OUTCOMES[p.baseline_outcome] if p else "-" for p in pairs),
            "token": {i: p.first_token for i, p in enumerate(pairs) if p and p.first_token is not None},
            "shift": {i: round(p.shift, 3) for i, p in enumerate(pairs) if p and p.shift is not None},
            "since_finish_ms": {
                i: round(p.since_finish_ms, 3) for i, p in enumerate(pairs) if p and p.since_finish_ms is not None
            },
            **{key: {i: v for i, p in enumerate(pairs) if p and (v := getattr(p, key)) is not None} for key in extra},
        }


def _ms(start: float, end: float | None) -> float | None:
    return None if end is None else round((end - start) * 1000, 1)
