"""A small run: a baseline, a cell that passed, one that got worse, one that never came up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rig.records import CellResult, Comparison, Reason, RunInfo, RunResult, Verdict

WORSE = Comparison("mono", -0.095, (-0.1289, -0.0675), 1e-9, 40, 2, 400, 0.03, 0.9)
SAME = Comparison("mono", -0.0025, (-0.0158, 0.0095), 0.5, 2, 1, 400, 0.018, 0.99)


@pytest.fixture
def run(make_result: Callable[..., CellResult]) -> RunResult:
    def labels(prefill_tp: int | None, async_scheduling: bool) -> dict[str, object]:
        return {"model": "tiny", "prefill_tp": prefill_tp, "async_scheduling": async_scheduling}

    mono = make_result("mono", kind="monolithic", labels=labels(None, True))
    same = make_result(
        "pd-off",
        labels=labels(1, False),
        comparisons=(SAME,),
        verdict=Verdict("pass", (Reason("accuracy", "No worse by 2.00 points.", "judged.jsonl"),)),
        commands={"prefill-0": ["vllm", "serve", "tiny", "--kv-transfer-config", '{"kv_role":"kv_both"}']},
    )
    worse = make_result(
        "pd-on",
        labels=labels(1, True),
        correct=350,
        wrong=45,
        unparsed=3,
        error={"reset": 1},
        comparisons=(WORSE,),
        verdict=Verdict("regression", (Reason("accuracy", "Worse than on mono. " * 12 + "End.", "judged.jsonl"),)),
    )
    dead = CellResult(
        "pd-dead",
        labels(2, True),
        "pd",
        "d2",
        "failed",
        failure="gone",
        verdict=Verdict("failed", (Reason("errors", "decode-0 ended with code -9", "CUDA error"),)),
    )
    info = RunInfo("id", "tiny", "configs/tiny.yaml", "", {}, "2026-01-31T10:00:00Z", None, [], {}, {}, None)
    info = replace(info, ended="2026-01-31T10:20:00Z")
    return RunResult(info, (mono, same, worse, dead), ({"model": "big", "accuracy": 0.865, "labels": {"tp": 4}},))
