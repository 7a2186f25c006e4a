"""A small run: a baseline, a cell that passed, one that got worse, one that never came up."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from evals.records import RequestError, RequestRecord
from rig.records import (
    CellResult,
    Comparison,
    Evidence,
    Judged,
    JudgedCanary,
    Outcome,
    Pair,
    Reason,
    RunInfo,
    RunResult,
    State,
    TaskInfo,
    Verdict,
)
from rig.report.data import CellData, RunData
from rig.store import RunFolder

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


HOSTILE = (
    "</script><script>globalThis.struck = 1</script>",
    "<img src=x onerror='globalThis.struck = 2'> <!-- <script> --> & \" '",
    "null \x00, escape \x1b[31m, half a pair \ud83d, a whole one \U0001f600, \u2028 \u2029 ]]>",
)
"""What a model may write."""


def answer(i: int) -> str:
    return HOSTILE[i] if i < len(HOSTILE) else f"Question {i} asks for {i} and {i}, so it is 18. #### 18"


@pytest.fixture
def detailed(
    run: RunResult, make_record: Callable[..., RequestRecord], make_judged: Callable[..., list[Judged]]
) -> RunData:
    """The small run with its requests: of 40 questions `pd-on` lost two and failed at one; it had three canaries."""

    def side(name: str, lost: tuple[int, ...] = (), failed: tuple[int, ...] = ()) -> CellData:
        records, judged = [], []
        warmup = {"kind": "warmup", "request_id": f"{name}-warm", "t_submit": 0.0, "t_end": 0.05}
        records.append(make_record("warmup-0", **warmup))
        for i, row in enumerate(make_judged(40, lost, failed)):
            sample, request_id = f"q-{i:04d}", f"q-{i:04d}-{name}"
            text = answer(i).replace("it is 18", "it is 99") if i in lost else answer(i)
            error = RequestError("decode", "stream_cut", "gone <b>away</b>") if i in failed else None
            times = {"t_submit": 0.1 + i / 50, "t_first_token": 0.12 + i / 50, "t_end": 0.2 + i / 50 + i % 3 / 20}
            tokens = {"prompt_tokens": 100 + i, "completion_tokens": 20}
            fields = {"request_id": request_id, "text": None if error else text, "error": error}
            records.append(make_record(sample, **fields, **times, **tokens))
            judged.append(replace(row, request_id=request_id, sample_id=sample, target_text="9 + 9 = 18.\n#### 18"))
        return CellData(records, judged)

    mono, off, on = side("mono"), side("off"), side("on", (10, 20), (30,))
    pairs = [
        Pair(
            mine.sample_id,
            mine.request_id,
            base.request_id,
            mine.outcome,
            base.outcome,
            equal=None if mine.outcome == "error" else mine.outcome == "correct",
            first_token=9 if mine.outcome == "wrong" else None,
            shift=2.5 if mine.outcome == "wrong" else None,
            order=i,
            concurrency=1 + i % 4,
            prompt_tokens=100 + i,
            block_remainder=(100 + i) % 16,
            prefill="prefill-0",
            decode="decode-0",
        )
        for i, (mine, base) in enumerate(zip(on.judged, mono.judged, strict=True))
    ]
    codes = [("right", "K0", None), ("wrong", "?", None), ("crossed", "K0", "canary-0000")]
    canaries = [
        JudgedCanary(f"canary-{i:04d}-on", f"canary-{i:04d}", f"K{i}", text, outcome, crossed, order=40 + i)  # type: ignore[arg-type]
        for i, (outcome, text, crossed) in enumerate(codes)
    ]
    asked = [
        make_record(c.sample_id, kind="canary", request_id=c.request_id, text=c.answer, t_submit=1.0, t_end=1.1)
        for c in canaries
    ]
    on = CellData([*on.records, *asked], on.judged, {"mono": pairs}, canaries)
    return RunData(run, {"mono": mono, "pd-off": off, "pd-on": on})


@pytest.fixture
def big_run(run: RunResult, make_record: Callable[..., RequestRecord]) -> Callable[[int, int], RunData]:
    """Cells of n questions with answers of some 500 characters, of which most leave the baseline's half way."""

    def make(cells: int, n: int) -> RunData:
        results, found = [], {}
        for c in range(cells):
            name = f"cell-{c}"
            draw = random.Random(c)
            records, judged = [], []
            for i in range(n):
                shared = " ".join(f"word{(i * 31 + k * 7) % 997}" for k in range(30))
                own = " ".join(f"word{draw.randrange(997)}" for _ in range(30)) if i % 4 else "the same"
                text = f"{shared} {own} #### {i}"
                outcome: Outcome = "correct" if draw.random() < 0.9 or c == 0 else "wrong"
                request_id = f"gsm8k-{i:04d}-{c}-{draw.getrandbits(60):015x}"
                times = {"t_submit": i / 20, "t_first_token": i / 20 + 0.05 + draw.random() / 10, "t_end": i / 20 + 1.5}
                tokens = {"prompt_tokens": 900, "completion_tokens": 120}
                records.append(make_record(f"gsm8k-{i:04d}", request_id=request_id, text=text, **times, **tokens))
                target = f"{shared} #### {i}"
                row = Judged(request_id, f"gsm8k-{i:04d}", "strict", str(i), str(i), outcome, target_text=target)
                judged.append(row)
            kind = run.cells[1] if c else run.cells[0]
            comparisons = (replace(WORSE, baseline="cell-0"),) if c else ()
            labels = {"model": "tiny", "decode_tp": c, "concurrency": 8}
            results.append(replace(kind, cell_id=name, comparisons=comparisons, labels=labels))
            found[name] = CellData(records, judged)
        return RunData(RunResult(run.info, tuple(results)), found)

    return make


@pytest.fixture
def every_state(run: RunResult, make_result: Callable[..., CellResult]) -> RunResult:
    """A baseline, one cell of each state, and one that was interrupted before a verdict."""
    task = TaskInfo("gsm8k", "3.0", "p", "gsm8k-strict", "s", 400)
    gone = CellResult("cell-failed", {}, "pd", "d2", "failed", failure="decode-0 ended with code -9")
    said: dict[State, tuple[CellResult, Reason]] = {
        "pass": (make_result(comparisons=(SAME,)), Reason("accuracy", "No worse by 2.00 points.", "judged.jsonl")),
        "improved": (make_result(comparisons=(SAME,)), Reason("accuracy", "Better than mono.")),
        "regression": (make_result(correct=350, wrong=48, comparisons=(WORSE,)), Reason("accuracy", "Worse: <5 & up.")),
        "inconclusive": (make_result(comparisons=(SAME,)), Reason("accuracy", "Not decided: 200 more questions.")),
        "no_baseline": (make_result(), Reason("accuracy", "There is nothing to hold this cell against.")),
        "invalid": (make_result(evidence=Evidence(False)), Reason("transfer", "KV did not move.", "counters")),
        "failed": (gone, Reason("errors", "The deployment died: decode-0 ended with code -9")),
        "xfail": (make_result(comparisons=(WORSE,)), Reason("accuracy", "Expected to fail: upstream #42182. It did.")),
        "xpass": (make_result(comparisons=(SAME,)), Reason("accuracy", "Expected to fail: #42182. It did not.")),
    }
    cells = [make_result("mono", kind="monolithic", task=task)]
    for state, (cell, reason) in said.items():
        asked = None if state == "failed" else task
        cells.append(replace(cell, cell_id=f"cell-{state}", task=asked, verdict=Verdict(state, (reason,))))
    cells.append(CellResult("cell-interrupted", {}, "pd", "d", "interrupted"))
    for i, cell in enumerate(cells):
        prefill = None if cell.kind == "monolithic" else 1 + i % 2
        labels = {"model": "tiny", "prefill_tp": prefill, "decode_tp": 1, "async_scheduling": i % 3 == 0}
        cells[i] = replace(cell, labels=labels)
    return RunResult(replace(run.info, versions={"pdrig": "0.1.0"}), tuple(cells))


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The run, in a folder of its own under its own name."""
    with tarfile.open(Path(__file__).parent / "runs" / "builds.tar.xz") as archive:
        archive.extractall(tmp_path / "runs", filter="data")
    monkeypatch.chdir(tmp_path)
    [path] = Path("runs").iterdir()
    return RunFolder.open(path)
