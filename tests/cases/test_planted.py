"""Cases 2 to 10: each can be planted, under its condition and no other; verdicts on those that have no part to name.

Where the damage sits (cases 1, 2, 3, 6, 7, 8, 30) is in test_segments.py; case 1 is the sweep of configs/sim.yaml too,
in test_ledger.py; case 10 as chat is in test_through_proxy.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SOON_MS = 10.0
SERVED = 20
BLOCK = 8


@pytest.fixture(scope="module")
def sweeps(kit: Any, start_sweep: Any) -> dict[str, Any]:
    """Sweeps side by side, all ended."""
    asked = kit.asked
    moved = {"when": {"transferred": True}}
    # Four conditions on one deployment, told apart in the ledger by the kind of damage.
    conditions = [
        asked("wrong_answer", when={"after_finish_within_ms": SOON_MS, "side": "decode"}),
        asked("stale", when={"after_requests": SERVED, "side": "decode"}),
        asked("garbage", when={"prompt_multiple_of": BLOCK, "side": "decode"}),
        asked("swapped", 0.4, by="request", when={"side": "decode"}),
    ]
    worse = {
        "conditions": conditions,
        "4 expired": [asked("lease_expired", 0.2)],
        "5 neighbours": [asked("transfer_failed", 0.2, params={"neighbours": True}, **moved)],
        "10 hidden": [asked("reasoning_only", 0.3)],
    }
    unjudged = {
        "6 counts": [asked("prompt_tokens_off", 0.3, when={"side": "decode"})],
        "9 fails": [{"fault": "transfer_failed", **moved}],
        "9 dies": [{"fault": "crash", **moved}],
    }
    started = {
        "worse": start_sweep(kit.with_cases(kit.template(), worse)),
        "unjudged": start_sweep(kit.with_cases(kit.template(), unjudged)),
        "sound": start_sweep(kit.with_cases(kit.template(sim={"accuracy": 0.7}), {"8 checkpoint": []})),
    }
    return {name: sweep.finish() for name, sweep in started.items()}


@pytest.fixture(scope="module")
def cells(sweeps: dict[str, Any]) -> dict[str, Any]:
    """Every cell by its case."""
    found: dict[str, Any] = {}
    for sweep in sweeps.values():
        found |= sweep.cells
    return found


CONDITIONS: list[tuple[str, str, Callable[[dict[str, Any]], bool]]] = [
    ("case_2", "wrong_answer", lambda row: row["since_finish_ms"] is not None and row["since_finish_ms"] <= SOON_MS),
    ("case_3", "stale", lambda row: row["number"] > SERVED),
    ("case_6", "garbage", lambda row: row["prompt_tokens"] % BLOCK == 0),
]


@pytest.mark.parametrize(("case", "fault", "holds"), CONDITIONS, ids=[row[0] for row in CONDITIONS])
def test_a_fault_strikes_where_its_condition_holds(
    cells: dict[str, Any], case: str, fault: str, holds: Callable[[dict[str, Any]], bool]
) -> None:
    told = cells["conditions"].truth("decode").values()
    assert {row["engine_request_id"] for row in told if fault in row["faults"]} == {
        row["engine_request_id"] for row in told if holds(row)
    }
    assert any(map(holds, told)) and not all(map(holds, told))
    untouched = [row for row in told if not row["faults"]]
    assert all(row["right"] for row in untouched)


def test_case_1_to_8_damage_is_what_the_rig_counts_as_wrong(cells: dict[str, Any]) -> None:
    cell = cells["conditions"]
    told = cell.truth("decode")
    assert {name for name, row in cell.judged.items() if row["outcome"] == "correct"} == {
        name for name, row in told.items() if row["right"]
    }


def test_case_4_leases_expired(sweeps: dict[str, Any], cells: dict[str, Any]) -> None:
    cell = cells["4 expired"]
    struck = cell.struck("lease_expired", "prefill")
    assert struck == cell.struck("lease_expired"), "what decode read was other requests' data"
    assert all(cell.truth("decode")[name]["status"] == 200 for name in struck)
    log = Path(cell.deployment["processes"]["prefill-0"]["log"]).read_text()
    assert all(re.search(f"Releasing expired KV blocks for request cmpl-{name}-", log) for name in struck)
    assert cell.result["evidence"]["expired"] == len(struck) > 0 and cell.result["evidence"]["failed"] == 0
    assert (cell.state, cell.channels[0]) == ("regression", "transfer") and sweeps["worse"].code == 1
    tainted = {name: row["tainted"] for name, row in cell.judged.items() if row["tainted"]}
    questions = struck & cell.judged.keys()
    assert tainted == {name: ["expired_lease", "stale_blocks"] for name in questions}
    assert {cell.judged[name]["outcome"] for name in questions} == {"error"}
    counts = cell.result["counts"]
    assert (counts["correct"], counts["wrong"]) == (40 - len(questions), 0), "freed blocks are no wrong answer"
    assert counts["error"] == {"expired_lease": len(questions)} and cell.result["accuracy"]["value"] == 1
    assert f"these answers came from freed blocks ({len(struck)} requests" in cell.why


def test_case_5_a_failed_hand_off_and_its_neighbours(cells: dict[str, Any]) -> None:
    cell = cells["5 neighbours"]
    failed, damaged = cell.struck("transfer_failed"), cell.struck("neighbour_of_failed_transfer")
    assert failed and damaged - failed
    assert cell.errors() == dict.fromkeys(failed, ("decode", "stream_error"))
    assert {name for name, row in cell.judged.items() if row["outcome"] == "wrong"} == damaged - failed
    assert cell.result["evidence"]["failed"] == len(failed)
    assert (cell.state, cell.channels[0]) == ("regression", "transfer")
    [shown] = [f["text"] for f in cell.result["evidence"]["findings"] if "beside a failed request" in f["text"]]
    beside, lost, others, elsewhere = map(int, re.findall(r"\d+", shown))
    questions = cell.judged.keys()
    assert beside + others == len(questions - failed)
    assert (lost, elsewhere) == (len((damaged - failed) & questions), 0)


def test_case_6_prompt_tokens_counted_differently(sweeps: dict[str, Any], cells: dict[str, Any]) -> None:
    cell = cells["6 counts"]
    struck = cell.struck("prompt_tokens_off")
    off = {r.request_id for r in cell.records if r.prompt_tokens != cell.truth("decode")[r.request_id]["prompt_tokens"]}
    assert struck and struck == off and cell.result["counts"]["correct"] == 40
    assert (cell.state, cell.channels[0]) == ("invalid", "transfer") and sweeps["unjudged"].code == 3


def test_case_7_others_each_time(cells: dict[str, Any]) -> None:
    cell = cells["conditions"]
    struck = cell.struck("swapped")
    assert 0 < len(struck) < 40, "by the number of the request, not by its prompt"


def test_case_8_a_checkpoint_that_is_bad_without_disaggregation_too(
    sweeps: dict[str, Any], cells: dict[str, Any]
) -> None:
    cell, baseline = cells["8 checkpoint"], sweeps["sound"].cells["baseline"]
    wrong = [{row["sample_id"] for row in c.judged.values() if row["outcome"] == "wrong"} for c in (cell, baseline)]
    assert wrong[0] == wrong[1] and len(wrong[0]) > 4
    assert cell.state == "pass" and sweeps["sound"].code == 0


@pytest.mark.parametrize(("case", "why"), [("9 fails", "answered 500"), ("9 dies", "decode-0 ended with exit code 1")])
def test_case_9_the_first_hand_off(sweeps: dict[str, Any], cells: dict[str, Any], case: str, why: str) -> None:
    cell = cells[case]
    assert (cell.state, cell.channels) == ("failed", ["errors"]) and why in cell.why
    assert not (cell.folder / "requests.jsonl").exists(), "it was found before any question was asked"
    assert sweeps["unjudged"].code == 3 and not sweeps["unjudged"].left_running()


def test_case_10_text_only_in_the_reasoning(cells: dict[str, Any]) -> None:
    cell = cells["10 hidden"]
    struck = cell.struck("reasoning_only")
    assert struck and cell.errors() == dict.fromkeys(struck, ("decode", "empty"))
    assert {record.http_status for record in cell.records} == {200}
    assert cell.result["counts"]["error"] == {"empty": len(struck)}
    assert (cell.state, cell.channels[0]) == ("regression", "errors")
