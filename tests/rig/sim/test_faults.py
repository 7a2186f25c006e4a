from __future__ import annotations

import json
from typing import Any

import pytest

from rig.sim.config import load
from rig.sim.faults import REQUEST_FAULTS, START_FAULTS, Fault, Moment, Planted, When, strikes
from rig.sim.options import OptionError, parse


def moment(**more: Any) -> Moment:
    base: dict[str, Any] = {
        "side": "decode",
        "number": 1,
        "concurrency": 1,
        "prompt": "p",
        "prompt_tokens": 48,
        "since_finish_ms": None,
        "async_scheduling": True,
        "transferred": True,
        "stream": False,
        "predecessor": None,
        "port": 8000,
    }
    return Moment(**{**base, **more})


@pytest.mark.parametrize(
    ("when", "yes", "no"),
    [
        ({"min_concurrency": 4}, {"concurrency": 4}, {"concurrency": 3}),
        ({"after_requests": 10}, {"number": 11}, {"number": 10}),
        ({"prompt_multiple_of": 16}, {"prompt_tokens": 32}, {"prompt_tokens": 33}),
        ({"prompt_contains": "x"}, {"prompt": "axb"}, {"prompt": "ab"}),
        ({"after_finish_within_ms": 5}, {"since_finish_ms": 5.0}, {"since_finish_ms": 5.1}),
        ({"after_finish_within_ms": 5}, {"since_finish_ms": 0.0}, {"since_finish_ms": None}),
        ({"predecessor_contains": "x"}, {"predecessor": "axb"}, {"predecessor": "ab"}),
        ({"predecessor_contains": "x"}, {"predecessor": "x"}, {"predecessor": None, "prompt": "x"}),
        ({"port": 8000}, {"port": 8000}, {"port": 8001}),
        ({"async_scheduling": True}, {"async_scheduling": True}, {"async_scheduling": False}),
        ({"transferred": True}, {"transferred": True}, {"transferred": False}),
        ({"stream": False}, {"stream": False}, {"stream": True}),
        ({"side": "prefill"}, {"side": "prefill"}, {"side": "decode"}),
        ({}, {"side": "monolithic"}, {"side": "prefill"}),
    ],
)
def test_a_fault_strikes_where_its_condition_holds(
    when: dict[str, Any], yes: dict[str, Any], no: dict[str, Any]
) -> None:
    fault = Fault(fault="wrong_answer", when=When(**when))
    assert strikes(fault, moment(**yes))
    assert not strikes(fault, moment(**no))


def test_a_rate_is_drawn_by_prompt_or_by_request() -> None:
    prompts = [f"p{index}" for index in range(1000)]
    same = Fault(fault="wrong_answer", rate=0.2, seed=1)
    once = [strikes(same, moment(prompt=prompt, number=1)) for prompt in prompts]
    again = [strikes(same, moment(prompt=prompt, number=2)) for prompt in prompts]
    assert once == again and 150 < sum(once) < 250
    assert once != [strikes(Fault(fault="wrong_answer", rate=0.2, seed=2), moment(prompt=p)) for p in prompts]
    each = Fault(fault="wrong_answer", rate=0.02, by="request")
    first = {p for p in prompts if strikes(each, moment(prompt=p, number=1))}
    second = {p for p in prompts if strikes(each, moment(prompt=p, number=2))}
    assert first and second and first != second


def test_a_limit_ends_a_fault() -> None:
    planted = Planted([Fault(fault="reset", limit=2)])
    assert [bool(planted.strike(moment())) for _ in range(4)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ([{"fault": "wrong"}], "unknown fault 'wrong'"),
        ([{"fault": "reset", "rate": 2}], "faults.0.rate"),
        ([{"fault": "reset", "when": {"concurrency": 3}}], "faults.0.when.concurrency"),
        ([{"fault": "slow_tokens", "params": {"sec": 1}}], "slow_tokens: unknown params sec; it takes ms"),
        ([{"fault": "start_error", "rate": 0.5}], "takes no rate"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_in_one_line(faults: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        load(parse(["m"], {}), {"PDRIG_SIM_FAULTS": json.dumps(faults)})
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_settings_add_up_and_the_command_line_wins() -> None:
    options = parse(["m", "--sim-config", '{"seed": 2, "faults": [{"fault": "hang"}]}', "--sim-ledger", "here"], {})
    env = {"PDRIG_SIM_CONFIG": '{"seed": 1, "accuracy": 0.5}', "PDRIG_SIM_FAULTS": '[{"fault": "reset"}]'}
    settings = load(options, {**env, "PDRIG_SIM_LEDGER": "there"})
    assert (settings.seed, settings.accuracy, settings.ledger) == (2, 0.5, "here")
    assert [fault.fault for fault in settings.faults] == ["hang", "reset"]


def test_names_of_faults_are_told_apart() -> None:
    assert not set(REQUEST_FAULTS) & set(START_FAULTS)
