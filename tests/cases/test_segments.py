"""Cases 1, 2, 3, 6, 7, 8 and 30: what is damaged is found, and said to be where it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

SOON_MS = 120.0
"""Far longer than a request takes from the client to decode, also on a busy machine: they see the same gaps."""
SERVED = 240
BLOCK = 16
"""Tokens a block of the simulated engine, as its metrics say."""

DECODE = {"side": "decode"}


def hit(kit: Any, rate: float = 1.0, **when: Any) -> dict[str, Any]:
    """Wrong answers of decode, to the rig's questions alone."""
    return dict(kit.asked("wrong_answer", rate, when={**DECODE, **when}))


@pytest.fixture(scope="module")
def sweeps(kit: Any, start_sweep: Any) -> dict[str, Any]:
    """Two at a time, beside one that waits most of its time: on a small machine more only wait for each other."""

    def run(**wanted: Any) -> dict[str, Any]:
        return finished({name: start_sweep(sweep) for name, sweep in wanted.items()})

    def finished(started: dict[str, Any]) -> dict[str, Any]:
        return {name: sweep.finish() for name, sweep in started.items()}

    def sweep(limit: int, sim: Any = None, **task: Any) -> dict[str, Any]:
        return dict(kit.template(task={"limit": limit, "canaries": 0, **task}, sim=sim))

    # Arrivals at random: in a closed loop every request comes right after another's end.
    soon = sweep(140, schedule={"poisson": 4, "seed": 3}, concurrency=None)
    soon = kit.with_cases(soon, {"2 soon": [hit(kit, after_finish_within_ms=SOON_MS)]})
    waiting = {"soon": start_sweep(soon)}

    late = sweep(400, warmup=8)
    late["rerun"] = True
    late = kit.with_cases(late, {"3 served": [hit(kit, 0.4, after_requests=SERVED)]})

    parts = sweep(400, divergence="logprobs")
    parts["noise_floor"] = True
    decode = kit.free_range(2)
    parts["cell"]["decode"]["port"] = decode
    parts = kit.with_cases(
        parts,
        {
            "6 whole blocks": [hit(kit, prompt_multiple_of=BLOCK)],
            "one of two": [hit(kit, 0.2, port=decode + 1)],
            "clean": [],
        },
        {"one of two": {"decode.instances": 2, "decode.side_channel_port": kit.free_range(2)}},
    )

    others = sweep(300, repeats=3)
    # Drawn by the order of arrival, which is another each time: often enough that no asking is without any.
    fickle = {"fault": "wrong_answer", "rate": 0.05, "by": "request", "when": {**DECODE, "transferred": True}}
    others = kit.with_cases(others, {"7 others": [fickle]})

    # Requests are at decode for long enough to be there together, whatever else the machine does.
    dip = sweep(200, sim={"transfer_ms": 25})
    dip["cell"]["both"]["env"]["PDRIG_SIM_FAULTS"] = json.dumps([hit(kit, 0.5, min_concurrency=5)])
    dip["matrix"] = {"concurrency": [1, 4, 8]}

    # Decided long before the end, one way and the other.
    early = sweep(600, divergence="off")
    early["early_stop"] = True
    early = kit.with_cases(early, {"early sound": [], "early bad": [hit(kit, 0.2)]})

    # What configs/sim.yaml shows, held against its own async-off cell as well.
    on = kit.template(
        task={"limit": 200, "concurrency": 16, "canaries": 20, "divergence": "logprobs"}, sim={"transfer_ms": 50}
    )
    when = {**DECODE, "async_scheduling": True, "transferred": True, "min_concurrency": 8}
    fault = {"fault": "wrong_answer", "rate": 0.5, "when": when}
    on["cell"]["both"]["env"]["PDRIG_SIM_FAULTS"] = json.dumps([fault])
    on["matrix"] = {"async_scheduling": [True, False]}
    on["baseline"] = [on["baseline"], {"cell": {"async_scheduling": False}}]
    on["noise_floor"] = True

    # The same build on both sides, which tosses a coin for one question in 25.
    twice = kit.template(
        task={"limit": 1319, "shots": 0, "canaries": 40, "divergence": "logprobs"}, sim={"noise": 0.02}
    )
    # The noise is drawn anew in every run: at 0.05 this would be red by chance now and then, as it says.
    twice["gates"] = {"max_accuracy_drop": 0.02, "alpha": 0.00001}
    twice["noise_floor"] = True
    # Without worked examples a prompt does not hold what tells questions from the rig's own checks.
    drop = {"fault": "wrong_answer", "rate": 0.03, "when": {**DECODE, "transferred": True, "stream": True}}
    noise = {"30 noise": [], "30 drop": [drop]}
    return (
        run(dip=dip, early=early)
        | run(late=late, parts=parts)
        | run(others=others, on=on)
        | run(twice=kit.with_cases(twice, noise))
        | finished(waiting)
    )


def where(cell: Any, of: str = "lost", baseline: int = 0) -> list[dict[str, Any]]:
    found = cell.result["comparisons"][baseline]["where"]
    return [segment for segment in found if segment["of"] == of]


def test_case_1_against_its_own_async_off_cell_and_a_monolithic_one(sweeps: dict[str, Any]) -> None:
    swept = sweeps["on"]
    cells = {c.result["labels"]["async_scheduling"]: c for c in swept.by_id.values() if c.result["kind"] == "pd"}
    on, off = cells[True], cells[False]
    assert (on.state, off.state, swept.code) == ("regression", "pass", 1)
    held = [c["baseline"] for c in on.result["comparisons"]]
    assert len(held) == 2 and off.result["cell_id"] in held
    assert [c["baseline"] for c in off.result["comparisons"]] == [n for n in held if n != off.result["cell_id"]]
    assert all(f"Accuracy is worse than on {name}." in on.why for name in held), "both say so"
    assert {"damage", "accuracy"} <= set(on.channels)
    assert "async_scheduling on" in swept.out and "no green cell has" in swept.out


def test_case_2_right_after_another_ended(sweeps: dict[str, Any]) -> None:
    cell = sweeps["soon"].cells["2 soon"]
    assert (cell.state, cell.channels[0], sweeps["soon"].code) == ("regression", "accuracy", 1)
    assert 20 < len(cell.struck("wrong_answer")) < 120
    first = where(cell)[0]
    assert first["axis"] == "since_finish", "and nothing else explains it better"
    assert first["hits"] / first["n"] > 2 * first["rest_hits"] / first["rest_n"]
    assert f"{first['value']}" in cell.why


def test_case_3_the_error_rate_rises_with_the_number_served(sweeps: dict[str, Any]) -> None:
    cell = sweeps["late"].cells["3 served"]
    assert (cell.state, cell.channels[0]) == ("regression", "accuracy")
    [segment] = where(cell)
    assert segment["axis"] == "order" and int(segment["value"].split()[1]) > 200
    assert segment["rest_hits"] <= segment["hits"] / 4 and segment["value"] in cell.why


def test_a_red_cell_is_asked_again_on_fresh_servers_and_both_results_are_shown(sweeps: dict[str, Any]) -> None:
    swept = sweeps["late"]
    [first] = [c for c in swept.by_id.values() if c.result["kind"] == "pd" and c.result["rerun_of"] is None]
    [again] = [c for c in swept.by_id.values() if c.result["rerun_of"]]
    assert again.result["rerun_of"] == first.result["cell_id"]
    assert again.result["deployment"] != first.result["deployment"]
    assert (first.state, again.state, swept.code) == ("regression", "regression", 1)
    assert f"Asked again on fresh servers ({again.result['cell_id']}), it came out the same" in first.why
    [one], [other] = where(first), where(again)
    assert one["axis"] == other["axis"] == "order", "the count began anew with the servers"
    early = [row for row in again.truth("decode").values() if row["number"] <= SERVED]
    assert len(early) > 200 and not any(row["faults"] for row in early)
    assert first.result["cell_id"] in swept.out and again.result["cell_id"] in (swept.run / "report.md").read_text()
    assert {t["name"]: t["p_adjusted"] for t in first.result["tests"]}["errors/" + held(first)] == 1


def held(cell: Any) -> str:
    return str(cell.result["comparisons"][0]["baseline"])


def test_case_6_prompts_that_fill_their_blocks(sweeps: dict[str, Any]) -> None:
    cell = sweeps["parts"].cells["6 whole blocks"]
    assert cell.result["block_size"] == BLOCK
    assert cell.state == "regression" and {"damage", "accuracy"} <= set(cell.channels)
    for of in ("lost", "damaged"):
        [segment] = where(cell, of)
        assert (segment["axis"], segment["value"]) == ("block", f"prompts of k x {BLOCK} tokens")
        assert segment["hits"] == segment["n"] and segment["rest_hits"] == 0
        assert segment["value"] in cell.why


def test_one_bad_instance_of_two(sweeps: dict[str, Any]) -> None:
    cell = sweeps["parts"].cells["one of two"]
    assert cell.state == "regression" and {"damage", "accuracy"} <= set(cell.channels)
    [segment] = where(cell)
    assert (segment["axis"], segment["value"], segment["rest_hits"]) == ("decode", "decode-1", 0)


def test_a_clean_cell_has_no_part_that_is_worse(sweeps: dict[str, Any]) -> None:
    cell = sweeps["parts"].cells["clean"]
    assert cell.state == "pass" and cell.result["comparisons"][0]["where"] == []


def test_case_7_others_each_time(sweeps: dict[str, Any]) -> None:
    swept = sweeps["others"]
    cell = swept.cells["7 others"]
    assert (cell.state, cell.channels[0], swept.code) == ("regression", "accuracy", 1)
    wrong: dict[int, set[str]] = {0: set(), 1: set(), 2: set()}
    struck = cell.struck("wrong_answer")
    for record in cell.records:
        if record.request_id in struck and record.kind == "question":
            wrong[record.repeat].add(record.sample_id)
    union = set.union(*wrong.values())
    repeats = cell.result["repeats"]
    assert (repeats["times"], repeats["n"], repeats["wrong_any"]) == (3, 300, len(union))
    assert repeats["wrong_all"] == len(set.intersection(*wrong.values())) < min(map(len, wrong.values()))
    assert repeats["wrong_any"] > max(map(len, wrong.values())), "no single asking shows them all"
    [comparison] = cell.result["comparisons"]
    assert comparison["repeats"] == 3 and comparison["b"] == len(wrong[0])
    assert "exact sign test over the repeats of each question" in cell.why


def test_case_8_a_dip_at_one_concurrency(sweeps: dict[str, Any]) -> None:
    swept = sweeps["dip"]
    cells = {c.result["labels"]["concurrency"]: c for c in swept.by_id.values() if c.result["kind"] == "pd"}
    assert {n: c.state for n, c in cells.items()} == {1: "pass", 4: "pass", 8: "regression"}
    assert cells[8].channels[0] == "accuracy"
    text = " ".join(swept.out.split())
    assert "Why these cells The red cell has concurrency 8; no green cell has." in text
    assert "Smallest step from green to red:" in text and "concurrency 1 -> 8." in text


def test_case_8_and_30_a_flat_drop_has_no_address(sweeps: dict[str, Any]) -> None:
    """3 % one way among 1,319 questions: a regression, in no part more than in another."""
    cell = sweeps["twice"].cells["30 drop"]
    assert cell.state == "regression" and {"damage", "accuracy"} <= set(cell.channels)
    assert 25 <= len(cell.struck("wrong_answer")) <= 60
    axes = {segment["axis"] for segment in where(cell)}
    assert not axes & {"order", "prompt_tokens", "block", "decode", "prefill", "instances"}


def test_case_30_the_same_build_twice_is_no_alarm(sweeps: dict[str, Any]) -> None:
    cell = sweeps["twice"].cells["30 noise"]
    [flips] = cell.result["comparisons"]
    assert flips["n"] == 1319 and 1 <= flips["b"] <= 35 and 1 <= flips["c"] <= 35, "about 1 % both ways"
    assert cell.state in ("pass", "improved", "inconclusive") and "damage" in cell.channels
    assert (
        flips["first_divergence"]["damaged"] == 0 < flips["first_divergence"]["n"] - flips["first_divergence"]["equal"]
    )
    floor = sweeps["twice"].cells["baseline"].result["noise_floor"]
    assert floor["n"] == 1319 and floor["b"] + floor["c"] > 8, "the baseline differs from itself as much"


@pytest.mark.parametrize(("case", "state"), [("early sound", "pass"), ("early bad", "regression")])
def test_a_cell_that_was_decided_early_keeps_what_it_was_told(
    sweeps: dict[str, Any], kit: Any, case: str, state: str
) -> None:
    cell = sweeps["early"].cells[case]
    seen = cell.result["sequential"]
    questions = [r for r in cell.records if r.kind == "question"]
    assert (cell.state, seen["decided"], seen["planned"]) == (state, state, 600)
    assert len(questions) == seen["asked"] == cell.result["task"]["n"] < 300
    assert not cell.errors(), "what was in flight at the decision was waited for"
    # The rig's own checks ask too; whatever else reached decode is on disk, and judged, and paired.
    assert len(cell.truth("decode")) == len(cell.records) == len(cell.ids)
    assert set(cell.judged) == {r.request_id for r in questions}
    [comparison] = cell.result["comparisons"]
    pairs = kit.rows(cell.folder / f"pairs.{comparison['baseline']}.jsonl")
    assert {p["request_id"] for p in pairs} == set(cell.judged) and comparison["n"] == len(pairs)
    assert f"It stopped after {seen['asked']} of 600 questions, as the verdict was decided." in cell.why
