"""Cases 11 to 15, 18, 20, 22, 25, 27 to 29 and 31, in sweeps that are grouped by the exit code they must have."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SERVED = 12
"""Requests that prefill answers before it dies in case 12; two of them are the rig's own checks."""

HANG_S = 20
"""How long an evaluation may say nothing in case 20: longer than a busy machine lets the sound ones wait."""

KEY = "sk-of-case-18"
"""What engines ask of whoever reaches them, in the sweep of case 29."""


@pytest.fixture(scope="module")
def sweeps(kit: Any, start_sweep: Any) -> dict[str, Any]:
    """Four sweeps side by side, all ended."""
    asked = kit.asked
    decode = {"when": {"side": "decode"}}
    worse = {
        "errors": [
            asked("no_kv_params", 0.1),
            asked("error_status", 0.1, params={"status": 400, "message": "too long"}, **decode),
            asked("empty_200", 0.1, **decode),
            asked("stream_error", 0.1, **decode),
            asked("stream_cut", 0.1, **decode),
        ],
        "27 endless": [asked("endless", 0.3)],
    }
    unjudged = {
        "22 start": [{"fault": "start_error"}],
        "12 dead": [{"fault": "crash", "when": {"side": "prefill", "after_requests": SERVED}}],
        "20 silent": [asked("headers_then_nothing", 0.3, **decode)],
        "11 ignored": [asked("ignore_kv_params", 0.3)],
        "11 lenient": [asked("no_kv_params", 0.3)],
        "13 stale": [asked("wrong_engine_id", 0.3)],
    }
    sound = {
        "25 runs on": [asked("runs_on")],
        "31 cold": [asked("slow_first_token", limit=4, params={"ms": 300}, when={"side": "any"})],
    }
    strict = {"11 lenient": {"proxy.lenient": True}}
    bounded = kit.template()
    bounded["limits"]["hang_s"] = HANG_S
    # Without stop words, as the engine would cut the invented question off.
    free = kit.template(task={"params": {"stop": None}, "max_tokens": 128, "warmup": 8})
    alone = {**kit.template(), "baseline": "none"}
    started = {
        "worse": start_sweep(kit.with_cases(kit.template(task={"limit": 80}), worse)),
        "unjudged": start_sweep(kit.with_cases(bounded, unjudged, strict)),
        "sound": start_sweep(kit.with_cases(free, sound)),
        "alone": start_sweep(kit.with_cases(alone, {"29 new": []}), env={"VLLM_API_KEY": KEY}),
    }
    return {name: sweep.finish() for name, sweep in started.items()}


@pytest.fixture
def worse(sweeps: dict[str, Any]) -> Any:
    """Cells that did worse than the baseline: the sweep must end with 1."""
    sweep = sweeps["worse"]
    assert sweep.code == 1, sweep.out + sweep.err
    return sweep.cells


@pytest.fixture
def unjudged(sweeps: dict[str, Any]) -> Any:
    """Cells about which the run cannot speak: the sweep must end with 3."""
    sweep = sweeps["unjudged"]
    assert sweep.code == 3, sweep.out + sweep.err
    return sweep.cells


@pytest.fixture
def sound(sweeps: dict[str, Any]) -> Any:
    sweep = sweeps["sound"]
    assert sweep.code == 0, sweep.out + sweep.err
    return sweep.cells


OUTCOMES = {
    "error": ("decode", "http_status"),
    "empty_200": ("decode", "bad_response"),
    "stream_error": ("decode", "stream_error"),
    "stream_cut": ("decode", "stream_cut"),
}
"""Leg and class of a question by what decode says it did."""


def broken(cell: Any, outcome: str) -> list[Any]:
    """The records of the questions whose answer decode broke in this way; there are some."""
    found = {name for name, row in cell.truth("decode").items() if row["outcome"] == outcome}
    records = [record for record in cell.records if record.request_id in found]
    assert records and {(r.error.leg, r.error.error_class) for r in records} == {OUTCOMES[outcome]}
    return records


def test_every_question_that_failed_has_its_leg_and_class_and_no_other_has(worse: Any) -> None:
    cell = worse["errors"]
    expected = dict.fromkeys(cell.struck("no_kv_params", "prefill"), ("prefill", "no_kv_params"))
    for name, row in cell.truth("decode").items():
        if row["outcome"] in OUTCOMES:
            expected[name] = OUTCOMES[row["outcome"]]
    assert cell.errors() == expected and len(set(expected.values())) == 5
    # Canaries fail as questions do, and are in no figure of theirs.
    expected = {name: error for name, error in expected.items() if name in cell.judged}
    assert {name for name, row in cell.judged.items() if row["outcome"] == "error"} == expected.keys()
    counts = cell.result["counts"]
    assert counts["error"] == Counter(error_class for _, error_class in expected.values())
    assert counts["correct"] == 80 - len(expected) and counts["wrong"] == counts["unparsed"] == 0
    failed = {line["request_id"]: (line["leg"], line["error"]["class"]) for line in cell.legs if line["error"]}
    assert failed == cell.errors()
    assert (cell.state, cell.channels[0]) == ("regression", "errors")
    assert all(error_class in cell.why for _, error_class in expected.values())


def test_case_11_the_proxy_gets_no_params(worse: Any) -> None:
    cell = worse["errors"]
    struck = cell.struck("no_kv_params", "prefill")
    records = [record for record in cell.records if record.request_id in struck]
    assert records and {(r.http_status, r.error.leg, r.error.error_class) for r in records} == {
        (502, "prefill", "no_kv_params")
    }
    assert not struck & cell.truth("decode").keys(), "decode was never asked"


def test_case_11_the_proxy_lets_them_through_without_params(unjudged: Any) -> None:
    cell = unjudged["11 lenient"]
    struck = cell.struck("no_kv_params", "prefill")
    assert struck and all(cell.truth("decode")[name]["external_tokens"] == 0 for name in struck)
    assert {cell.judged[name]["outcome"] for name in struck} == {"error"}, "right, and no answer of the hand-off"
    assert {tuple(cell.judged[name]["tainted"]) for name in struck} == {("decode_prefilled",)}
    counts = cell.result["counts"]
    assert (counts["correct"], counts["error"]) == (40 - len(struck), {"decode_prefilled": len(struck)})
    assert (cell.state, cell.channels[0]) == ("invalid", "transfer")
    assert f"{len(struck)} answered requests have no complete hand-off" in cell.why
    assert cell.result["evidence"]["transfers"] == 40 - len(struck)


def test_case_11_decode_prefills_by_itself(unjudged: Any) -> None:
    cell = unjudged["11 ignored"]
    struck = cell.struck("ignore_kv_params")
    assert cell.result["counts"]["correct"] == 40 and all(leg["params_present"] for leg in cell.legs)
    assert (cell.state, cell.channels[0]) == ("invalid", "transfer")
    proof, decode = cell.result["evidence"], cell.truth("decode").values()
    assert struck and proof["pd_exercised"] is False and proof["transfers"] == 40 - len(struck)
    assert proof["external_tokens"] == sum(row["external_tokens"] for row in decode)
    assert proof["local_tokens"] == sum(row["local_tokens"] for row in decode)


def test_case_12_prefill_is_dead(unjudged: Any) -> None:
    cell = unjudged["12 dead"]
    assert (cell.result["status"], cell.state) == ("failed", "failed")
    assert "prefill-0 ended with exit code 1" in cell.why and "fatal error" in cell.why
    assert cell.errors(), "the requests at the time failed"
    assert set(cell.errors().values()) <= {
        ("prefill", "reset"),
        ("prefill", "connect"),
        ("decode", "stream_error"),
        ("client", "cancelled"),
    }
    answered = [row for row in cell.truth("decode").values() if row["outcome"] == "answered"]
    assert all(row["external_tokens"] == row["prompt_tokens"] - 1 for row in answered), "decode never answered alone"


def test_case_13_an_engine_id_that_is_not_prefills(unjudged: Any) -> None:
    cell = unjudged["13 stale"]
    struck = cell.struck("wrong_engine_id", "prefill")
    assert struck and cell.errors() == dict.fromkeys(struck, ("decode", "stream_error"))
    ids = {leg["engine_id"] for leg in cell.legs if leg["leg"] == "prefill"}
    assert len(ids) == len(struck) + 1
    assert (cell.state, cell.channels[0]) == ("invalid", "transfer")
    assert f"Prefill-0 answered as {len(ids)} different engines" in cell.why
    assert cell.result["evidence"]["failed"] == len(struck)


def test_case_14_the_status_of_decode(worse: Any) -> None:
    records = broken(worse["errors"], "error")
    assert {record.http_status for record in records} == {400}
    assert all("too long" in record.error.message and record.text is None for record in records)


def test_case_14_200_without_a_body(worse: Any) -> None:
    cell = worse["errors"]
    records = broken(cell, "empty_200")
    assert {record.http_status for record in records} == {502}
    mine = {record.request_id for record in records}
    assert {leg["status"] for leg in cell.legs if leg["request_id"] in mine} == {200}


@pytest.mark.parametrize("outcome", ["stream_error", "stream_cut"])
def test_case_15_the_stream_breaks_after_three_tokens(worse: Any, outcome: str) -> None:
    cell = worse["errors"]
    records = broken(cell, outcome)
    assert {record.http_status for record in records} == {200}
    assert all(record.text and record.t_first_token for record in records), "the text so far is kept, and not scored"
    whole = [row for row in cell.truth("decode").values() if row["outcome"] == "answered"]
    assert cell.result["throughput"]["total_output_tokens"] == sum(row["completion_tokens"] for row in whole)


def test_case_18_the_key_of_the_shell_reaches_the_engines_and_no_file(sweeps: dict[str, Any]) -> None:
    sweep = sweeps["alone"]
    cell = sweep.cells["29 new"]
    assert not cell.errors() and cell.truth("prefill").keys() == cell.truth("decode").keys() == cell.ids
    assert KEY not in sweep.out + sweep.err
    for file in sweep.folder.rglob("*"):
        assert file.is_dir() or KEY not in file.read_text(), f"{file} holds the key"


def test_case_20_headers_and_then_nothing(unjudged: Any) -> None:
    cell = unjudged["20 silent"]
    assert cell.struck("headers_then_nothing")
    assert (cell.state, cell.channels[0]) == ("failed", "errors")
    assert f"no request finished for {HANG_S} s (limits.hang_s)" in cell.why
    assert set(cell.errors().values()) == {("client", "cancelled")}


def test_case_22_a_failure_in_the_log_of_a_server_that_lives_on(unjudged: Any) -> None:
    cell = unjudged["22 start"]
    assert (cell.result["status"], cell.state) == ("failed", "failed")
    assert "before it was ready: ValueError: No available memory for the cache blocks." in cell.why
    assert not cell.deployment["leftovers"] and cell.deployment["stopped_unix"]


def test_the_sweep_goes_on_after_cells_that_failed(sweeps: Any, unjudged: Any) -> None:
    states = [unjudged[case].state for case in ("22 start", "12 dead", "20 silent", "11 ignored", "13 stale")]
    assert states == ["failed", "failed", "failed", "invalid", "invalid"]
    assert not sweeps["unjudged"].left_running()


def test_case_25_an_invented_question_after_the_answer(sound: Any) -> None:
    cell = sound["25 runs on"]
    questions = [record for record in cell.records if record.kind == "question"]
    assert {record.request_id for record in questions} <= cell.struck("runs_on")
    assert all(record.text.count("####") == 2 for record in questions)
    assert cell.result["accuracy"]["value"] == 1.0 and cell.result["accuracy"]["by_scorer"]["robust"] == 1.0
    assert cell.result["accuracy"]["by_scorer"]["gsm8k-flexible"] < 0.5, "this one reads the last number, by design"
    assert cell.state == "pass"


def test_case_27_no_answer_before_the_limit(worse: Any) -> None:
    cell = worse["27 endless"]
    struck = cell.struck("endless")
    assert {name for name, row in cell.judged.items() if row["outcome"] == "truncated"} == struck
    counts, accuracy = cell.result["counts"], cell.result["accuracy"]
    assert counts["truncated"] == len(struck) > 0 and counts["error"] == {}
    assert accuracy["value"] == counts["correct"] / 80, "truncated answers are in the denominator"
    assert (cell.state, cell.channels[0]) == ("regression", "accuracy")


def test_case_29_a_new_model_has_nothing_to_be_held_against(kit: Any, sweeps: Any, start_sweep: Any) -> None:
    first = sweeps["alone"]
    cell = first.cells["29 new"]
    assert (first.code, cell.state, cell.channels[0]) == (0, "no_baseline", "accuracy")
    assert cell.result["accuracy"]["value"] == 1.0 and cell.result["evidence"]["pd_exercised"] is True
    again = start_sweep(None, "--resume", str(first.run), "--strict", again=first).finish()
    assert again.code == 3 and "no_baseline" in again.out
    assert again.cells["29 new"].result == cell.result


def test_case_31_the_first_requests_are_slow(sweeps: Any, sound: Any) -> None:
    cell = sound["31 cold"]
    warm = {record.request_id for record in cell.records if record.kind == "warmup"}
    for side in ("prefill", "decode"):
        assert len(cell.struck("slow_first_token", side)) == 4 and cell.struck("slow_first_token", side) <= warm
        assert {leg["request_id"] for leg in cell.legs if leg["leg"] == side} >= warm
    assert cell.result["warmup_requests"] == len(warm) == 8
    assert cell.result["counts"]["correct"] == 40 and len(cell.judged) == 40, "warm-up is in no figure"
    assert "Warm-up: 8 requests a cell" in sweeps["sound"].out
    assert cell.state == "pass"


def answered(cell: Any) -> set[str]:
    """The rig's ids of the cell's requests after the warm-up."""
    return {record.request_id for record in cell.records if record.kind != "warmup"}


def rescore(kit: Any, run: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rig", "rescore", str(run), *options]
    return subprocess.run(command, cwd=kit.root, env=kit.clean_env(), capture_output=True, text=True)


def test_case_28_stored_texts_are_scored_again(kit: Any, sweeps: Any, sound: Any) -> None:
    run, cell = sweeps["sound"].run, sound["25 runs on"]
    before = {path.name: path.read_bytes() for path in cell.folder.iterdir()}
    done = rescore(kit, run, "--scorer", "gsm8k-flexible")
    assert done.returncode == 0 and "gsm8k-flexible v3.0 gives 0." in done.stdout
    again = kit.rows(cell.folder / "judged.gsm8k-flexible.jsonl")
    assert len(again) == 40 and {row["scorer"] for row in again} == {"gsm8k-flexible"}
    assert {name: (cell.folder / name).read_bytes() for name in before} == before, "no record was changed"
    assert "verdicts stay as they were; for verdicts by gsm8k-flexible: pdrig compare" in done.stdout
    assert rescore(kit, run, "--scorer", "new").returncode == 2


def test_case_28_a_baseline_of_another_version_of_the_scorer_is_judged_anew(
    kit: Any, sweeps: Any, sound: Any, start_sweep: Any
) -> None:
    """The baseline is made to be from before the scorer changed, and a cell is run again beside it."""
    first = sweeps["sound"]
    baseline = sound["baseline"].folder / "cell.json"
    old = json.loads(baseline.read_text())
    asked, now = answered(sound["baseline"]), old["task"]["scorer_sha256"]
    old["task"]["scorer_sha256"] = "0" * 64
    baseline.write_text(json.dumps(old))
    (sound["25 runs on"].folder / "cell.json").unlink()
    again = start_sweep(None, "--resume", str(first.run), again=first).finish()
    assert again.code == 0, again.out + again.err
    assert again.cells["25 runs on"].state == "pass"
    renewed = again.cells["baseline"]
    assert renewed.result["task"]["scorer_sha256"] == now
    told = f"{renewed.folder.name}: judged anew, it was scored by another version of gsm8k-strict, which gave "
    assert told in again.err and told in "".join(json.loads((again.run / "run.json").read_text())["notes"])
    assert answered(renewed) == asked and renewed.result["resumed"]["kept"] == len(asked), "nothing is asked again"
