"""Records and results to start from: a sound cell of 400 questions, of which a test says what differs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import settings

from evals.records import RequestRecord
from rig.records import Accuracy, CellResult, Counts, Evidence, Judged, Percentiles, Throughput
from rig.stats import wilson

# A busy machine makes any example slow; how long one takes is not what the tests are about.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


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
