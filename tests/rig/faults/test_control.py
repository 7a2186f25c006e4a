"""The control file: what it says, whom it strikes, and what is written of a strike."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig import connectors
from rig.faults.control import (
    FAULTS,
    NIXL,
    OFFLOADING,
    STORAGE_FAULTS,
    Control,
    Fault,
    Hit,
    Moment,
    When,
    append_hit,
    chosen,
    draw,
    hits_path,
    impossible,
    read_hits,
    sample_of,
    strikes,
)

ANY_MOMENT = Moment(concurrency=1, prompt_tokens=300)
HEX16, HEX32, HEX8 = "0123456789abcdef", "0123456789abcdef" * 2, "83c3bd21"

names = st.sampled_from(sorted([*FAULTS, *STORAGE_FAULTS]))
sample_ids = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
whens = st.builds(
    When, min_concurrency=st.integers(0, 64), min_prompt_tokens=st.integers(0, 4096), prompt_multiple_of=st.integers(1)
)
faults = st.builds(
    Fault,
    fault=names,
    rate=st.floats(0, 1),
    seed=st.integers(),
    samples=st.none() | st.lists(sample_ids, max_size=3).map(tuple),
    when=whens,
) | st.builds(
    Fault,
    fault=st.sampled_from(["late_zeroing", "storage_zeroed"]),
    params=st.fixed_dictionaries({"groups": st.sampled_from(["state", "all"])}),
)


@given(st.lists(faults, max_size=4))
def test_a_control_file_says_what_was_written(planted: list[Fault]) -> None:
    control = Control(tuple(planted))
    assert Control.from_json(control.to_json()) == control


def test_writing_replaces_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    Control((Fault("late_zeroing", 1.0),)).write(path)
    Control().write(path)
    assert Control.read(path) == Control()
    assert [p.name for p in tmp_path.iterdir()] == ["faults.json"]


def test_what_is_left_out_has_a_default() -> None:
    (fault,) = Control.from_json('{"faults": [{"fault": "slow_transfer"}]}').faults
    assert fault == Fault("slow_transfer", 0.0, 0, None, When(0, 0, 1), {})
    assert (fault.ms, fault.groups) == (1000, "attention")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "the control file must be an object"),
        ('{"fault": []}', "no key 'fault'"),
        ('{"faults": {}}', "must be a list"),
        ('{"faults": [{"rate": 1}]}', "needs its name"),
        ('{"faults": [{"fault": "late"}]}', "there are: late_zeroing, "),
        ('{"faults": [{"fault": "late_zeroing", "rate": 1.5}]}', "between 0 and 1"),
        ('{"faults": [{"fault": "late_zeroing", "rate": true}]}', "between 0 and 1"),
        ('{"faults": [{"fault": "late_zeroing", "rate": NaN}]}', "between 0 and 1"),
        ('{"faults": [{"fault": "late_zeroing", "seed": 1.5}]}', "whole number"),
        ('{"faults": [{"fault": "late_zeroing", "samples": "a"}]}', "list of sample ids"),
        ('{"faults": [{"fault": "late_zeroing", "samples": [1]}]}', "sample ids"),
        ('{"faults": [{"fault": "late_zeroing", "every": 2}]}', "no key 'every'"),
        ('{"faults": [{"fault": "late_zeroing", "when": {"prompt_multiple_of": 0}}]}', "at least 1"),
        ('{"faults": [{"fault": "late_zeroing", "when": {"load": 1}}]}', "no key 'load'"),
        ('{"faults": [{"fault": "late_zeroing", "params": {"groups": "mamba"}}]}', "groups must be one of"),
        ('{"faults": [{"fault": "late_zeroing", "params": {"ms": 5}}]}', "late_zeroing has no parameter 'ms'"),
        ('{"faults": [{"fault": "slow_transfer", "params": {"ms": -1}}]}', "milliseconds"),
        ('{"faults": [{"fault": "slow_transfer", "params": {"ms": Infinity}}]}', "milliseconds"),
        ('{"faults"', "delimiter"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        Control.from_json(text)
    assert "\n" not in str(caught.value)


@given(names, st.integers(), sample_ids)
def test_the_draw_is_the_documented_one(fault: str, seed: int, sample_id: str) -> None:
    digest = hashlib.sha256(f"{seed}:{fault}:{sample_id}".encode()).digest()
    assert draw(fault, seed, sample_id) == int.from_bytes(digest[:8], "big") / 2**64


@given(names, st.integers(), sample_ids, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_rate_strikes_the_same_and_more(name: str, seed: int, sample_id: str, one: float, two: float) -> None:
    low, high = sorted((one, two))
    if chosen(Fault(name, low, seed), sample_id):
        assert chosen(Fault(name, high, seed), sample_id)
    assert not chosen(Fault(name, 0.0, seed), sample_id)


def test_a_rate_strikes_about_so_many() -> None:
    fault = Fault("late_zeroing", 0.1, seed=3)
    struck = sum(chosen(fault, f"q{i}") for i in range(10_000))
    assert 900 < struck < 1100


@given(names, st.sampled_from(["warmup", "preflight"]), sample_ids)
def test_warmup_and_preflight_are_never_struck(name: str, prefix: str, rest: str) -> None:
    for samples in (None, (prefix + rest,)):
        assert not strikes(Fault(name, 1.0, samples=samples), prefix + rest, ANY_MOMENT)


def test_named_samples_are_struck_whatever_the_rate() -> None:
    fault = Fault("late_zeroing", 0.0, samples=("a", "b"))
    assert [s for s in "abc" if strikes(fault, s, ANY_MOMENT)] == ["a", "b"]
    assert not strikes(Fault("late_zeroing", 1.0, samples=()), "a", ANY_MOMENT)


@given(whens, st.integers(0, 64), st.integers(0, 4096))
def test_conditions_must_all_hold(when: When, concurrency: int, tokens: int) -> None:
    holds = (
        concurrency >= when.min_concurrency
        and tokens >= when.min_prompt_tokens
        and tokens % when.prompt_multiple_of == 0
    )
    assert strikes(Fault("late_zeroing", 1.0, when=when), "q", Moment(concurrency, tokens)) is holds


@given(sample_ids, st.sampled_from(["cmpl-{}-0-{}", "chatcmpl-{}-{}"]), st.booleans())
def test_the_sample_is_read_from_the_engines_request_id(sample_id: str, form: str, through_proxy: bool) -> None:
    sent = f"{sample_id}-{HEX16}" + (f"-{HEX32}" if through_proxy else "")
    assert sample_of(form.format(sent, HEX8)) == sample_id


@pytest.mark.parametrize("request_id", ["", "cmpl-", f"cmpl-{HEX32}-0-{HEX8}", f"chatcmpl-a-{HEX8}", HEX16])
def test_other_requests_have_no_sample(request_id: str) -> None:
    assert sample_of(request_id) is None


def test_hits_are_read_in_order_and_a_half_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    assert read_hits(path) == []
    hits = [Hit("late_zeroing", f"q{i}", f"cmpl-q{i}", 1.5, 7, {"blocks": i}) for i in range(3)]
    for hit in hits:
        append_hit(path, hit)
    with hits_path(path).open("a") as file:
        file.write('{"fault": "late_')
    assert read_hits(path) == hits
    assert json.loads(hits_path(path).read_text().splitlines()[0]) == {
        "fault": "late_zeroing",
        "sample_id": "q0",
        "request_id": "cmpl-q0",
        "unix_time": 1.5,
        "pid": 7,
        "detail": {"blocks": 0},
    }


@pytest.mark.parametrize(
    ("fault", "connectors", "recomputes", "words"),
    [
        ("stale_blocks", ("NixlConnector",), False, None),
        ("stale_blocks", ("NixlPushConnector",), False, "prefill writes the blocks"),
        ("stale_blocks", ("MultiConnector", "NixlPushConnector", "OffloadingConnector"), True, "prefill writes"),
        ("late_zeroing", ("NixlPushConnector",), False, None),
        ("late_zeroing", ("MultiConnector", "OffloadingConnector", "NixlConnector"), False, None),
        ("late_zeroing", ("ExampleConnector",), False, "has none of them"),
        ("late_zeroing", ("MultiConnector", "OffloadingConnector"), False, "has none of them"),
        ("recompute_unwritten", ("NixlPullConnector",), True, None),
        ("recompute_unwritten", ("NixlPullConnector",), False, "kv_load_failure_policy: recompute"),
        ("storage_zeroed", ("OffloadingConnector",), False, None),
        ("storage_swapped", ("MultiConnector", "NixlConnector", "OffloadingConnector"), False, None),
        ("storage_swapped", ("NixlConnector",), False, "what an OffloadingConnector loads, and this engine has none"),
    ],
)
def test_what_cannot_exist_in_an_engine_is_told_apart(
    fault: str, connectors: tuple[str, ...], recomputes: bool, words: str | None
) -> None:
    reason = impossible(fault, connectors, recomputes)
    assert (reason is None) if words is None else (reason is not None and words in reason)


def test_the_connectors_that_faults_know_are_those_with_transfers() -> None:
    assert set(NIXL) == set(connectors.NIXL)
    assert OFFLOADING == connectors.OFFLOADING
