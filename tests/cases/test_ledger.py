"""`configs/sim.yaml` as it is, on free ports: every figure of its table is what the engines say they did."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import yaml


@pytest.fixture(scope="module")
def swept(kit: Any, start_sweep: Any) -> Any:
    sweep = yaml.safe_load((kit.root / "configs" / "sim.yaml").read_text())
    for role in ("prefill", "decode"):
        # Two instances a side take consecutive ports.
        sweep["cell"][role] |= {"port": kit.free_range(2), "side_channel_port": kit.free_range(2)}
    sweep["cell"]["proxy"]["port"] = kit.free_range(1)
    sweep["rerun"] = False
    return start_sweep(sweep).finish()


def test_exit_code_and_verdicts(swept: Any) -> None:
    assert swept.code == 1, swept.out + swept.err
    states = {}
    for cell in swept.by_id.values():
        labels = cell.result["labels"]
        states[cell.result["kind"], labels["prefill_instances"], labels["async_scheduling"]] = cell.state
    assert states == {
        ("monolithic", None, False): None,
        ("pd", 1, True): "regression",
        ("pd", 1, False): "pass",
        ("pd", 2, False): "pass",
    }


def test_every_figure_is_in_the_ledger(swept: Any) -> None:
    for cell in swept.by_id.values():
        side = "decode" if cell.result["kind"] == "pd" else "monolithic"
        asked = [record for record in cell.records if record.kind == "question"]
        # The baseline is asked once more for its noise floor, which is in no figure of the table.
        assert len(cell.judged) == len(asked) == (400 if side == "decode" else 800)
        questions = {record.request_id for record in asked if record.repeat == 0}
        told = {name: row for name, row in cell.truth(side).items() if name in questions}
        assert len(told) == len(questions) == 400
        right = Counter(row["right"] for row in told.values())
        counts = {"correct": right[True], "wrong": right[False], "unparsed": 0, "truncated": 0, "error": {}}
        assert {name: cell.result["counts"][name] for name in counts} == counts
        assert cell.result["accuracy"]["value"] == right[True] / 400
        assert {name for name, row in cell.judged.items() if row["outcome"] == "wrong"} == {
            name for name, row in told.items() if row["faults"]
        }
        canaries = [cell.truth(side)[r.request_id] for r in cell.records if r.kind == "canary" and r.repeat == 0]
        damaged = sum(bool(row["faults"]) for row in canaries)
        assert len(canaries) == 40 and damaged == sum(not row["right"] for row in canaries)
        seen = cell.result["evidence"]["canaries"]
        again = 40 if side == "monolithic" else 0
        assert (seen["sent"], seen["wrong"] + seen["crossed"], seen["error"]) == (40 + again, damaged, 0)
        output = sum(row["completion_tokens"] for row in told.values())
        assert cell.result["throughput"]["total_output_tokens"] == output
        assert {r.request_id: r.prompt_tokens for r in cell.records if r.request_id in told} == {
            name: row["prompt_tokens"] for name, row in told.items()
        }
        if side == "decode":
            proof = cell.result["evidence"]
            every = [row for name, row in cell.truth(side).items() if name in questions or row in canaries]
            assert proof["external_tokens"] == sum(row["external_tokens"] for row in every)
            assert proof["local_tokens"] == sum(row["local_tokens"] for row in every)
            assert proof["transfers"] == len(every) == 440 and proof["failed"] == proof["expired"] == 0
        assert f"{right[True] / 400:.3f} [" in swept.out


def test_case_1_damage_only_under_load_with_async_scheduling(swept: Any) -> None:
    struck = [row for row in swept.ledger if row["faults"]]
    assert struck and all(row["async_scheduling"] and row["side"] == "decode" for row in struck)
    assert all(row["concurrency"] >= 4 and row["external_tokens"] for row in struck)
    (worse,) = [cell for cell in swept.by_id.values() if cell.state == "regression"]
    assert {"damage", "accuracy"} <= set(worse.channels) and worse.result["labels"]["async_scheduling"] is True
    questions = {record.request_id for record in worse.records if record.kind == "question"}
    assert f"{len(questions & worse.struck('wrong_answer'))} were right only there" in worse.why
