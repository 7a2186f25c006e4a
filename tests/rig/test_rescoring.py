"""Stored texts are scored again; what stands against an answer stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evals.records import RequestRecord
from evals.sink import JsonlWriter
from rig.judge import judge
from rig.records import CellResult, TaskInfo
from rig.rescoring import rescore_cell
from rig.store import RunFolder


def test_taints_and_repeats_survive(tmp_path: Path, make_record: Callable[..., RequestRecord]) -> None:
    run = RunFolder.create(tmp_path, "x")
    records = [
        make_record("a", text="#### 18"),
        make_record("a", request_id="r-a-again", repeat=1, text="#### 7"),
        make_record("b", text="#### 18"),
        make_record("c", text="The answer is 18."),
    ]
    with JsonlWriter(run.new_requests("cell")) as sink:
        for record in records:
            sink.append_record(record)
    targets = dict.fromkeys("abc", "#### 18")
    run.write_judged("cell", judge(records, targets, [], "gsm8k-strict", {"r-b": ("expired_lease",)}))
    task = TaskInfo("gsm-tiny", "1", "x", "gsm8k-strict", "x", 3, {})
    result = CellResult("cell", {}, "pd", "d", "ok", task=task)

    line = rescore_cell(run, result, "robust")

    assert "gives 1.000" in line and "1 outcomes differ" in line, "of a and c; b has no answer that counts"
    kept = (run.cell("cell") / "judged.robust.jsonl").read_text().splitlines()
    assert len(kept) == 4
    [tainted] = [row for row in kept if "expired_lease" in row]
    assert '"r-b"' in tainted and '"outcome":"error"' in tainted.replace(" ", "")
