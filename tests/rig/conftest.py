"""Records and results to start from: a sound cell of 400 questions, of which a test says what differs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from evals.records import RequestError, RequestRecord
from evals.scorers import get_scorer
from evals.sink import JsonlWriter
from rig import metrics
from rig.judge import judge
from rig.records import (
    Accuracy,
    CellResult,
    Counts,
    Evidence,
    Judged,
    Percentiles,
    Reason,
    RunInfo,
    State,
    TaskInfo,
    Throughput,
    Verdict,
)
from rig.stats import wilson
from rig.store import RunFolder


@pytest.fixture
def make_record() -> Callable[..., RequestRecord]:
    """A question that was answered: `make_record(sample_id, **fields)`."""

    def make(sample_id: str, **fields: Any) -> RequestRecord:
        given: dict[str, Any] = {
            "kind": "question",
            "request_id": f"r-{sample_id}",
            "endpoint": "completions",
            "prompt_sha256": "0" * 64,
            "t_submit": 0.0,
            "t_end": 1.0,
            "http_status": 200,
            "finish_reason": "stop",
            "text": "#### 18",
        }
        return RequestRecord(sample_id=sample_id, **(given | fields))

    return make


@pytest.fixture
def make_judged() -> Callable[..., list[Judged]]:
    """n questions, of which `wrong` and `failed` are numbers: `make_judged(n, wrong, failed)`."""

    def make(n: int, wrong: Collection[int] = (), failed: Collection[int] = ()) -> list[Judged]:
        return [
            Judged(
                f"r{i}",
                f"q{i}",
                "gsm8k-strict",
                "1",
                "1",
                "error" if i in failed else "wrong" if i in wrong else "correct",
            )
            for i in range(n)
        ]

    return make


@pytest.fixture
def make_result() -> Callable[..., CellResult]:
    """A P/D cell whose KV moved, without a verdict: `make_result(cell_id, correct=, wrong=, error=, **fields)`."""

    def make(
        cell_id: str = "pd",
        *,
        kind: str = "pd",
        correct: int = 390,
        wrong: int = 8,
        unparsed: int = 1,
        truncated: int = 1,
        error: dict[str, int] | None = None,
        **fields: Any,
    ) -> CellResult:
        n = correct + wrong + unparsed + truncated
        value = correct / n if n else None
        latency = Percentiles(p50=12.34, p90=20.0, p99=345.6, mean=15.0)
        moved = Evidence(True, transfers=400, external_tokens=51200, local_tokens=400, failed=0, expired=0)
        given: dict[str, Any] = {
            "labels": {"decode_tp": 1},
            "deployment": "d",
            "status": "ok",
            "accuracy": Accuracy("gsm8k-strict", value, wilson(correct, n), {"gsm8k-strict": value, "robust": 0.98}),
            "counts": Counts(correct, wrong, unparsed, truncated, error or {}),
            "latency_ms": {"e2e": latency, "ttft": latency, "tpot": latency},
            "throughput": Throughput(7.894, 812.3, 9000.0, 41153, 50.67),
            "evidence": moved if kind == "pd" else Evidence(None),
        }
        return CellResult(cell_id=cell_id, kind="pd" if kind == "pd" else "monolithic", **(given | fields))

    return make


@pytest.fixture
def store_run(tmp_path: Path, make_record: Callable[..., RequestRecord]) -> Callable[..., RunFolder]:
    """A run on disk: `store_run(name, {cell_id: {...}}, **fields of RunInfo)`.

    Of a cell may be said: `labels`, `n`, `wrong` and `failed` (numbers of questions), `words` (what prompts are made
    of), `slower` (a factor of all latencies), `state`, `task` (fields of TaskInfo) and any field of CellResult.
    """

    def questions(n: int, wrong: Collection[int], failed: Collection[int], words: str, slower: float) -> Any:
        for i in range(n):
            took = slower * (0.01 + 0.0001 * (i * 7 % 13))
            yield make_record(
                f"q{i:04d}",
                prompt_sha256=f"{words}{i:0{64 - len(words)}d}",
                text=None if i in failed else "#### 2" if i in wrong else "#### 1",
                error=RequestError("decode", "reset", "gone") if i in failed else None,
                t_submit=0.1 * i,
                t_first_token=0.1 * i + took,
                t_end=0.1 * i + 5 * took,
                prompt_tokens=100 + i,
                completion_tokens=9,
            )

    def store(name: str, cells: Mapping[str, Mapping[str, Any]], **fields: Any) -> RunFolder:
        run = RunFolder(tmp_path / name)
        planned = [{"id": cell_id, "labels": _labels(cell_id, about)} for cell_id, about in cells.items()]
        given: dict[str, Any] = {
            "resolved": {"cells": planned},
            "argv": ["pdrig", "sweep", "x.yaml"],
            "versions": {"pdrig": "0.1.0"},
            "host": {"hostname": "h", "machine": "x86_64", "cpus": 2, "gpus": [], "environment": {}},
            "git": {"commit": "c" * 40, "branch": "main", "changed": False},
        }
        run.write_info(
            RunInfo(
                run_id=name,
                name="x",
                config_file="x.yaml",
                config_text="",
                started="2026-01-31T00:00:00Z",
                ended=None,
                **(given | fields),
            )
        )
        for cell_id, about in cells.items():
            cell(run, cell_id, dict(about))
        return run

    def cell(run: RunFolder, cell_id: str, about: dict[str, Any]) -> None:
        labels, state = _labels(cell_id, about), about.pop("state", None)
        about.pop("labels", None)
        n, task = about.pop("n", 200), about.pop("task", {})
        shape = {"wrong": (), "failed": (), "words": "a", "slower": 1.0}
        records = list(questions(n, *(about.pop(key, usual) for key, usual in shape.items())))
        scorer = get_scorer(task.get("scorer", "gsm8k-strict"))
        judged = judge(records, {r.sample_id: "#### 1" for r in records}, [scorer.name, "robust"], scorer.name)
        with JsonlWriter(run.new_requests(cell_id)) as sink:
            for record in records:
                sink.append_record(record)
        run.write_judged(cell_id, judged)
        usual_task = {
            "name": "gsm8k",
            "version": "3.0",
            "prompt_sha256": "p" * 64,
            "scorer": scorer.name,
            "scorer_sha256": scorer.sha256,
            "n": n,
            "params": {"max_tokens": 256, "temperature": 0.0, "stop": ["Question:"]},
        }
        pd = labels["prefill_tp"] is not None
        given: dict[str, Any] = {
            "labels": labels,
            "kind": "pd" if pd else "monolithic",
            "deployment": "d",
            "status": "ok",
            "task": TaskInfo(**(usual_task | task)),
            "commands": {"decode-0": ["vllm", "serve", "tiny"]},
            "warmup_requests": 16,
            "accuracy": metrics.accuracy(judged, scorer.name, [scorer.name, "robust"]),
            "counts": metrics.counts(judged, records),
            "latency_ms": metrics.latency_ms(records),
            "throughput": metrics.throughput(records),
            "evidence": Evidence(True, transfers=n, failed=0, expired=0) if pd else Evidence(None),
            "verdict": _verdict(state, pd),
        }
        run.write_cell(CellResult(cell_id=cell_id, **(given | about)))

    return store


def _labels(cell_id: str, about: Mapping[str, Any]) -> dict[str, Any]:
    tp = None if cell_id.startswith("mono") else 1
    return {"model": "tiny", "task": "math", "prefill_tp": tp, "decode_tp": 1, "async_scheduling": False} | about.get(
        "labels", {}
    )


def _verdict(state: State | None, pd: bool) -> Verdict | None:
    if state is None:
        return Verdict("pass", (Reason("accuracy", "No worse."),)) if pd else None
    return Verdict(state, (Reason("accuracy", f"It is {state}."),))
